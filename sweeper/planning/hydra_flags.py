"""Flags that make Hydra print something instead of a sweep: --help, --cfg, --info and shell completion."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

import sweeper
from runners.point import canonical
from sweeper import screen
from sweeper.cards import CONF
from sweeper.errors import Mistake
from sweeper.plan import typed
from sweeper.planning.command_line import CommandLine
from sweeper.planning.composer import ENV, PARAMS, REFERENCE, Composer
from sweeper.planning.hydra_errors import explained, first_line
from sweeper.planning.hydra_sweeper import run_hydra
from sweeper.planning.overrides import Typed, parse


def show(line: CommandLine) -> None:
    """Print what the line's flags ask for. Overrides are read as for a sweep, except that each has one value.

    Raises Mistake, and SystemExit(2) where Hydra has printed the mistake itself.
    """
    flags = line.flags
    if flags.version:
        screen.show(f"sweeper {sweeper.__version__}")
        return
    logging.raiseExceptions = False  # `--info | head`
    if flags.shell_completion:
        # Hydra composes what was typed so far. It composes lists of values only after -m, and does not know
        # `python -m`.
        typed_so_far = os.environ.get("COMP_LINE", "")
        called = r"^\s*(\S*python\S*\s+-m\s+)?\S+(\s+(sweep|estimate|-m|--multirun)\b)?"
        os.environ["COMP_LINE"] = re.sub(called, "sweeper -m", typed_so_far, count=1)
        with screen.printable_output():
            run_hydra(["--shell-completion", *line.overrides], _never)
        return
    ours = (*line.overrides, "-m", "--multirun", "--json")
    arguments = [each for each in line.arguments if each not in ours]
    if not (flags.help or flags.hydra_help):
        arguments += _one_configuration(line)
    try:
        with screen.printable_output():
            run_hydra(arguments, _never)
    except SystemExit as ended:  # Hydra exits with another code after it has printed a mistake
        raise SystemExit(2 if ended.code else 0) from None
    except ValueError as error:
        raise Mistake(first_line(error)) from None


def _one_configuration(line: CommandLine) -> list[str]:
    """The overrides as Hydra takes them for one configuration."""
    with explained():
        found = parse(line.overrides)
    if found.several and line.flags.cfg:
        key, *_ = found.several
        overrides = " ".join(line.overrides)
        raise Mistake(
            f"--cfg shows one configuration, and {key} has several values: `sweeper estimate {overrides}` lists them"
        )
    return [_override(key, found) for key in found.fixed]


def _override(key: str, found: Typed) -> str:
    prefix = "++" if key.startswith((PARAMS, ENV, REFERENCE)) else "+" if key in found.added else ""
    value = found.fixed[key]
    if (CONF / key).is_dir() and isinstance(value, (int, float)):
        value = typed(value)  # an option with a name like a number
    return f"{prefix}{key}={_in_hydras_grammar(value)}"


def _in_hydras_grammar(value: Any) -> str:
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if isinstance(value, list):
        return "[" + ",".join(map(_in_hydras_grammar, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_in_hydras_grammar(each)}" for key, each in value.items()) + "}"
    return canonical(value)


def _never(composer: Composer) -> None:
    raise AssertionError("Hydra was called to show something, and ran a sweep")

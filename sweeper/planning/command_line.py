"""Flags and overrides as they are typed, and what Hydra shows instead of a sweep."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hydra.core.override_parser.types import Quote, QuotedString

import sweeper
from runners.point import canonical as as_text
from sweeper.cards import CONF
from sweeper.errors import Mistake
from sweeper.plan import typed
from sweeper.planning.composer import PARAMS, REFERENCE, Composer
from sweeper.planning.hydra_errors import explained, first_line
from sweeper.planning.hydra_sweeper import run_hydra
from sweeper.planning.overrides import Typed, parse

SHOWS = ("help", "hydra_help", "cfg", "info", "shell_completion")


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message}; --help shows what there is")


def _flags() -> argparse.ArgumentParser:
    """Hydra's flags, without those that would bypass our configuration. Ours may stand between the overrides too."""
    flags = _Flags(add_help=False, allow_abbrev=False)
    flags.add_argument("overrides", nargs="*")
    flags.add_argument("--help", "-h", action="store_true")
    flags.add_argument("--hydra-help", action="store_true")
    flags.add_argument("--version", action="store_true")
    flags.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    flags.add_argument("--resolve", action="store_true")
    flags.add_argument("--package", "-p")
    flags.add_argument("--multirun", "-m", action="store_true")  # what is always done
    flags.add_argument("--shell-completion", "-sc", action="store_true")
    flags.add_argument("--config-dir", "-cd")
    infos = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    flags.add_argument("--info", "-i", nargs="?", const="all", choices=infos)
    for refused in ("--run", "-r", "--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun"):
        flags.add_argument(refused, nargs="?", const=True, dest=f"refused {refused}")
    return flags


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """Flags, overrides of Hydra's own keys, and the others, each as typed."""

    flags: argparse.Namespace
    of_hydra: tuple[str, ...]
    overrides: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def shows(self) -> bool:
        """Whether something is only to be shown, so that there is no plan."""
        return bool(self.flags.version) or any(getattr(self.flags, name) for name in SHOWS)


def read(arguments: Sequence[str]) -> CommandLine:
    flags = _flags().parse_intermixed_args(arguments)
    for name, given in vars(flags).items():
        if name.startswith("refused ") and given is not None:
            raise Mistake(
                f"{name.removeprefix('refused ')} is not taken: every command line is a sweep of sweeper's own"
                " configuration; -cd FOLDER adds options and experiments of yours"
            )
    if (flags.resolve or flags.package) and not (flags.cfg or flags.help):
        raise Mistake("--resolve and --package say how --cfg shows the configuration: add --cfg job")
    of_hydra = tuple(each for each in flags.overrides if re.match(r"[+~]*hydra[./=@]", each))
    for override in of_hydra:
        if re.match(r"[+~]*hydra[./](mode|sweeper|launcher|callbacks)\b", override):
            raise Mistake(f"{override}: sweeper plans and starts its own processes; this cannot be changed")
    overrides = tuple(each for each in flags.overrides if each not in of_hydra)
    return CommandLine(flags=flags, of_hydra=of_hydra, overrides=overrides, arguments=tuple(arguments))


def show(line: CommandLine) -> None:
    """What Hydra shows instead of running. Overrides are as for a sweep, except that there is one configuration."""
    flags = line.flags
    if flags.version:
        print(f"sweeper {sweeper.__version__}")
        return
    logging.raiseExceptions = False  # `--info | head`
    if flags.shell_completion:
        # Hydra composes what was typed so far; a value list composes only for -m, and `python -m` it does not know.
        typed_so_far = os.environ.get("COMP_LINE", "")
        called = r"^\s*(\S*python\S*\s+-m\s+)?\S+(\s+(estimate|-m|--multirun)\b)?"
        os.environ["COMP_LINE"] = re.sub(called, "sweeper -m", typed_so_far, count=1)
        run_hydra(["--shell-completion", *line.overrides], _never)
        return
    arguments = [each for each in line.arguments if each not in (*line.overrides, "-m", "--multirun")]
    if not (flags.help or flags.hydra_help):
        arguments += _for_one(line)
    try:
        run_hydra(arguments, _never)
    except SystemExit as ended:  # Hydra has said what was wrong, and has another code for it
        raise SystemExit(2 if ended.code else 0) from None
    except ValueError as error:
        raise Mistake(first_line(error)) from None


def _for_one(line: CommandLine) -> list[str]:
    """The overrides as Hydra takes them for one configuration."""
    with explained():
        found = parse(line.overrides)
    if found.several and line.flags.cfg:
        key, *_ = found.several
        asked = " ".join(line.overrides)
        raise Mistake(f"--cfg shows one configuration, and {key} has several: `sweeper estimate {asked}` lists them")
    return [_override(key, found) for key in found.fixed]


def _override(key: str, found: Typed) -> str:
    prefix = "++" if key.startswith((PARAMS, REFERENCE)) else "+" if key in found.added else ""
    value = found.fixed[key]
    if (CONF / key).is_dir() and isinstance(value, (int, float)):
        value = typed(value)  # an option, whose name reads as a number
    return f"{prefix}{key}={_written(value)}"


def _written(value: Any) -> str:
    """In Hydra's grammar."""
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
    return as_text(value)


def _never(composer: Composer) -> None:
    raise AssertionError("Hydra was asked to show something, and ran a sweep")

"""Flags that show something instead of a sweep: --version, --cfg, --info, --hydra-help and shell completion."""

from __future__ import annotations

import logging

from omegaconf import DictConfig, ListConfig, OmegaConf

import sweeper
from sweeper import screen
from sweeper.errors import Mistake
from sweeper.plan import typed
from sweeper.planning.command_line import CommandLine
from sweeper.planning.completion import EXPERIMENTS_ONLY, completion
from sweeper.planning.config_files import located
from sweeper.planning.experiment import refuse_typed
from sweeper.planning.hydra_errors import explained, first_line
from sweeper.planning.hydra_sweeper import composer_of, never, run_hydra
from sweeper.planning.overrides import parse
from sweeper.planning.schema import WORKLOAD_RULES


def show(line: CommandLine) -> None:
    """Print what the line's flags ask for. Overrides are read as for a sweep, except that each has one value.

    Raises Mistake, and SystemExit(2) where Hydra has printed the mistake itself.
    """
    flags = line.flags
    if flags.version:
        screen.show(f"sweeper {sweeper.__version__}")
        return
    if flags.cfg:
        screen.show(_configuration(line))
        return
    logging.raiseExceptions = False  # `--info | head`
    if flags.shell_completion:
        screen.show(completion(line))
        return
    arguments = [each for each in line.arguments if each not in (*line.overrides, "-m", "--multirun", "--json")]
    if not flags.hydra_help:
        arguments += _composed(line)[1]  # only these decide what --info shows
    try:
        with screen.printable_output():
            run_hydra(arguments, never)
    except SystemExit as ended:  # Hydra exits with another code after it has printed a mistake
        raise SystemExit(2 if ended.code else 0) from None
    except ValueError as error:
        raise Mistake(first_line(error)) from None


def _composed(line: CommandLine) -> tuple[DictConfig, list[str]]:
    """The configuration that a sweep would begin with, and its options of groups as Hydra takes them.

    Raises Mistake where the sweep would.
    """
    folder = ["--config-dir", line.flags.config_dir] if line.flags.config_dir else []
    with explained():
        composer = composer_of([*folder, *line.of_hydra])
        found = parse(line.overrides, composer.loader)
        refuse_typed(found)
    fixed = found.fixed | {key: values[0] for key, values in found.several.items()}
    groups = {key: value for key, value in fixed.items() if key in composer.groups}
    try:
        config = composer.compose(groups)
        for key, value in fixed.items():
            if key not in groups:
                composer.update(config, key, value, key in found.added)
        options = [f"{key}={composer.option(key, value)}" for key, value in groups.items() if value is not None]
    except Mistake as mistake:
        raise type(mistake)(located(str(mistake), composer.files, found.values)) from None
    return config, options


def _configuration(line: CommandLine) -> str:
    """The keys of a command line with their values, as YAML: those that a command line or a file can set."""
    with explained():
        several = parse(line.overrides).several
    if several:
        overrides = " ".join(line.overrides)
        raise Mistake(
            f"--cfg shows one configuration, and {next(iter(several))} has several values:"
            f" `sweeper estimate {overrides}` lists them"
        )
    config, _ = _composed(line)
    OmegaConf.set_struct(config, False)
    for rule in WORKLOAD_RULES:
        config.workload.pop(rule, None)
    for key in EXPERIMENTS_ONLY:
        if not config[key]:
            config.pop(key)
    package = line.flags.package
    with explained():
        shown = config if package is None else OmegaConf.select(config, package, default=...)
        if shown is ...:
            raise Mistake(f"--package {package}: no such key")
        if isinstance(shown, (DictConfig, ListConfig)):
            return OmegaConf.to_yaml(shown, resolve=line.flags.resolve).rstrip("\n")
    return typed(shown)

"""Hydra's Sweeper: overrides in, a Plan out. With cli.py the only module that knows Hydra.

The whole way: `hydra.main` composes the primary configuration and hands its loader to our Sweeper; the overrides, as
they were typed, are parsed with Hydra's own grammar; the configuration is composed once for each choice of groups, and
every point is that one with some values updated (0.4 ms instead of 50, and equal to a full composition).
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NoReturn

import hydra
import yaml  # type: ignore[import-untyped]
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Quote, QuotedString, RangeSweep, ValueType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

import sweeper
from runners.point import Point
from runners.point import canonical as as_text
from sweeper.cards import CONF, Cards
from sweeper.designs.frontier import DESIGNS, NOTHING
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.objective import Objective
from sweeper.plan import (
    LISTS,
    RUN_KEYS,
    TYPES,
    WORKLOAD_RULES,
    Dimension,
    Keys,
    Plan,
    Rules,
    did_you_mean,
    expected,
    is_of_run,
    listed,
    resolutions,
    run_keys,
    settled,
    typed,
)
from sweeper.planning import devices
from sweeper.planning.probes import Probes

PLANNING = ("design", "experiment")  # groups that say how the sweep is made: no dimensions
OPEN = "workload.params."  # takes any key; model.config. takes any with a + before it
REFERENCE = "quality.reference."  # takes any key that a point has
OPEN_WITH_PLUS = "model.config."
NAMED = ("resolution.", "margin.")  # keys of the run that take names: of intervals, of the user's own terms
MOST_EXACT = 2**53  # whole numbers that a float tells apart
SHOWS = ("help", "hydra_help", "cfg", "info", "shell_completion")


# --- the Sweeper ------------------------------------------------------------------------------------------------------


class DesignSweeper(Sweeper):
    """Hands Hydra's loader to the task function, once. No job is launched through Hydra.

    Hydra's own composition sees none of the user's keys: it would leave swept groups at their defaults, and refuse
    `model=mlp,small model.width=64` because the default model has no width.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.task_function, self.loader, self.composed = task_function, hydra_context.config_loader, config

    def sweep(self, arguments: list[str]) -> Any:
        return self.task_function(Composer(self.loader, self.composed))


def _register() -> None:
    """Hydra 1.3.8 takes a plugin only from a module below `hydra_plugins`, by name, even one that is registered.

    A package of that name in our wheel would be found in checkouts and wheels but not in editable installs, so the
    module is made here. From 1.4 on `register` alone is enough.
    """
    module = types.ModuleType("hydra_plugins.sweeper_designs")
    module.DesignSweeper = DesignSweeper  # type: ignore[attr-defined]
    DesignSweeper.__module__ = module.__name__
    plugins = Plugins.instance()  # first: it looks for the real package, with the plugins of others
    sys.modules.setdefault("hydra_plugins", types.ModuleType("hydra_plugins"))
    sys.modules[module.__name__] = module
    sys.modules["hydra_plugins"].sweeper_designs = module  # type: ignore[attr-defined]
    plugins.register(DesignSweeper)
    ConfigStore.instance().store(name="keys", node=Keys)


# --- what was typed ---------------------------------------------------------------------------------------------------


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


@dataclass(slots=True)
class Typed:
    """The overrides, understood: each key once, with one value or with several."""

    fixed: dict[str, Any] = field(default_factory=dict)
    several: dict[str, Sequence[Any]] = field(default_factory=dict)  # in the order typed
    added: set[str] = field(default_factory=set)  # typed with +


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> Typed:
    """Raises Mistake for what cannot be read, or is said twice."""
    found = Typed()
    words = [_quoted(_as_words(each)) for each in overrides]
    for override in OverridesParser.create(config_loader=loader).parse_overrides(words):
        key = override.key_or_group
        if override.package is not None:
            raise Mistake(f"{override.input_line}: a group cannot be put elsewhere; write {key}=OPTION")
        if override.is_delete():
            raise Mistake(f"{override.input_line}: a key cannot be removed; give it a value, or null")
        if key in found.fixed or key in found.several:
            both = "give it once" if key in RUN_KEYS and key not in LISTS else f"write {key}=A,B to try both"
            raise Mistake(f"{key} is given twice: {both}")
        if override.is_add() or override.is_force_add():
            found.added.add(key)
        if is_of_run(key):
            found.fixed[key] = _run_key(override)
        elif override.is_sweep_override():
            found.several[key] = _several(override)
        else:
            found.fixed[key] = _one(override)
    return found


def _as_words(override: str) -> str:
    """A program's arguments with quotes around each that has none: the shell takes them off '{batch}', which Hydra then
    cannot read, and what Hydra would take for a number or for true is a word to the program."""
    key, equals, value = override.partition("=")
    if key.lstrip("+") != "workload.argv" or "[" not in value:
        return override
    quoted_or_word = r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|([^\[\],'"\s][^\[\],'"]*)"""

    def quote(found: re.Match[str]) -> str:
        return found[1] or str(QuotedString(found[2].rstrip(), Quote.single).with_quotes())

    return key + equals + re.sub(quoted_or_word, quote, value)


def _quoted(override: str) -> str:
    """A product such as batch^2*context has signs that Hydra's grammar reads only in quotes."""
    product = re.fullmatch(r"objective=([\w.^* ]+)", override)
    return f'objective="{product[1]}"' if product else override


def _one(override: Override) -> Any:
    value = _plain(override.value())
    if value == "" and not override.key_or_group.startswith(OPEN):
        raise Mistake(f"{override.input_line}: a value is missing")
    return value


def _run_key(override: Override) -> Any:
    """In the keys of a run a comma makes a list: it is one run, whatever it is told."""
    key = override.key_or_group
    if not override.is_sweep_override():
        return _one(override)
    values = [each for value in _several(override) for each in listed(value)]
    if key not in LISTS:
        raise Mistake(f"{override.input_line}: {key} takes one value; it is a key of the run, and cannot be swept")
    return values


def _several(override: Override) -> Sequence[Any]:
    line, key = override.input_line, override.key_or_group
    swept = override.value()
    if isinstance(swept, IntervalSweep):
        return _interval(str(line), key, swept)
    if isinstance(swept, RangeSweep):
        if not all(isinstance(each, int) for each in (swept.start, swept.stop, swept.step)):
            raise Mistake(f"{line}: a range counts in whole numbers; list the others, as in {key}=0.1,0.2")
        if swept.step == 0:
            raise Mistake(f"{line}: a range with step 0 has no end")
    values = tuple(_plain(value) for value in override.sweep_iterator())
    if not values:
        matched = "matches nothing" if override.value_type == ValueType.GLOB_CHOICE_SWEEP else "is empty"
        raise Mistake(f"{line}: {matched}, so there is nothing to try")
    if "" in values and not key.startswith(OPEN):
        raise Mistake(f"{line}: a value is missing")
    return values


def _interval(line: str, key: str, swept: IntervalSweep) -> Interval:
    """Hydra reads its ends as floats, and takes inf for one."""
    ends = [end for end in (swept.start, swept.end) if end is not None and math.isfinite(end)]
    if len(ends) < 2 or any(end != int(end) or abs(end) > MOST_EXACT for end in ends):
        raise Mistake(f"{line}: an interval has two whole numbers, as in '{key}=interval(1,512)'")
    low, high = (int(end) for end in ends)
    if low > high:
        raise Mistake(f"{line}: from the smaller to the larger, as in '{key}=interval({high},{low})'")
    return Interval(low, high)


def _plain(value: Any) -> Any:
    """Without Hydra's own classes."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, IntervalSweep):
        raise Mistake("an interval stands alone, as in 'batch=interval(1,512)', without other values beside it")
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return value


# --- compositions -----------------------------------------------------------------------------------------------------


class Composer:
    """Composes the configuration, once for each choice of groups. All that is settled comes from these: a file that is
    edited while the sweep runs changes nothing of it."""

    def __init__(self, loader: ConfigLoader, composed: DictConfig) -> None:
        self.loader = loader
        self._of_hydra: list[str] = [str(each) for each in composed.hydra.overrides.hydra]
        choices: dict[str, Any] = dict(composed.hydra.runtime.choices)
        self.groups = tuple(group for group in choices if not group.startswith("hydra/"))
        self._composed: dict[str, DictConfig] = {}

    def options(self, group: str) -> list[str]:
        return list(self.loader.get_group_options(group))

    def cards(self) -> Cards:
        """Those of conf/card, and of the user's own folders."""

        def read(name: str) -> Mapping[str, Any]:
            try:
                with explained():
                    found = self.loader.repository.load_config(f"card/{name}")  # type: ignore[attr-defined]
            except yaml.YAMLError as error:
                raise Mistake(f"card/{name}.yaml: cannot be read: {' '.join(str(error).split())}") from None
            return _resolved(found.config)

        return Cards(self.options("card"), read)

    def compose(self, choices: Mapping[str, Any]) -> DictConfig:
        """Raises Mistake. The caller has a copy of its own to change."""
        for group, choice in choices.items():
            if choice is None and group != "experiment":
                raise Mistake(f"{group}=null: must be one of {', '.join(self.options(group))}")
        known = as_text(dict(choices))
        if known not in self._composed:
            chosen = [(group, choice) for group, choice in choices.items() if choice is not None]
            overrides = [f"{group}={self._option(group, choice)}" for group, choice in chosen]
            with explained():
                config = self.loader.load_configuration("config", [*self._of_hydra, *overrides], RunMode.RUN)
            OmegaConf.set_struct(config, False)
            del config["hydra"]
            OmegaConf.set_struct(config, True)
            self._composed[known] = config
        return copy.deepcopy(self._composed[known])

    def _option(self, group: str, choice: Any) -> str:
        if isinstance(choice, list) and group in PLANNING:
            return "[" + ",".join(QuotedString(str(each), Quote.single).with_quotes() for each in choice) + "]"
        if isinstance(choice, (list, dict)):
            raise Mistake(f"{group}={typed(choice)}: takes one option; {group}=A,B tries both")
        # Quoted: an option that reads as a number stays a name.
        return QuotedString(typed(choice), Quote.single).with_quotes()

    def update(self, config: DictConfig, key: str, value: Any, added: bool) -> None:
        """Give one key its value, of the type that it has. Raises Mistake."""
        if key.startswith(OPEN) and "params" not in config.workload:
            raise Mistake(f"{key}: workload={config.workload.get('name')} takes no params; workload=custom does")
        free = key.startswith((OPEN, REFERENCE, *NAMED)) or (added and key.startswith(OPEN_WITH_PLUS))
        if not free:
            value = self._of_its_type(config, key, value)
        try:
            OmegaConf.update(config, key, value, merge=True, force_add=free)
        except (ConfigKeyError, ConfigAttributeError) as error:
            raise Mistake(_no_such_key(key, error, self.groups)) from None
        except ValidationError:
            raise Mistake(f"{key}={typed(value)}: must be {expected(key)}{_whole(value)}") from None
        except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
            raise Mistake(f"{key}={typed(value)}: {_first_line(error)}") from None

    def _of_its_type(self, config: DictConfig, key: str, value: Any) -> Any:
        """Keys of these groups have no schema but the values their files give them."""
        root, _, rest = key.partition(".")
        if root not in ("model", "workload", "inputs", "quality") or (isinstance(value, str) and "${" in value):
            return value
        if not rest and root == "quality":
            raise Mistake(f"{key}={typed(value)}: has keys of its own, as in quality.target=mywork:accuracy")
        if not rest:
            raise Mistake(f"{key}={typed(value)}: must be one of {', '.join(self.options(root))}")
        if rest.partition(".")[0] in ("name", *WORKLOAD_RULES):
            raise Mistake(f"{key} says what {root}={config[root].get('name')} is, and cannot be changed")
        with suppress(OmegaConfBaseException):
            is_now = OmegaConf.select(config, key, throw_on_missing=True)
            if isinstance(is_now, float) and isinstance(value, int) and not isinstance(value, bool):
                return float(value)
            if isinstance(is_now, str) and isinstance(value, (int, float)):
                return typed(value)
            if isinstance(is_now, DictConfig) and not isinstance(value, dict):
                inner = next((str(each) for each in is_now), "KEY")
                raise Mistake(f"{key}={typed(value)}: has keys of its own, as in {key}.{inner}={typed(value)}")
            if isinstance(is_now, ListConfig) and isinstance(value, (int, float)):
                raise Mistake(f"{key}={typed(value)}: must be a list or a word; it is {typed(list(is_now))} now")
            if type(is_now).__name__ in TYPES and value is not None and type(value) is not type(is_now):
                wanted = TYPES[type(is_now).__name__]
                raise Mistake(f"{key}={typed(value)}: must be {wanted}{_whole(value)}; it is {typed(is_now)} now")
        return value


def _whole(value: Any) -> str:
    """` (1000)` after 1e3 or 2.0, which Hydra reads as floats."""
    return f" ({int(value)})" if isinstance(value, float) and value.is_integer() else ""


# --- errors, one line each --------------------------------------------------------------------------------------------


@contextmanager
def explained() -> Iterator[None]:
    """Turns what Hydra and OmegaConf raise into a Mistake."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserWarning) as error:
        raise Mistake(_explanation(error)) from None


def _explanation(error: Exception) -> str:
    if isinstance(error, OverrideParseException):
        form = """write key=value, key=value,value to try several, 'key="value"' where it has other signs in it"""
        return f"cannot read {error.override!r}: {form}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = sorted(error.options or ())
        there = f"; there are {', '.join(options)}" if options else ""
        return f"{group}={option}: no such {group}{did_you_mean(option, options)}{there}"
    cause = _of_omegaconf(error)
    if cause is None or not cause.full_key:
        return _first_line(error) if str(error) else _first_line(cause or error)
    file = re.match(r"In '(.+?)': ", str(error))
    where = f"in {file[1]}.yaml: " if file else ""
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return where + _no_such_key(cause.full_key, cause)
    if isinstance(cause, ValidationError):
        return f"{where}{cause.full_key}={typed(cause.value)}: must be {expected(cause.full_key)}{_whole(cause.value)}"
    return f"{where}{cause.full_key}: {_first_line(cause)}"


def _of_omegaconf(error: BaseException) -> OmegaConfBaseException | None:
    """Hydra's errors are about the file or the override; the key is in what they came from."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    return cause


def _no_such_key(key: str, error: OmegaConfBaseException, groups: Sequence[str] = ()) -> str:
    path, _, last = str(error.full_key or key).rpartition(".")
    known = map(str, error.parent_node) if isinstance(error.parent_node, DictConfig) else ()
    if not path:
        return f"no such key: {key}{did_you_mean(last, [*groups, *known])}"
    root = key.partition(".")[0]
    option = error.parent_node._get_root().get(root, {}).get("name")
    of = f" with {root}={option}" if option else ""
    return f"no such key: {key}{of}{did_you_mean(last, known).replace('mean ', f'mean {path}.')}"


def _first_line(error: BaseException) -> str:
    """The message as one line, without the lines in which OmegaConf says where it was raised."""
    where = re.compile(r"\s*(full_key|object_type|reference_type)\b")
    lines = [line.strip() for line in str(error).splitlines() if not where.match(line)]
    return " ".join(line for line in lines if line) or type(error).__name__


# --- from one to the other --------------------------------------------------------------------------------------------


def plan_of(line: CommandLine, probes: Probes, say: Callable[[str], None]) -> Plan:
    """Everything the command line asks for, settled and checked. Raises Mistake; starts nothing that measures."""
    plans: list[Plan] = []

    def task(composer: Composer) -> None:
        plans.append(_Planning(composer, line, probes, say).plan())

    folder = ["--config-dir", line.flags.config_dir] if line.flags.config_dir else []
    _run_hydra([*folder, "--multirun", *line.of_hydra], task)
    return plans[0]


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
        _run_hydra(["--shell-completion", *line.overrides], _never)
        return
    arguments = [each for each in line.arguments if each not in (*line.overrides, "-m", "--multirun")]
    if not (flags.help or flags.hydra_help):
        arguments += _for_one(line)
    try:
        _run_hydra(arguments, _never)
    except SystemExit as ended:  # Hydra has said what was wrong, and has another code for it
        raise SystemExit(2 if ended.code else 0) from None
    except ValueError as error:
        raise Mistake(_first_line(error)) from None


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
    prefix = "++" if key.startswith((OPEN, REFERENCE)) else "+" if key in found.added else ""
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


def _run_hydra(arguments: Sequence[str], task: Callable[[Composer], None]) -> None:
    """Call Hydra with these arguments, and give back what it changes: it reads them from sys.argv alone."""
    _register()
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["sweeper", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come up to here, instead of a page on stderr
    try:
        with explained(), warnings.catch_warnings():
            warnings.filterwarnings("error", "provider=", UserWarning)  # of a folder that is not there
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    finally:
        sys.argv = argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if full is not None:
            os.environ["HYDRA_FULL_ERROR"] = full


@dataclass(slots=True)
class _Base:
    """The configuration of one choice of groups, with everything that was fixed.

    Where no value refers to another, the points are made from plain dictionaries: copying OmegaConf's nodes takes 2 ms
    a point, which is minutes for 100,000 of them.
    """

    config: DictConfig
    resolved: dict[str, Any] | None
    converted: dict[str, Any] = field(default_factory=dict)  # key=value -> that value, as its key has it


class _Planning:
    """One command line on its way to a plan."""

    def __init__(self, composer: Composer, line: CommandLine, probes: Probes, say: Callable[[str], None]) -> None:
        self.composer, self.line, self.probes, self.say = composer, line, probes, say
        with explained():
            self.typed = parse(line.overrides, composer.loader)
        self.fixed_groups = {key: value for key, value in self.typed.fixed.items() if key in composer.groups}
        self.fixed = {key: value for key, value in self.typed.fixed.items() if key not in composer.groups}
        self.cards = composer.cards()
        self._bases: dict[str, _Base] = {}
        self._points: dict[str, Point] = {}
        self._references: dict[str, str] = {}  # a point's id -> the id of the one its quality is held against

    def plan(self) -> Plan:
        self._refuse_planning_keys()
        first = self.composer.compose(self.fixed_groups)
        grid = self._grid(first)
        written = self._written_out(first)
        several = self._dimensions(grid, written)
        varied = self.typed.several if written else several  # the first point may lack a key that a later one has
        beginning = {**{key: values[0] for key, values in varied.items()}, **(written[0] if written else {})}
        config = self._config(beginning)
        run = run_keys(config)
        intervals = {key: values for key, values in several.items() if isinstance(values, Interval)}
        finely = resolutions(config, list(intervals))
        several |= {key: Interval(each.low, each.high, finely[key]) for key, each in intervals.items()}
        self.rules = Rules(
            # Points that are written out, unlike combinations, are not equal by accident: each has the keys it names.
            swept=[key for key in (self.typed.several if written else several) if _varies(several[key])],
            signature=lambda key, target: self.probes.signature(run.python, key, target),
            cards=self.cards,
            given=[*self.typed.fixed, *(self.typed.several if written else several)],
        )
        self.reference = {} if run.quality is None else run.quality["reference"]
        names = devices.canonical(listed(config["devices"]))
        design, options = self._design(config, written)
        plan = Plan(
            run=run,
            design=design,
            design_options=options,
            dimensions=tuple(self._dimension(key, values, beginning) for key, values in several.items()),
            devices=(),
            points=(),
            settle=self.settle,
            command=self.line.arguments,
            reference_of=lambda point: self._references.get(point.id),
        )
        if written:
            plan = replace(plan, design_options={**options, "points": self._with_typed(written)})
        points = tuple({asked.point.id: asked.point for asked in next(DESIGNS[design](plan, NOTHING))}.values())
        _check_objective(run.objective, points)
        self._check_references(points)
        here = devices.resolve(names, lambda: self.probes.devices(run.python), self.say, self.cards)
        return replace(plan, devices=here, points=points)

    def settle(self, choice: Mapping[str, Any]) -> Point:
        known = as_text(dict(choice))
        if known not in self._points:
            self._points[known] = point = settled(self._config(choice), self.rules)
            if self.reference and point.get("quality.target") is not None:
                self._references[point.id] = settled(self._config({**choice, **self.reference}), self.rules).id
        return self._points[known]

    def _check_references(self, points: Sequence[Point]) -> None:
        """Raises Mistake where a point's quality has nothing in the sweep that it can be held against."""
        if not self.reference:
            return
        asked = {point.id for point in points}
        named = " ".join(f"quality.reference.{key}={typed(value)}" for key, value in self.reference.items())
        if not any(point.id in self._references for point in points):
            raise Mistake(f"{named}: there is no quality to compare; quality.target names the function that tells it")
        for point in points:
            if self._references.get(point.id, point.id) not in asked:
                at = " ".join(f"{key}={typed(point[key])}" for key in self.reference if point.get(key) is not None)
                raise Mistake(f"{named}: no such point is in the sweep to hold those with {at} against; add its values")

    def _config(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration of one choice, resolved."""
        groups = {**self.fixed_groups, **{key: value for key, value in choice.items() if key in self.composer.groups}}
        base = self._base(groups)
        values = {key: value for key, value in choice.items() if key not in groups}
        if base.resolved is not None and all(map(_is_plain, values.values())):
            config: Mapping[str, Any] = base.resolved
            for key, value in values.items():
                config = _with(config, key.split("."), self._converted(base, key, value))
            return config
        composed = copy.deepcopy(base.config)
        for key, value in values.items():
            self._update(composed, key, value)
        return _resolved(composed)

    def _base(self, groups: Mapping[str, Any]) -> _Base:
        known = as_text(groups)
        if known not in self._bases:
            config = self.composer.compose(groups)
            config.grid, config.points = {}, []
            for key, value in self.fixed.items():
                self._update(config, key, value)
            raw = OmegaConf.to_container(config, resolve=False)
            self._bases[known] = _Base(config, raw if _stands_alone(raw) else None)  # type: ignore[arg-type]
        return self._bases[known]

    def _converted(self, base: _Base, key: str, value: Any) -> Any:
        """The value as it is after an update of the configuration."""
        known = f"{key}={as_text(value)}"
        if known not in base.converted:
            config = copy.deepcopy(base.config)
            self._update(config, key, value)
            base.converted[known] = OmegaConf.select(config, key)
        return base.converted[known]

    def _update(self, config: DictConfig, key: str, value: Any) -> None:
        self.composer.update(config, key, value, key in self.typed.added)

    def _refuse_planning_keys(self) -> None:
        for key in (*self.typed.fixed, *self.typed.several):
            if key.partition(".")[0] in ("grid", "points"):
                raise Mistake(f"{key}: for experiment files; on the command line write the key, as in batch=1,2,4")
        for key in self.typed.several:
            if key.partition(".")[0] in PLANNING:
                values = ",".join(map(typed, self.typed.several[key]))
                raise Mistake(f"{key}={values}: one {key} at a time; run them in turn")

    def _grid(self, config: DictConfig) -> dict[str, Sequence[Any]]:
        """The lists of an experiment's `grid:`, by dotted key."""
        return {str(key): self._values(str(key), value) for key, value in _raw(config, "grid").items()}

    def _values(self, key: str, value: Any) -> Sequence[Any]:
        self._refuse_run_keys(key, "grid")
        if isinstance(value, str):  # as it would be typed: "1,2,4", range(1,5)
            with explained():
                found = parse([f"{key}={value}"], self.composer.loader)
            return found.several.get(key) or (found.fixed[key],)
        if not isinstance(value, list) or not value:
            raise Mistake(f"grid: {key}: must be a list of values, as in {key}: [1, 2, 4]")
        return tuple(value)

    def _written_out(self, config: DictConfig) -> list[dict[str, Any]]:
        """The mappings of an experiment's `points:`, without what was typed."""
        found = []
        for point in _raw(config, "points"):
            if not isinstance(point, dict):
                raise Mistake(f"points: {typed(point)}: must be keys and values, as in {{batch: 1, model.width: 64}}")
            for key in point:
                self._refuse_run_keys(str(key), "points")
            found.append({str(key): value for key, value in point.items() if not self._is_typed(str(key))})
        return found

    def _refuse_run_keys(self, key: str, where: str) -> None:
        root = key.partition(".")[0]
        if root in (*RUN_KEYS, *PLANNING, "grid", "points"):
            raise Mistake(f"{where}: {key} is a key of the run, and has one value for all its points")

    def _is_typed(self, key: str) -> bool:
        """The command line wins, also with a whole option over the keys within the one that a file would choose."""
        return key in self.typed.fixed or key in self.typed.several

    def _dimensions(self, grid: Mapping[str, Any], written: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
        """Typed ones first and so outermost, then those of the file."""
        found = dict(self.typed.several)
        found |= {key: values for key, values in grid.items() if not self._is_typed(key)}
        if written:
            if grid:
                raise Mistake("the experiment has both grid: and points:; keep one, sweep the other keys by hand")
            keys = dict.fromkeys(key for point in written for key in point)
            found |= {key: tuple(point[key] for point in written if key in point) for key in keys}
        for key, values in found.items():
            _finite(key, values)
        return found

    def _with_typed(self, written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The points of the file, all of them for each combination of what was swept on the command line."""
        keys = list(self.typed.several)
        combinations = product(*self.typed.several.values())
        return [{**dict(zip(keys, values, strict=True)), **point} for values in combinations for point in written]

    def _dimension(self, key: str, values: Sequence[Any], beginning: Mapping[str, Any]) -> Dimension:
        """Its values as they settle, each once: half and float16 are one. What refers to other keys stays as typed."""
        if isinstance(values, Interval):
            return Dimension(key=key, values=values)
        found: dict[str, Any] = {}
        if key in self.composer.groups:
            self._distinct(key, values)
        for value in values:
            same = value
            if key not in self.composer.groups and _is_plain(value):
                with suppress(Mistake, KeyError):  # of this combination; the points themselves say what is wrong
                    as_settled = self.settle({**beginning, key: value})[key]
                    same = value if as_settled is None else as_settled  # null where this combination makes no use of it
            found.setdefault(as_text(same), same)
        return Dimension(key=key, values=tuple(found.values()))

    def _distinct(self, group: str, options: Sequence[Any]) -> None:
        """Options are told apart in the tables by the name in their file."""
        named: dict[Any, Any] = {}
        for option in dict.fromkeys(options):
            name = self.composer.compose({**self.fixed_groups, group: option})[group].get("name")
            if name in named:
                raise Mistake(f"{group}={named[name]},{option}: both call themselves {name}; give one another name")
            named[name] = option

    def _design(self, config: Mapping[str, Any], written: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        options = dict(config["design"])
        name = options.pop("name", None)
        if name == "grid" and written and "design" not in self.typed.fixed:
            name = "list"
        if name not in DESIGNS:
            raise Mistake(f"design={name}: no such design{did_you_mean(name, DESIGNS)}; there are {', '.join(DESIGNS)}")
        if name == "list" and not written:
            raise Mistake("design=list: there are no points; an experiment file writes them out under points:")
        if name != "list" and written:
            raise Mistake(f"design={name}: the experiment writes its points out; design=list takes them")
        return name, options


def _varies(values: Sequence[Any]) -> bool:
    return len(values) > 1 if isinstance(values, Interval) else len(set(map(as_text, values))) > 1


def _finite(key: str, values: Sequence[Any]) -> None:
    if isinstance(values, Interval):
        return
    for value in values:
        try:
            as_text(value)
        except (TypeError, ValueError):
            raise Mistake(f"{key}={value}: must be a finite number, a word, or lists and mappings of them") from None


def _resolved(config: DictConfig) -> dict[str, Any]:
    try:
        resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except MissingMandatoryValue as error:
        examples = {"workload.target": "mywork:run", "workload.argv": "[python,train.py,--bs,'{batch}']"}
        example = examples.get(str(error.full_key), "...")
        raise Mistake(f"{error.full_key} has no value: give it one, as in {error.full_key}={example}") from None
    except OmegaConfBaseException as error:
        raise Mistake(f"{error.full_key}: {_first_line(error)}") from None
    return resolved


def _stands_alone(value: Any) -> bool:
    """Whether it means the same wherever it stands: no reference to another key, nothing that is yet to be given."""
    if isinstance(value, dict):
        return all(map(_stands_alone, value.values()))
    if isinstance(value, list):
        return all(map(_stands_alone, value))
    return not (isinstance(value, str) and ("${" in value or value == "???"))


def _is_plain(value: Any) -> bool:
    """A mapping or a list may be merged into what another key gives; a single value takes its own place."""
    return not isinstance(value, (dict, list)) and _stands_alone(value)


def _with(config: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy with another value at the path; the rest is shared."""
    first, *rest = path
    return {**config, first: _with(config.get(first) or {}, rest, value) if rest else value}


def _raw(config: DictConfig, key: str) -> Any:
    """As the file has it: what refers to other keys is resolved in each point."""
    return OmegaConf.to_container(config[key], resolve=False)


def _check_objective(objective: Objective, points: Sequence[Point]) -> None:
    """A key that no point has would make every point equally large."""
    for key in objective.keys:
        values = [value for point in points if (value := point.get(key)) is not None]
        if not values:
            raise Mistake(f"objective={objective}: no point has {key}; name tokens, or keys such as batch and context")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise Mistake(f"objective={objective}: {key} is {typed(value)}, which is no number")

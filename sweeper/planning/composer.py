"""Compositions of the configuration, one for each choice of groups, and Hydra's errors as one-line messages."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from runners.point import canonical as as_text
from sweeper.cards import CONF, Cards
from sweeper.errors import Mistake, some_of
from sweeper.plan import typed
from sweeper.planning import hydra_keys
from sweeper.planning.config_files import ConfigFile, FileSource, several, shown
from sweeper.planning.hydra_errors import explained, first_line, no_such_key, wrong_type
from sweeper.planning.schema import SWITCH_KEYS, TEXT_KEYS, TYPE_NAMES, WORKLOAD_RULES, as_list
from sweeper.planning.suggestions import no_such_option, option_of_path

PLANNING_GROUPS = ("design", "experiment")  # groups that configure the sweep itself and cannot be swept
PARAMS = "workload.params."  # takes any key
ENV = "env."  # takes any name
REFERENCE = "quality.reference."  # takes any key of a point
MODEL_CONFIG = "model.config."  # takes any key with a + before it
NAMED_KEYS = ("resolution.", "margin.")  # keys of the run that take names: of intervals, of the user's terms


class Composer:
    """Composes the configuration, once for each choice of groups.

    A file that is edited while the sweep runs does not change the sweep: its composition is kept.
    """

    def __init__(self, loader: ConfigLoader, composed: DictConfig) -> None:
        self.loader = loader
        self._of_hydra: list[str] = [str(each) for each in composed.hydra.overrides.hydra]
        choices: dict[str, Any] = dict(composed.hydra.runtime.choices)
        self.groups = tuple(group for group in choices if not group.startswith("hydra/"))
        self._default_choices = choices
        self._own = self._of(composed)  # Hydra's part of the configuration, without any file of the user's
        self._composed: dict[str, DictConfig] = {}
        self._choices: dict[str, dict[str, Any]] = {}

    @property
    def _sources(self) -> list[FileSource]:
        sources = self.loader.repository.get_sources()  # type: ignore[attr-defined]
        return [each for each in sources if isinstance(each, FileSource)]

    @property
    def files(self) -> list[ConfigFile]:
        """The files of the user's that were read."""
        return [file for source in self._sources for file in source.read.values()]

    def options(self, group: str) -> list[str]:
        return list(self.loader.get_group_options(group))

    def cards(self) -> Cards:
        """The cards of conf/card and of the user's folders."""

        def read(name: str) -> Mapping[str, Any]:
            self._refuse_hidden(f"card/{name}")
            with explained():
                found = self.loader.repository.load_config(f"card/{name}")  # type: ignore[attr-defined]
            return resolved(found.config)

        return Cards(self.options("card"), read)

    def compose(self, choices: Mapping[str, Any]) -> DictConfig:
        """The composition as a copy that the caller may change. Raises Mistake."""
        for group, choice in choices.items():
            if choice is None and group != "experiment":
                raise Mistake(f"{group}=null: must be one of {some_of(self.options(group), group)}")
            if any(re.search(r"\$\{[^:}]*\}", str(each)) for each in as_list(choice)):  # ${oc.env:NAME} works
                raise Mistake(f"{group}={typed(choice)}: must be an option's name; a group cannot follow another key")
        known = as_text(dict(choices))
        if known not in self._composed:
            chosen = [(group, choice) for group, choice in choices.items() if choice is not None]
            overrides = [f"{group}={self.option(group, choice)}" for group, choice in chosen]
            for group, choice in chosen:
                self._refuse_paths(group, choice)
                self._check_is_there(group, choice)
            try:
                with explained():
                    config = self.loader.load_configuration("config", [*self._of_hydra, *overrides], RunMode.RUN)
            except RecursionError:
                raise Mistake(
                    f"{' '.join(overrides)}: files include each other, or values are nested too deeply"
                ) from None
            self._choices[known] = dict(choices) | dict(config.hydra.runtime.choices)
            self._refuse_keys_of_hydra(config, self._choices[known])
            self._check_complete(config, self._choices[known])
            OmegaConf.set_struct(config, False)
            del config["hydra"]
            OmegaConf.set_struct(config, True)
            self._composed[known] = config
        return copy.deepcopy(self._composed[known])

    def _refuse_keys_of_hydra(self, config: DictConfig, choices: Mapping[str, Any]) -> None:
        """Raises Mistake if a file sets one of Hydra's own keys or groups."""
        for group in self.groups:
            self._refuse_paths(group, choices.get(group))  # those that a file chooses
        for file in (f"{group}/{each}" for group in self.groups for each in as_list(choices.get(group))):
            self._refuse_hidden(file)
            read = self.loader.repository.load_config(file)  # type: ignore[attr-defined]
            groups = (str(getattr(each, "group", "")) for each in read.defaults_list or ())
            keys = hydra_keys.keys_in(read.header, OmegaConf.to_container(read.config))
            for key in (*hydra_keys.groups_in(groups), *keys):
                raise Mistake(f"{file}.yaml: {key}: {hydra_keys.refusal(key)}")
        for key in hydra_keys.changed(self._own, self._of(config)):  # in a file that one of those includes
            raise Mistake(f"{key}: {hydra_keys.refusal(key)}")

    def _check_complete(self, config: DictConfig, choices: Mapping[str, Any]) -> None:
        """Raises Mistake if the file of an option lacks a key without which it is none."""
        for group in ("model", "workload", "inputs"):
            if choices.get(group) is None:
                continue
            option: dict[str, Any] = OmegaConf.to_container(config[group], resolve=False)  # type: ignore[assignment]
            for key, example in _needed(group, option):
                if key not in option:
                    file = f"{group}/{choices[group]}"
                    folders = (source.path for source in self._sources if source.is_config(file))
                    path = next((shown(os.path.join(folder, f"{file}.yaml")) for folder in folders), file)
                    raise Mistake(f"{path}: {key} is missing, as in {key}: {example}")

    def _refuse_hidden(self, file: str) -> None:
        """Raises Mistake for a file of the user's that is not read, since there is another one of its name."""
        paths = [os.path.join(source.path, f"{file}.yaml") for source in self._sources if source.is_config(file)]
        for path in paths[1:]:
            if not os.path.samefile(path, paths[0]):
                group, _, option = file.rpartition("/")
                first = f"there is another {group}={option}, which comes first; give the file another name"
                raise Mistake(f"{shown(path)}: {first}")

    def _refuse_paths(self, group: str, choice: Any) -> None:
        """Raises Mistake for an option that is not a file's stem. Hydra takes `./gpt2` and `gpt2.yaml` for `gpt2`."""
        for option in map(str, as_list(choice)):
            if option != option_of_path(option):
                raise Mistake(no_such_option(group, option, self.options(group)))

    def _check_is_there(self, group: str, choice: Any) -> None:
        """Raises Mistake if an option is a file that Hydra does not take for one. Hydra reports all other names."""
        for option in map(str, as_list(choice)):
            if any(source.is_config(f"{group}/{option}") for source in self._sources):
                continue
            stem = option.removesuffix(".yaml")
            nearly = re.compile(re.escape(stem) + r"(\.ya?ml)?(\.txt)?", re.IGNORECASE)
            own = os.path.realpath(CONF)
            users = (source for source in self._sources if os.path.realpath(source.path) != own)
            for folder in (os.path.join(source.path, group) for source in users):
                for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
                    if nearly.fullmatch(name):
                        why = _why_not_an_option(os.path.join(folder, name), group, stem)
                        raise Mistake(f"{group}={option}: {why}")

    @staticmethod
    def _of(composed: DictConfig) -> dict[str, Any]:
        values: dict[str, Any] = OmegaConf.to_container(composed.hydra, resolve=False)  # type: ignore[assignment]
        return values

    def compose_defaults(self, choices: Mapping[str, Any]) -> DictConfig:
        """The composition without an experiment: with the same options of the other groups, and nothing set in them."""
        if choices.get("experiment") is None:
            return self.compose(choices)
        return self.compose({group: self._chosen(choices)[group] for group in self.groups if group != "experiment"})

    def not_default(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """The option of each group of a point that is not the default; model and workload are named in any case."""
        chosen = self._chosen(choices)
        return {"inputs": chosen["inputs"]} if chosen["inputs"] != self._default_choices["inputs"] else {}

    def _chosen(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """The option of every group, those included that files choose."""
        self.compose(choices)
        return self._choices[as_text(dict(choices))]

    def option(self, group: str, choice: Any) -> str:
        """An option of a group as it is typed in Hydra's grammar. Raises Mistake for several."""
        if isinstance(choice, list) and group in PLANNING_GROUPS:
            return "[" + ",".join(QuotedString(str(each), Quote.single).with_quotes() for each in choice) + "]"
        if isinstance(choice, (list, dict)):
            raise Mistake(f"{group}={typed(choice)}: takes one option; {group}=A,B tries both")
        # Quoted, so that an option named like a number stays a name.
        return QuotedString(typed(choice), Quote.single).with_quotes()

    def check_settings(self, defaults: DictConfig, values: Iterable[tuple[str, Any]]) -> None:
        """Raises Mistake for a key of an option that its files do not have, and for a value of another type.

        `defaults`: the composition without an experiment. `values`: the experiment's, by dotted key.
        """
        for key, value in values:
            if key.partition(".")[0] not in ("model", "workload", "inputs", "quality"):
                continue
            try:
                self.updated(defaults, key, value, added=True)
            except Mistake as mistake:
                parts = value.split(",") if isinstance(value, str) else value
                if not isinstance(parts, list) or len(parts) < 2 or isinstance(OmegaConf.select(defaults, key), str):
                    raise
                what, _, _ = str(mistake).partition("; write ")
                raise Mistake(f"{what}; write {several(key, parts)} to try each") from None

    def update(self, config: DictConfig, key: str, value: Any, added: bool) -> None:
        """Set one key, whose type stays. Raises Mistake. `added`: it was typed with a +."""
        if f"{key}.".startswith(PARAMS) and "params" not in config.workload:
            raise Mistake(f"{key}: workload={config.workload.get('name')} takes no params; workload=custom does")
        if key == PARAMS.rstrip(".") and isinstance(value, dict):  # as if each of them had been typed
            for name, each in value.items():
                self.update(config, f"{PARAMS}{name}", each, added)
            return
        free = _takes_any(key, added)
        if key == ENV.rstrip(".") and isinstance(value, dict):
            raise Mistake(f"{key}={typed(value)}: write each variable, as in {ENV}{next(iter(value), 'NAME')}=1,2")
        if not free:
            value = self._of_its_type(config, key, value)
        try:
            OmegaConf.update(config, key, value, merge=True, force_add=free)
        except (ConfigKeyError, ConfigAttributeError) as error:
            raise Mistake(no_such_key(key, value, error)) from None
        except ValidationError:
            raise Mistake(wrong_type(key, value)) from None
        except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
            raise Mistake(f"{key}={typed(value)}: {first_line(error)}") from None

    def updated(self, config: DictConfig, key: str, value: Any, added: bool) -> Any:
        """The value that the key has after `update`, in a copy of the configuration. Raises Mistake."""
        if not _takes_any(key, added):
            value = self._of_its_type(config, key, value)
            if type(value) in (bool, int, float, str) and type(value) is type(OmegaConf.select(config, key)):
                return value  # a copy of OmegaConf's nodes takes 2 ms
        config = copy.deepcopy(config)
        self.update(config, key, value, added)
        return OmegaConf.select(config, key)

    def _of_its_type(self, config: DictConfig, key: str, value: Any) -> Any:
        """The value converted to the type of the present one: keys of groups have no other schema. Raises Mistake."""
        root, _, rest = key.partition(".")
        if key in SWITCH_KEYS and isinstance(value, (int, float)) and not isinstance(value, bool):
            raise Mistake(wrong_type(key, value))  # OmegaConf would make `True` of 4
        if key in TEXT_KEYS and isinstance(value, (bool, int, float)):
            return typed(value)  # as it was typed: OmegaConf would make `True` of true
        if root not in ("model", "workload", "inputs", "quality") or (isinstance(value, str) and "${" in value):
            return value
        if not rest and root == "quality":
            raise Mistake(f"{key}={typed(value)}: has keys of its own, as in quality.target=mywork:accuracy")
        if not rest:
            raise Mistake(f"{key}={typed(value)}: must be one of {some_of(self.options(root), root)}")
        if rest.partition(".")[0] in ("name", *WORKLOAD_RULES):
            instead = f"; write {root}={value}" if rest == "name" and value in self.options(root) else ""
            raise Mistake(f"{key} defines {root}={config[root].get('name')} and cannot be changed{instead}")
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
            if type(is_now).__name__ in TYPE_NAMES and value is not None and type(value) is not type(is_now):
                raise Mistake(wrong_type(key, value, is_now))
        return value


def _needed(group: str, option: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys that an option has to have, each with an example."""
    yield "name", "mine"
    if group == "model":
        yield "library", "transformers"
        if option["library"] == "torch":
            yield "width", "512"
        elif "path" not in option:
            yield "model_type", "llama"
            yield "config", "{hidden_size: 256}"


def _takes_any(key: str, added: bool) -> bool:
    """Whether a key takes a value of any type, or is one of any name."""
    return key.startswith((PARAMS, ENV, REFERENCE, *NAMED_KEYS)) or (added and key.startswith(MODEL_CONFIG))


def _why_not_an_option(path: str, group: str, stem: str) -> str:
    """Why a file is not the option that was typed, although its name is nearly the same."""
    name = os.path.basename(path)
    if os.path.isdir(path):
        return f"{shown(path)} is a folder, and must be a file"
    if not os.path.exists(path):
        return f"{shown(path)} is a link to a file that does not exist"
    cure = f"write {group}={name.removesuffix('.yaml')}" if name.endswith(".yaml") else f"rename it to {stem}.yaml"
    return f"the file is {shown(path)}; {cure}"


def resolved(config: DictConfig) -> dict[str, Any]:
    try:
        resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except MissingMandatoryValue as error:
        examples = {"workload.target": "mywork:run", "workload.argv": "[python,train.py,--bs,'{batch}']"}
        example = examples.get(str(error.full_key), "...")
        raise Mistake(f"{error.full_key} has no value: give it one, as in {error.full_key}={example}") from None
    except OmegaConfBaseException as error:
        if "HydraConfig was not set" in str(error):
            raise Mistake(f"{error.full_key}: ${{hydra:...}} has no value, since Hydra runs no job here") from None
        raise Mistake(f"{error.full_key}: {first_line(error)}") from None
    return resolved

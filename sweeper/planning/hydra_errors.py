"""The errors of Hydra and OmegaConf as one-line messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf import Container, DictConfig, Node, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from sweeper.errors import Mistake
from sweeper.plan import dotted, typed
from sweeper.planning import suggestions
from sweeper.planning.schema import TYPE_NAMES, WORKLOAD_RULES, expected_type
from sweeper.planning.suggestions import GROUPS, no_such_key_of, no_such_option
from sweeper.planning.synonyms import FALSE, TRUE
from sweeper.planning.typed_numbers import SECONDS, not_whole, seconds

RENAMED = {"workload.concurrency": "workload.prompt_lengths, the number of different prompt lengths"}


def wrong_type(key: str, value: Any, is_now: Any = None) -> str:
    """The message for a value of another type than the schema gives the key, or than the value that it has now."""
    wanted = expected_type(key) if is_now is None else TYPE_NAMES[type(is_now).__name__]
    text, now = typed(value), "" if is_now is None else f"; it is {typed(is_now)} now"
    if wanted == TYPE_NAMES["int"]:
        return not_whole(key, text, now)
    if wanted == TYPE_NAMES["dict[str, Any]"]:
        return f"{key}={text}: must be {wanted}{now}; write {key}.NAME={text}"
    if key in SECONDS and (instead := seconds(key, text)):
        return f"{key}={text}: must be a number of seconds{now}; write {instead}"
    is_switch = wanted == TYPE_NAMES["bool"]
    right = "true" if text.lower() in TRUE else "false" if text.lower() in FALSE else None
    return f"{key}={text}: must be {wanted}{now}" + (f"; write {key}={right}" if is_switch and right else "")


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a Mistake."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserWarning) as error:
        raise Mistake(_explanation(error)) from None


def _explanation(error: Exception) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        file = str(error.missing_cfg_file)
        group, _, option = (
            file.partition("/") if file.startswith(tuple(f"{each}/" for each in GROUPS)) else file.rpartition("/")
        )
        return no_such_option(group, option, sorted(error.options or ()))
    cause = _of_omegaconf(error)
    if cause is None or not cause.full_key:
        return first_line(error) if str(error) else first_line(cause or error)
    named = re.match(r"In '(.+?)': ", str(error))
    where = f"in {named[1]}.yaml: " if named else ""
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return where + no_such_key(cause.full_key, cause.value, cause)
    if isinstance(cause, ValidationError):
        return where + wrong_type(cause.full_key, _plain(cause.value))
    return f"{where}{cause.full_key}: {first_line(cause)}"


def _plain(value: Any) -> Any:
    """The value without OmegaConf's own classes."""
    if isinstance(value, Container):
        return OmegaConf.to_container(value, resolve=False)
    return value._value() if isinstance(value, Node) else value


def _of_omegaconf(error: BaseException) -> OmegaConfBaseException | None:
    """Hydra's errors name the file or the override; the key is in their cause."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    return cause


def no_such_key(key: str, value: Any, error: OmegaConfBaseException) -> str:
    if key in RENAMED:
        return f"no such key: {key}; it is called {RENAMED[key]}"
    root, dot, _ = key.partition(".")
    text = "null" if value is None else typed(value)
    if not dot or not isinstance(error.parent_node, DictConfig):
        return suggestions.no_such_key(key, text)
    values: Any = OmegaConf.to_container(error.parent_node._get_root(), resolve=False)
    values = values.get(root) or {}
    known = [each for each, _ in dotted(values) if each.partition(".")[0] not in ("name", *WORKLOAD_RULES)]
    return no_such_key_of(root, str(values.get("name") or ""), key, text, known)


def first_line(error: BaseException) -> str:
    """The message as one line, without those that OmegaConf adds about its own types."""
    where = re.compile(r"\s*(full_key|object_type|reference_type)\b")
    lines = [line.strip() for line in str(error).splitlines() if not where.match(line)]
    return " ".join(line for line in lines if line) or type(error).__name__

"""The errors of Hydra and OmegaConf as one-line messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import Container, DictConfig, Node, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from sweeper.errors import Mistake, did_you_mean
from sweeper.plan import typed
from sweeper.planning.schema import expected_type

RENAMED = {"workload.concurrency": "workload.prompt_lengths, the number of different prompt lengths"}


def whole_number_hint(value: Any) -> str:
    """` (1000)` after 1e3 or 2.0, which Hydra reads as floats."""
    return f" ({int(value)})" if isinstance(value, float) and value.is_integer() else ""


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a Mistake."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserWarning) as error:
        raise Mistake(_explanation(error)) from None


def _explanation(error: Exception) -> str:
    if isinstance(error, OverrideParseException):
        form = """write key=value, key=value,value to try several, 'key="value"' if it has special characters"""
        return f"cannot read {error.override!r}: {form}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = sorted(error.options or ())
        there = f"; there are {', '.join(options)}" if options else ""
        return f"{group}={option}: no such {group}{did_you_mean(option, options)}{there}"
    cause = _of_omegaconf(error)
    if cause is None or not cause.full_key:
        return first_line(error) if str(error) else first_line(cause or error)
    file = re.match(r"In '(.+?)': ", str(error))
    where = f"in {file[1]}.yaml: " if file else ""
    if isinstance(cause, (ConfigKeyError, ConfigAttributeError)):
        return where + no_such_key(cause.full_key, cause)
    if isinstance(cause, ValidationError):
        value = _plain(cause.value)
        wanted = f"{expected_type(cause.full_key)}{whole_number_hint(value)}"
        return f"{where}{cause.full_key}={typed(value)}: must be {wanted}"
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


def no_such_key(key: str, error: OmegaConfBaseException, groups: Sequence[str] = ()) -> str:
    if key in RENAMED:
        return f"no such key: {key}; it is called {RENAMED[key]}"
    path, _, last = str(error.full_key or key).rpartition(".")
    known = map(str, error.parent_node) if isinstance(error.parent_node, DictConfig) else ()
    if not path:
        return f"no such key: {key}{did_you_mean(last, [*groups, *known])}"
    root = key.partition(".")[0]
    option = error.parent_node._get_root().get(root, {}).get("name")
    of = f" with {root}={option}" if option else ""
    return f"no such key: {key}{of}{did_you_mean(last, known).replace('mean ', f'mean {path}.')}"


def first_line(error: BaseException) -> str:
    """The message as one line, without those that OmegaConf adds about its own types."""
    where = re.compile(r"\s*(full_key|object_type|reference_type)\b")
    lines = [line.strip() for line in str(error).splitlines() if not where.match(line)]
    return " ".join(line for line in lines if line) or type(error).__name__

"""Hydra's own keys. All that sweeper does not use are refused, with the key that does what they would.

Hydra composes the configuration and nothing else: sweeper starts the processes, and writes the folders itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sweeper.plan import dotted

USED = ("hydra.searchpath",)
REPLACEMENTS = (
    (r"hydra[./]sweeper\b", "an experiment file lists values under grid:, and a command line as in batch=1,2,4"),
    (r"hydra\.(run|sweep|output_subdir)\b", "outputs= and name= choose the folder of a run"),
    (r"hydra\.job\.env_(set|copy)\b", "env.NAME=VALUE sets a variable of the measured process"),
    (r"hydra\.job\.chdir\b", "a workload runs in the folder in which sweeper is started"),
    (r"hydra\.job\.name\b", "name= names the folder of a run"),
    (r"hydra([./]launcher|[./]callbacks|\.mode)\b", "sweeper plans and starts its own processes"),
)
# Parts of Hydra's configuration that a composition fills in itself.
FILLED_IN = ("overrides", "runtime", "defaults_list", "job.override_dirname", "job.id", "job.num", "job.config_name")


def refusal(key: str) -> str | None:
    """Why one of Hydra's own keys is refused; None for a key that is used."""
    if key in USED:
        return None
    instead = next((text for pattern, text in REPLACEMENTS if re.match(pattern, key)), None)
    return f"sweeper does not use it; {instead}" if instead else "sweeper does not use it; leave it out"


def groups_in(groups: Iterable[str]) -> Iterator[str]:
    """Hydra's groups among those of a defaults list. They have no effect, since sweeper's own choice remains."""
    yield from (group.lstrip("/") for group in groups if re.match("/?hydra/", group))


def keys_in(header: Mapping[str, Any], values: Any) -> Iterator[str]:
    """Hydra's keys among those of a file. `header`: with the package that the file is put into."""
    if header.get("package") == "_global_" and isinstance(values, Mapping):
        yield from (f"hydra.{key}" for key, _ in dotted(values.get("hydra") or {}))


def changed(own: Mapping[str, Any], composed: Mapping[str, Any]) -> Iterator[str]:
    """The keys and groups of Hydra that files changed. `own`: Hydra's part of sweeper's own configuration."""
    before, after = _choices(own), _choices(composed)
    yield from (group for group in after if after[group] != before.get(group))
    yield from _different("", own, composed)


def _choices(hydra: Mapping[str, Any]) -> dict[str, Any]:
    """The option of each of Hydra's groups, such as `hydra/launcher`."""
    return {group: each for group, each in hydra["runtime"]["choices"].items() if group.startswith("hydra/")}


def _different(prefix: str, own: Any, composed: Any) -> Iterator[str]:
    if prefix in FILLED_IN:
        return
    if isinstance(own, Mapping) and isinstance(composed, Mapping):
        for key in dict.fromkeys([*own, *composed]):
            yield from _different(f"{prefix}.{key}".lstrip("."), own.get(key), composed.get(key))
    elif own != composed:
        yield f"hydra.{prefix}"

"""The keys of a run, checked."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from runners.outcome import Status
from sweeper import quality
from sweeper.errors import Mistake, did_you_mean
from sweeper.frontier.margins import WORDS
from sweeper.objective import Objective
from sweeper.plan import RunKeys, typed
from sweeper.planning.keys import _at_least, _one_of, _positive, _size, listed
from sweeper.planning.settling import _leaves
from sweeper.units import SIZE

LONGEST_NAME = 200


RETRIED = tuple(str(each) for each in Status if each not in (Status.OK, Status.SKIPPED, Status.NOT_RUN))


def run_keys(config: Mapping[str, Any]) -> RunKeys:
    """How the run is made. Raises Mistake."""
    if not config["outputs"]:
        raise Mistake("outputs=: name a folder")
    return RunKeys(
        name=_run_name(config["name"]),
        outputs=config["outputs"],
        python=interpreter(config["python"]),
        retry=_retry(listed(config["retry"])),
        resume=_one_of("resume", config["resume"]),
        stop_after_same_error=_at_least("stop_after_same_error", config["stop_after_same_error"]),
        objective=Objective.parse(config["objective"]),
        confirm=_one_of("confirm", config["confirm"]),
        repeat_points=_at_least("repeat_points", config["repeat_points"]),
        margin={str(name): _term(str(name), value) for name, value in config["margin"].items()},
        heartbeat=_positive("heartbeat", config["heartbeat"]),
        parallel=config["parallel"],
        trace=_one_of("trace", config["trace"]),
        quality=quality.fixed(config["quality"]),
    )


def _run_name(name: str | None) -> str | None:
    if name is not None and len(name) > LONGEST_NAME:
        raise Mistake(f"name={name[:20]}...: must be {LONGEST_NAME} letters or less, and has {len(name)}")
    if name is not None and (not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name in (".", "..")):
        raise Mistake(f"name={name}: must be letters, digits, '.', '_' and '-', and is a folder's name in outputs")
    return name


def resolutions(config: Mapping[str, Any], intervals: Collection[str]) -> dict[str, int]:
    """How finely each interval is searched, by its key. Raises Mistake."""
    found = dict(_leaves(config["resolution"]))
    for key, value in found.items():
        if key not in intervals:
            known = ", ".join(intervals) or "there is none"
            raise Mistake(f"resolution.{key}={typed(value)}: is of an interval that is searched ({known})")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Mistake(f"resolution.{key}={typed(value)}: must be a whole number, 1 or more")
    return {key: found.get(key, 1) for key in intervals}


def _term(name: str, value: Any) -> int | str:
    """A term of the margin: bytes that the user assumes, or where rows of the run tell it from."""
    if not isinstance(value, str) or value not in WORDS:
        return _size(f"margin.{name}", value, least=0)
    if name not in WORDS[value]:
        verb = "measures" if value == "measured" else "calculates"
        raise Mistake(f"margin.{name}={value}: a run {verb} {', '.join(WORDS[value])}; give bytes, as in {SIZE}")
    return value


def _retry(statuses: Iterable[Any]) -> tuple[str, ...]:
    asked = [str(status) for status in statuses]
    for status in asked:
        if status not in (*RETRIED, "all"):
            near = did_you_mean(status, RETRIED)
            raise Mistake(f"retry={status}: must be all, or statuses out of {', '.join(RETRIED)}{near}")
    return RETRIED if "all" in asked else tuple(dict.fromkeys(asked))


def interpreter(python: str | None) -> str:
    """The measured interpreter, as an absolute path. A link stays one: the environment of a venv hangs on its name."""
    if python is None:
        return sys.executable
    name = os.path.expanduser(python)
    found = shutil.which(name)
    if found is None:
        path = Path(name)
        if path.is_dir():
            raise Mistake(f"python={python}: is a folder; name the interpreter, as in {path / 'bin' / 'python'}")
        why = "is not executable" if path.exists() else "is neither a file nor a name on PATH"
        raise Mistake(f"python={python}: {why}")
    return os.path.abspath(found)

"""Checks the keys of a run and converts them to RunKeys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from runners.outcome import Status
from sweeper import quality
from sweeper.confirm import Confirm
from sweeper.errors import Mistake
from sweeper.frontier.margins import WORDS
from sweeper.interpreter import interpreter
from sweeper.objective import Objective
from sweeper.plan import RunKeys, dotted, typed
from sweeper.planning.schema import as_list
from sweeper.planning.suggestions import instead_of
from sweeper.planning.value_checks import at_least, one_of, positive_seconds, size_in_bytes
from sweeper.units import SIZE

MAXIMUM_NAME_LENGTH = 200
RETRYABLE = tuple(str(each) for each in Status if each not in (Status.OK, Status.SKIPPED, Status.NOT_RUN))


def run_keys(config: Mapping[str, Any]) -> RunKeys:
    """Raises Mistake for the first run key that is not valid."""
    if not config["outputs"]:
        raise Mistake("outputs=: name a folder")
    return RunKeys(
        name=_run_name(config["name"]),
        outputs=config["outputs"],
        python=interpreter(config["python"]),
        retry=_retry(as_list(config["retry"])),
        resume=one_of("resume", config["resume"]),
        stop_after_same_error=at_least("stop_after_same_error", config["stop_after_same_error"]),
        objective=Objective.parse(config["objective"]),
        edge=one_of("edge", config["edge"]),
        confirm=_confirm(config["confirm"]),
        repeat_points=at_least("repeat_points", config["repeat_points"]),
        margin={str(name): _margin_term(str(name), value) for name, value in config["margin"].items()},
        heartbeat=positive_seconds("heartbeat", config["heartbeat"]),
        parallel=config["parallel"],
        trace=one_of("trace", config["trace"]),
        quality=quality.fixed(config["quality"]),
    )


def _run_name(name: str | None) -> str | None:
    if name is not None and len(name) > MAXIMUM_NAME_LENGTH:
        raise Mistake(f"name={name[:20]}...: must be {MAXIMUM_NAME_LENGTH} letters or less, and has {len(name)}")
    if name is not None and (not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name in (".", "..")):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
        write = f"; write name={plain}" if plain else ""
        raise Mistake(f"name={name}: must be letters, digits, '.', '_' and '-': a folder's name in outputs{write}")
    return name


def resolutions(config: Mapping[str, Any], intervals: Collection[str]) -> dict[str, int]:
    """The resolution of each searched interval by its key, 1 where none is given. Raises Mistake."""
    found = dict(dotted(config["resolution"]))
    for key, value in found.items():
        if key not in intervals:
            known = ", ".join(intervals) or "there is none"
            raise Mistake(f"resolution.{key}={typed(value)}: must name an interval that is searched ({known})")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Mistake(f"resolution.{key}={typed(value)}: must be a whole number, 1 or more")
    return {key: found.get(key, 1) for key in intervals}


def _margin_term(name: str, value: Any) -> int | str:
    """A term of the margin: bytes that the user assumes, or `measured` or `calculated` if the run supplies them."""
    if not isinstance(value, str) or value not in WORDS:
        return size_in_bytes(f"margin.{name}", value, minimum=0)
    if name not in WORDS[value]:
        verb = "measures" if value == "measured" else "calculates"
        raise Mistake(f"margin.{name}={value}: a run {verb} {', '.join(WORDS[value])}; give bytes, as in {SIZE}")
    return value


def _confirm(text: str) -> str:
    try:
        Confirm.parse(text)
    except Mistake as mistake:
        raise Mistake(f"{mistake}{instead_of('confirm', text, ())}") from None
    return text


def _retry(statuses: Iterable[Any]) -> tuple[str, ...]:
    named = [typed(status) for status in statuses]
    for status in named:
        if status not in (*RETRYABLE, "all"):
            near = instead_of("retry", status, RETRYABLE)
            raise Mistake(f"retry={status}: must be all, or statuses out of {', '.join(RETRYABLE)}{near}")
    return RETRYABLE if "all" in named else tuple(dict.fromkeys(named))

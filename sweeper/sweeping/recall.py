"""Whether what an earlier sweep measured can stand for what would be measured now."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners import launch_command
from runners.device import Card, Device
from runners.fingerprint import code_names
from runners.outcome import Outcome
from runners.point import Attempt, Point, canonical
from sweeper.errors import Mistake

DESCRIBES = ("sources", "price_per_hour", "bandwidth_bytes_per_s")  # of a card, and moves no memory


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What decides it, as it is now: versions and settings, and a hash of each workload's own code."""

    identity: Mapping[str, str | None]
    code: Mapping[str, str | None]  # by the names of what is measured, as runners.fingerprint has them, in JSON


def current_fingerprint(python: str, points: Sequence[Point]) -> Fingerprint:
    """Ask the measured interpreter. Raises Mistake if it cannot say."""
    names = {canonical(each): each for each in map(code_names, points)}
    asked = launch_command.command(python, "fingerprint", json.dumps(list(names.values())))
    answer = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        told = json.loads(answer.stdout)
    except ValueError:
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        raise Mistake(f"python={python}: cannot be asked for its versions: {last[0]}") from None
    return Fingerprint(identity=told["identity"], code=told["code"])


def difference(then: Attempt, outcome: Outcome, now: Fingerprint, device: Device) -> str | None:
    """The first thing that is not as it was, with both values; None if the outcome can be recalled."""
    was: dict[str, Any] = {**(then.identity or {}), "the device's UUID": then.device.uuid}
    present: dict[str, Any] = {**now.identity, "the device's UUID": device.uuid}
    if device.card is not None and then.device.card is not None:
        was |= _card(then.device.card)
        present |= _card(device.card)
    code = outcome.environment.get("workload_code")
    if code is not None:  # an attempt that did not come as far as its workload says nothing of its code
        names = code_names(then.point)
        what = f"the code of {', '.join(names)}"
        was[what], present[what] = code, now.code.get(canonical(names))
    for what, value in was.items():
        if value != present.get(what):
            return f"{what} was {_said(value)} when it was measured, and is {_said(present.get(what))} now"
    return None


def _card(card: Card) -> dict[str, Any]:
    """What of a card decides what is calculated with it, by how a person would call it."""
    return {f"the card's {key}": value for key, value in card.to_json().items() if key not in DESCRIBES}


def _said(value: Any) -> str:
    return "not there" if value is None else str(value)

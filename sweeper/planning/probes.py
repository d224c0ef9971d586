"""Asks the measured interpreter what only it can know: its devices, and what a function of the user's takes.

The question is asked while Hydra composes here: an answer takes as long as importing torch, or the user's module.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from runners import launch_command
from sweeper.errors import Mistake
from sweeper.planning import devices
from sweeper.planning.run_keys import interpreter
from sweeper.planning.settling import Signature

SECONDS = 120  # a driver that hangs hangs for ever, and the slowest `import torch` met took 40


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe that was started, and what it was asked."""

    process: subprocess.Popen[str]
    python: str
    devices: bool
    target: str | None


class Probes:
    """Each question is asked once. What is still running at the end is ended: nobody waits for it."""

    def __init__(self) -> None:
        self._started: list[Probe] = []
        self._answers: dict[int, Mapping[str, Any]] = {}

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for asking in self._started:
            asking.process.kill()
            asking.process.communicate()

    def foresee(self, arguments: Sequence[str]) -> None:
        """Start what the arguments, unparsed, will lead to asking. A wrong guess costs a process and nothing else."""
        given = dict(argument.split("=", 1) for argument in arguments if re.match(r"[a-z.]+=.", argument))
        target = given.get("workload.target", "")
        wanted = given.get("devices", "auto").strip("[]")
        asks_devices = devices.gpu_driver() if wanted in ("auto", "all") else "cuda" in wanted
        asks_target = re.fullmatch(r"[\w.]+:[\w.]+", target) is not None
        with suppress(Mistake):  # said later, by whom it concerns
            if asks_devices or asks_target:
                self._start(interpreter(given.get("python")), asks_devices, target if asks_target else None)

    def devices(self, python: str) -> Mapping[str, Any]:
        asking = next((each for each in self._started if each.python == python and each.devices), None)
        return self._answer(asking or self._start(python, True, None))

    def signature(self, python: str, key: str, target: str) -> Signature:
        """What the user's function at a key takes. Raises Mistake with the root cause where it cannot be imported."""
        asking = next((each for each in self._started if each.python == python and each.target == target), None)
        told = self._answer(asking or self._start(python, False, target))["target"]
        if "error" in told:
            raise Mistake(f"{key}={target}: {told['error']}")
        return Signature(
            parameters=tuple(told["parameters"]),
            required=tuple(told.get("required", ())),
            takes_any=bool(told["takes_any"]),
        )

    def _start(self, python: str, asks_devices: bool, target: str | None) -> Probe:
        asked = json.dumps({"devices": asks_devices, "target": target})
        try:
            process = subprocess.Popen(
                launch_command.command(python, "probe", asked),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise Mistake(f"python={python}: cannot be started: {error.strerror or error}") from None
        asking = Probe(process, python, asks_devices, target)
        self._started.append(asking)
        return asking

    def _answer(self, asking: Probe) -> Mapping[str, Any]:
        if id(asking) not in self._answers:
            self._answers[id(asking)] = _wait(asking)
        return self._answers[id(asking)]


def _wait(asking: Probe) -> Mapping[str, Any]:
    try:
        out, words = asking.process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        what = asking.target or "its devices"
        raise Mistake(f"python={asking.python}: no word about {what} in {SECONDS} seconds") from None
    for line in reversed(out.splitlines()):
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
    last = words.strip().splitlines()[-1:] or [f"it ended with {asking.process.returncode} and without a word"]
    raise Mistake(f"python={asking.python}: cannot be asked what is there: {last[0]}")

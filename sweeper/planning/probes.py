"""Queries the measured interpreter for its devices, a checkpoint on the hub, and the signature of a user's function.

A probe takes as long as importing torch or the user's module, so it is started before Hydra composes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from runners import launch_command
from runners.models import checkpoints
from sweeper.errors import Mistake
from sweeper.inquiry import TIMEOUT_SECONDS, Inquiry, Unanswered
from sweeper.interpreter import interpreter
from sweeper.plan import typed
from sweeper.planning import devices
from sweeper.planning.model_checks import configuration_in, read_configuration
from sweeper.planning.point_checks import Signature

TARGET = r"[\w.]+:[\w.]+"


@dataclass(frozen=True, slots=True)
class Probe:
    """A running probe, with what it was started to report."""

    inquiry: Inquiry
    python: str
    devices: bool
    target: str | None


class Probes:
    """Starts each probe once. Those still running at the end are ended, with what they started."""

    def __init__(self) -> None:
        self._started: list[Probe] = []
        self._checkpoints: dict[tuple[str, str, str | None], Inquiry] = {}  # by interpreter, name on the hub, revision
        self._configurations: dict[tuple[str, str, str | None], Mapping[str, Any]] = {}
        self._foreseen: list[tuple[str, str]] = []  # interpreters and targets whose probes have to wait for a core

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for inquiry in (*(probe.inquiry for probe in self._started), *self._checkpoints.values()):
            inquiry.end()

    def foresee(self, arguments: Sequence[str]) -> None:
        """Start the probes that unparsed arguments will need. A wrong guess costs a process and nothing else."""
        given = dict(argument.split("=", 1) for argument in arguments if re.match(r"[a-z.]+=.", argument))
        targets = [each for each in given.get("workload.target", "").split(",") if re.fullmatch(TARGET, each)]
        wanted = given.get("devices", "auto").strip("[]")
        for path in (each for each in given.get("model.path", "").split(",") if not checkpoints.is_local(each)):
            with suppress(Mistake):
                self._look_up(interpreter(given.get("python")), path, given.get("model.revision"))
        needs_devices = devices.gpu_driver() if wanted in ("auto", "all") else "cuda" in wanted
        if not (needs_devices or targets):
            return
        first, *others = dict.fromkeys(targets) or [None]
        with suppress(Mistake):  # reported when the answer is needed
            python = interpreter(given.get("python"))
            self._start(python, needs_devices, first)
            self._foreseen = [(python, each) for each in others if each is not None]
            self._start_foreseen()

    def devices(self, python: str) -> Mapping[str, Any]:
        """The devices of an interpreter, as runners.probe reports them. Raises Mistake if it gives no answer."""
        probe = next((each for each in self._started if each.python == python and each.devices), None)
        return _answer(probe or self._start(python, True, None), f"python={python}: no report on its devices")

    def configuration(self, python: str, path: str, revision: str | None) -> Mapping[str, Any]:
        """The configuration of a checkpoint, in its folder or on the hub. Raises Mistake with the cause."""
        if checkpoints.is_local(path):
            return configuration_in(path)
        key = python, path, revision
        if key not in self._configurations:
            try:
                found = self._look_up(*key).answer()
            except Unanswered as unanswered:
                why = unanswered.why or f"no answer within {TIMEOUT_SECONDS:g} seconds"
                raise Mistake(f"model.path={path}: cannot be looked up with python={python}: {why}") from None
            if "error" in found:
                raise Mistake(found["error"])
            self._configurations[key] = read_configuration(Path(found["file"]), path)
        return self._configurations[key]

    def _look_up(self, python: str, path: str, revision: str | None) -> Inquiry:
        key = python, path, revision
        if key not in self._checkpoints:
            self._checkpoints[key] = Inquiry(python, "models.checkpoints", path, revision or "")
        return self._checkpoints[key]

    def signature(self, python: str, key: str, target: str) -> Signature:
        """The signature of the function that a key names. Raises Mistake with the cause if it cannot be imported."""
        if not isinstance(target, str):
            raise Mistake(f"{key}={typed(target)}: must name a function, as in {key}=mywork:run")
        probe = next((each for each in self._started if each.python == python and each.target == target), None)
        slow = f"{key}={target}: {target.partition(':')[0]} was not imported"
        self._foreseen = [each for each in self._foreseen if each != (python, target)]
        try:
            found = _answer(probe or self._start(python, False, target), slow)["target"]
        finally:
            with suppress(Mistake):
                self._start_foreseen()
        if "error" in found:
            as_module = re.fullmatch(r"(?:\./)?([\w/]+)\.py:(\w+)", target)
            instead = f"; write {key}={as_module[1].replace('/', '.')}:{as_module[2]}" if as_module else ""
            raise Mistake(f"{key}={target}: {found['error']}{instead}")
        return Signature(
            parameters=tuple(found["parameters"]),
            required=tuple(found.get("required", ())),
            takes_any=bool(found["takes_any"]),
        )

    def _start_foreseen(self) -> None:
        """Start probes of further targets: as many beside each other as there are cores, since each imports torch."""
        under_way = sum(not probe.inquiry.has_answered for probe in self._started)
        while self._foreseen and under_way < (os.cpu_count() or 1):
            python, target = self._foreseen.pop(0)
            self._start(python, False, target)
            under_way += 1

    def _start(self, python: str, needs_devices: bool, target: str | None) -> Probe:
        question = json.dumps({"devices": needs_devices, "target": target})
        probe = Probe(Inquiry(python, "probe", question), python, needs_devices, target)
        self._started.append(probe)
        return probe


def _answer(probe: Probe, slow: str) -> Mapping[str, Any]:
    """What a probe reports. Raises Mistake; `slow` begins its line if the time is over."""
    try:
        return probe.inquiry.answer()
    except Unanswered as unanswered:
        if unanswered.why is None:
            raise Mistake(f"{slow} within {TIMEOUT_SECONDS:g} seconds") from None
        if program := launch_command.other_program(probe.python):
            raise Mistake(f"python={probe.python}: is no Python interpreter, but {program}") from None
        raise Mistake(f"python={probe.python}: cannot be probed: {unanswered.why}") from None

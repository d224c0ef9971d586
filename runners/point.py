"""What is measured: one settled configuration, one attempt at it, and the name of every file an attempt leaves."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.device import Card, Device
from runners.facts import Exit, exit_from_json, exit_to_json

FORMAT = 1  # of point.json, journal.jsonl and exit.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One configuration: a value for every key that can change what is measured, nested as in conf/, JSON types only.

    Two spellings that settle to the same values are the same point: the id is a hash of the values.
    """

    values: Mapping[str, Any]
    _id: str = field(default="", init=False, repr=False, compare=False)  # computed when it is first needed

    @property
    def id(self) -> str:
        if not self._id:
            object.__setattr__(self, "_id", hashlib.sha256(canonical(self.values).encode()).hexdigest()[:16])
        return self._id

    def __getitem__(self, key: str) -> Any:
        """The value at a dotted key, as it is typed on the command line; a group's own name gives its option's name.

        Raises KeyError for a key the point does not have.
        """
        value: Any = self.values
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise KeyError(key)
            value = value[part]
        if isinstance(value, Mapping) and "name" in value:
            return value["name"]
        return value

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


def canonical(values: Any) -> str:
    """The one JSON spelling of a value: sorted keys, no spaces."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One point, on one device, in one new process, once: everything the measured process is told."""

    point: Point
    device: Device
    number: int = 1  # 1 for the first attempt of this point on this device
    environ: Mapping[str, str | None] | None = None  # set (or, with None, removed) before the interpreter starts
    cwd: str = "."
    heartbeat: float = 0.2  # seconds between readings inside a phase
    locks: tuple[str, ...] = ()  # held by the supervisor while the attempt runs: one at a time on each of its devices
    trace: bool = False  # if it ends by an exception, the allocator's history is kept
    engine: str = "local"
    followed: str | None = None  # the file that its attempts share, and the other cards of its architecture
    identity: Mapping[str, str | None] | None = None  # versions and settings when it was asked: runners.fingerprint

    @property
    def timeout(self) -> float | None:
        timeout: float | None = self.point.get("timeout")
        return timeout

    @property
    def warm(self) -> bool:
        """Whether it is a copy of a template. One that is calculated is: nothing of its process is measured."""
        return self.device.is_calculated or bool(self.point.get("start") == "warm")

    @property
    def name(self) -> str:
        """The attempt folder's path below `points/`. Ids only: nothing that a user typed becomes a path."""
        device = re.sub(r"[^a-z0-9+.-]", "-", self.device.name)
        return f"{self.point.id[:2]}/{self.point.id}.{device}.{self.number}"

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "id": self.point.id,
            "values": self.point.values,
            "device": self.device.name,
            "attempt": self.number,
            "device_uuid": self.device.uuid,
            "environ": dict(self.environ or {}),
            "cwd": self.cwd,
            "heartbeat": self.heartbeat,
            "locks": list(self.locks),
            "trace": self.trace,
            "engine": self.engine,
            "card": None if self.device.card is None else self.device.card.to_json(),
            "followed": self.followed,
            "identity": None if self.identity is None else dict(self.identity),
        }

    @classmethod
    def from_json(cls, request: Mapping[str, Any]) -> Attempt:
        return cls(
            point=Point(values=request["values"]),
            device=_device(request),
            number=request["attempt"],
            environ=request.get("environ") or {},
            cwd=request.get("cwd", "."),
            heartbeat=request.get("heartbeat", 0.2),
            locks=tuple(request.get("locks", ())),
            trace=request.get("trace", False),
            engine=request.get("engine", "local"),
            followed=request.get("followed"),
            identity=request.get("identity"),
        )


def _device(request: Mapping[str, Any]) -> Device:
    uuid, card = request.get("device_uuid"), request.get("card")
    return Device(
        name=request["device"],
        uuids=tuple(uuid.split("+")) if uuid else (),
        card=None if card is None else Card.from_json(card),
    )


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """One attempt's folder: the only place that knows the names of its files, and who writes each."""

    path: Path

    @property
    def request(self) -> Path:
        """What was asked, written by the orchestrator before the attempt starts."""
        return self.path / "point.json"

    @property
    def journal(self) -> Path:
        """What the measured process learnt, one line each, written by it alone."""
        return self.path / "journal.jsonl"

    @property
    def exit(self) -> Path:
        """How the process ended, written by the supervisor, aside and then renamed: its presence means settled."""
        return self.path / "exit.json"

    @property
    def output(self) -> Path:
        """What the workload printed, capped, written by the supervisor."""
        return self.path / "output.log"

    @property
    def trace(self) -> Path:
        """The largest tensors that were alive at a failure on cpu, written by the measured process if asked for."""
        return self.path / "trace.json"

    @property
    def snapshot(self) -> Path:
        """The same of CUDA's allocator, with its history, as PyTorch's viewer opens it."""
        return self.path / "trace.pickle"

    @property
    def reports(self) -> Path:
        """A folder, while a program is measured: what each Python of it says at its end, one file each."""
        return self.path / "reports"

    def ask(self, attempt: Attempt) -> None:
        """Write the request. Raises FileExistsError if the folder is there: an attempt is made once."""
        self.path.mkdir(parents=True, exist_ok=False)
        write_aside(self.request, attempt.to_json())

    def asked(self) -> Attempt:
        return Attempt.from_json(json.loads(self.request.read_bytes()))

    def settle(self, exit: Exit) -> None:
        """Write how the attempt ended. Raises OSError."""
        write_aside(self.exit, {"format": FORMAT, **exit_to_json(exit)})

    def settled(self) -> Exit | None:
        """How the attempt ended, or None if its supervisor has not written it."""
        try:
            return exit_from_json(json.loads(self.exit.read_bytes()))
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return None


def write_aside(path: Path, value: Any) -> None:
    """Write JSON beside its place, then rename: a reader sees the whole of it or nothing."""
    aside = path.with_name(path.name + f".{os.getpid()}.tmp")
    try:
        aside.write_text(json.dumps(value, allow_nan=False) + "\n")
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise

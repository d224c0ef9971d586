"""A point (one configuration), an attempt at it, and the names of the files that an attempt leaves."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners import files, stored_json
from runners.device import Card, Device
from runners.facts import Exit, exit_from_json, exit_to_json
from runners.field_types import check_fields
from runners.stored_json import LARGEST_OF_AN_ATTEMPT, Damaged

FORMAT = 1  # version of point.json, journal.jsonl and exit.json
ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One configuration: a value for every key that can change what is measured, nested as in conf/.

    Values are of JSON types, and mappings are dicts. The id is a hash of them, so two spellings that settle to the same
    values are one point.
    """

    values: Mapping[str, Any]
    _id: str = field(default="", init=False, repr=False, compare=False)  # computed when it is first needed

    @property
    def id(self) -> str:
        if not self._id:
            object.__setattr__(self, "_id", hashlib.sha256(canonical(self.values).encode()).hexdigest()[:16])
        return self._id

    def __getitem__(self, key: str) -> Any:
        """The value at a dotted key, as on the command line. A group's key (`model`) gives the name of its option.

        Raises KeyError for a key that the point does not have.
        """
        value = self.get(key, ABSENT)
        if value is ABSENT:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        value: Any = self.values
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        if isinstance(value, dict) and "name" in value:
            return value["name"]
        return value


def canonical(values: Any) -> str:
    """The one JSON spelling of a value: sorted keys, no spaces."""
    return ENCODER.encode(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One point on one device, once, in a new process: everything that the measured process needs to know."""

    point: Point
    device: Device
    number: int = 1  # from 1, by point and device
    environ: Mapping[str, str | None] | None = None  # set (or, with None, removed) before the interpreter starts
    cwd: str = "."
    heartbeat: float = 0.2  # seconds between readings inside a phase
    locks: tuple[str, ...] = ()  # files that the supervisor locks meanwhile: one attempt at a time on each device
    trace: bool = False  # keep the allocator's history if the attempt ends by an exception
    engine: str = "local"
    allocation_trace: str | None = None  # a file, shared by its attempts on cards of one architecture
    identity: Mapping[str, str | None] | None = None  # versions and settings when it was planned: runners.fingerprint

    @property
    def timeout(self) -> float | None:
        """Seconds after which the supervisor ends the attempt."""
        timeout: float | None = self.point.get("timeout")
        return timeout

    @property
    def warm(self) -> bool:
        """Whether the process is forked from a template; always if it calculates, since its memory does not count."""
        return self.device.is_calculated or bool(self.point.get("start") == "warm")

    @property
    def name(self) -> str:
        """The path of the attempt's folder below `points/`. It holds ids only: what a user typed becomes no path."""
        device = re.sub(r"[^a-z0-9+.-]", "-", self.device.name)
        return f"{self.point.id[:2]}/{self.point.id}.{device}.{self.number}"

    @property
    def digest(self) -> str:
        """A hash of everything in it. Two requests with the same digest run the same code on the same point."""
        return hashlib.sha256(canonical(self.to_json()).encode()).hexdigest()

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
            "followed": self.allocation_trace,
            "identity": None if self.identity is None else dict(self.identity),
        }

    @classmethod
    def from_json(cls, request: Mapping[str, Any]) -> Attempt:
        """Raises KeyError, TypeError, ValueError or AttributeError for something else than `to_json` returns."""
        attempt = cls(
            point=Point(values=request["values"]),
            device=_device(request),
            number=request["attempt"],
            environ=request.get("environ") or {},
            cwd=request.get("cwd", "."),
            heartbeat=request.get("heartbeat", 0.2),
            locks=tuple(request.get("locks", ())),
            trace=request.get("trace", False),
            engine=request.get("engine", "local"),
            allocation_trace=request.get("followed"),
            identity=request.get("identity"),
        )
        check_fields(attempt)
        if attempt.number < 1:
            raise ValueError("attempt is not 1 or more")
        if request.get("id", attempt.point.id) != attempt.point.id:
            raise ValueError("its id is not that of its values")
        return attempt


def _device(request: Mapping[str, Any]) -> Device:
    uuid, card = request.get("device_uuid"), request.get("card")
    device = Device(
        name=request["device"],
        uuids=tuple(uuid.split("+")) if uuid else (),
        card=None if card is None else Card.from_json(card),
    )
    _ = device.type  # raises ValueError for a name of no device
    return device


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """The folder of an attempt. Only this class has the names of its files; each file has one writer."""

    path: Path

    @property
    def request(self) -> Path:
        """The attempt as JSON, written by the orchestrator before the attempt starts."""
        return self.path / "point.json"

    @property
    def journal(self) -> Path:
        """The facts of the measured process, one JSON line each, written by that process (runners.facts)."""
        return self.path / "journal.jsonl"

    @property
    def exit(self) -> Path:
        """How the process ended, written by the supervisor and renamed into place: its presence means settled."""
        return self.path / "exit.json"

    @property
    def output(self) -> Path:
        """The output of the workload up to a limit, written by the supervisor."""
        return self.path / "output.log"

    @property
    def trace(self) -> Path:
        """The largest tensors alive at a failure on cpu, written by the measured process with trace=on_failure."""
        return self.path / "trace.json"

    @property
    def snapshot(self) -> Path:
        """The history of CUDA's allocator at a failure, in the format of PyTorch's memory viewer."""
        return self.path / "trace.pickle"

    @property
    def reports(self) -> Path:
        """A folder that exists while a program is measured: one report for each of its Python processes."""
        return self.path / "reports"

    def create(self, attempt: Attempt) -> None:
        """Make the folder with its request. Raises FileExistsError if it exists: an attempt is made once."""
        files.make_folder(self.path)
        write_aside(self.request, attempt.to_json())

    def attempt(self, digest: str | None = None) -> Attempt:
        """The attempt that was requested. Raises Damaged, also if it has another digest than the one given.

        A request decides which code runs, and another user may be able to replace it in its folder.
        """
        try:
            attempt = Attempt.from_json(
                stored_json.unsealed(stored_json.content_of(self.request, LARGEST_OF_AN_ATTEMPT))
            )
        except FileNotFoundError:
            raise Damaged(f"{self.request.name} is missing") from None
        except Damaged as damaged:
            raise Damaged(f"{self.request.name} cannot be read: it {damaged}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = stored_json.why(error)
            raise Damaged(f"{self.request.name} cannot be read: no sweep writes it so ({reason})") from None
        if digest is not None and attempt.digest != digest:
            raise Damaged(f"{self.request} was replaced after it was written")
        return attempt

    def settle(self, exit: Exit) -> None:
        """Write how the attempt ended, once everything else in the folder is on the disk. Raises OSError.

        A reader trusts the folder if exit.json is there. Without these calls a power cut left it beside a journal
        without its end. The checksums of the other files show it every later change of them.
        """
        for file in (self.request, self.journal):
            sync(file)
        checksums = {file.name: self.checksum(file) for file in (self.request, self.journal)}
        known = {name: checksum for name, checksum in checksums.items() if checksum is not None}
        content = {"format": FORMAT, **exit_to_json(exit._replace(checksums=known))}
        write_aside(self.exit, content, lasting=True)
        for folder in (self.path, self.path.parent):
            sync(folder)

    @staticmethod
    def checksum(file: Path) -> int | None:
        """The checksum of a file; None if there is none that can be read."""
        try:
            return stored_json.checksum(stored_json.content_of(file, LARGEST_OF_AN_ATTEMPT))
        except (FileNotFoundError, Damaged):
            return None

    def settled(self) -> Exit | None:
        """How the attempt ended, or None if its supervisor has not written it. Raises Damaged."""
        try:
            text = stored_json.content_of(self.exit, LARGEST_OF_AN_ATTEMPT)
            return exit_from_json(stored_json.printable(stored_json.unsealed(text), text))
        except FileNotFoundError:
            return None
        except Damaged as damaged:
            raise Damaged(f"{self.exit.name} cannot be read: it {damaged}") from None
        except (ValueError, TypeError, AttributeError) as error:
            reason = stored_json.why(error)
            raise Damaged(f"{self.exit.name} cannot be read: no supervisor writes it so ({reason})") from None

    @property
    def is_settled(self) -> bool:
        """Whether the supervisor has written how the attempt ended, or something lies there that cannot be read."""
        return files.kind_of(self.exit) is not None

    def began(self) -> bool:
        """Whether the attempt left anything: a fact, or how it ended."""
        return self.is_settled or (files.kind_of(self.journal) is not None and os.lstat(self.journal).st_size > 0)


def write_aside(path: Path, value: Mapping[str, Any], lasting: bool = False) -> None:
    """Write a JSON object with its checksum to a temporary file and rename it: a reader sees all of it or nothing.

    `lasting`: also after a power cut, once the folder is on the disk. Raises OSError.
    """
    text = stored_json.sealed(value)
    aside = path.with_name(path.name + f".{os.getpid()}.tmp")
    try:
        with os.fdopen(files.create(aside), "wb") as file:
            file.write(text)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        files.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove(aside)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. One that is missing is left out. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that syncs no folders
            raise
    finally:
        os.close(descriptor)

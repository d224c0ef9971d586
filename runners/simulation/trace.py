"""Trace a workload on tensors without data: the lines of its journal, and its allocations in order."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from runners import facts, failure, files, processes, untrusted
from runners.device import Card
from runners.models import quantized_weights
from runners.phases import WHOLE, Phases, ProgramFailed, Reading, Unavailable
from runners.point import Attempt
from runners.simulation.assumptions import Assumptions
from runners.simulation.card_memory import CALCULATED, memory_of
from runners.simulation.live_memory import LiveMemory
from runners.simulation.uncertainty import with_uncertainty
from runners.workloads.python_program import ENDED_AFTER

BYTES_OF_A_LINE = 600
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
OWN_CODE = ("custom", "command")
EVENT = "event"  # key of a traced line, in place of its counters: the number of events before it

# Parts of the errors that PyTorch raises for a device that it was not built for, Triton without a driver, and
# flex_attention for tensors without data.
NEEDS_A_DEVICE = (
    *("not compiled with CUDA", "active drivers", "Found input tensors on meta device"),
    "cannot be called on meta tensors",
    "is not answered on a calculated card",  # torch_cuda_backend.py
)

DescribeError = Callable[[BaseException], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AllocationTrace:
    """The allocations of a point, the same on every card of an architecture."""

    lines: list[dict[str, Any]]  # of the journal, each with its EVENT
    events: array[int]  # as MetaTracer.events
    card: str | None = None  # the name of the only card that it holds for: the program asked about its memory
    settings: str | None = None  # of the allocator, where the program set them itself

    def on(self, card: Card) -> Card:
        """The card with the program's settings of its allocator."""
        return card if self.settings is None else replace(card, settings=self.settings)

    @classmethod
    def read(cls, path: Path) -> AllocationTrace | None:
        """None if the file does not exist or is damaged: the point is then traced again."""
        try:
            return cls.unpacked(files.read(path))
        except (FileNotFoundError, ValueError, zlib.error):
            return None

    def write(self, path: Path) -> None:
        """Write to a temporary file and rename it, so that a reader never sees a part."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        files.write(temporary, self.packed())
        files.replace(temporary, path)

    def packed(self) -> bytes:
        head = json.dumps([self.lines, self.card, self.settings]).encode()
        return head + b"\n" + zlib.compress(self.events.tobytes(), 1)

    @classmethod
    def unpacked(cls, packed: bytes) -> AllocationTrace:
        """Raises ValueError and zlib.error for what `packed` did not return."""
        head, _, compressed = packed.partition(b"\n")
        events = array("q")
        events.frombytes(zlib.decompress(compressed))
        lines, card, settings = json.loads(head)
        return cls(lines, events, card, settings)


def card_of(attempt: Attempt) -> Card:
    """The card of a calculated attempt. Raises ValueError for a measured attempt."""
    if attempt.device.card is None:
        raise ValueError(f"{attempt.device.name} has no card to calculate with")
    return attempt.device.card


class ReadyPoint:
    """What a point is followed with. `enter` has a user's program imported: copies of the process can run it then."""

    def __init__(self, attempt: Attempt, card: Card, refuses: bool = False) -> None:
        from runners.simulation.torch_program import FollowedProgram
        from runners.simulation.torch_tracer import MetaTracer

        self.card = card
        self.assumptions = Assumptions(_assumed_number(attempt.point.values), str(attempt.cwd))
        self.tracer = MetaTracer(rules_of(card), self.assumptions)
        self.program = FollowedProgram(self.tracer)
        self.meter = _EventMeter(attempt.device.name, self.tracer.events)
        self.journal = _MemoryJournal(self.meter)
        self.assumptions.on_place = lambda: self.journal.add({"kind": "assumed", **self.assumptions.facts()})
        self.budget: int | None = attempt.point.get("budget")
        self.memory = LiveMemory(
            self.tracer.events,
            lambda unlimited: memory_of(
                self.memory.with_settings(card), None if unlimited else self.budget, unlimited, counts=True
            ),
            refuses,
        )
        self.device = "meta"
        self._surroundings = contextlib.ExitStack()
        self._is_entered = False
        self._error: BaseException | None = None

    def enter(self, attempt: Attempt, workload: ModuleType) -> None:
        """Give a user's program its device, and import it. `entered` raises what fails here."""
        from runners.simulation.torch_extensions import libraries_adapted

        self._is_entered = True
        try:
            _check_dtypes(attempt)
            self.tracer.memory = self.memory
            surroundings, self.device = program_device(self.card, self.tracer, self.memory)
            self._surroundings.enter_context(libraries_adapted(self.tracer, self.card.is_host))
            for each in (self.tracer.around_workload(), surroundings, self.program.followed()):
                self._surroundings.enter_context(each)
            with processes.forks_end_here():
                _prepare(workload, attempt.point.values, self.device)
        except BaseException as error:
            self._error = error

    @property
    def is_reusable(self) -> bool:
        """Whether other attempts can begin here: the import asked nothing that differs between them, and left nothing
        that a fork does not copy."""
        alarms = any(
            signal.getitimer(timer)[0] for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        )
        asked = self.memory.was_asked or len(self.tracer.events) > 0
        return self._error is None and not asked and not alarms and processes.threads() == 1

    @contextlib.contextmanager
    def entered(self, attempt: Attempt, workload: ModuleType) -> Iterator[None]:
        """Around the run of a user's program. Raises what its import raised."""
        if not self._is_entered:
            self.enter(attempt, workload)
        self.tracer.is_elsewhere = False  # a copy of the process goes on with it
        with self._surroundings, self.program.children_reported():
            if self._error is not None:
                raise self._error
            yield


def trace_workload(
    attempt: Attempt,
    workload: ModuleType,
    describe_error: DescribeError,
    card: Card | None = None,
    refuses: bool = False,
    ready: ReadyPoint | None = None,
) -> AllocationTrace:
    """Run the workload in this process, on tensors without data.

    The workload's exceptions become the last line, a failure described by `describe_error`. With `refuses` the card's
    memory refuses what does not fit where it is allocated, so that a program that catches it is followed further.
    `ready`: a program that is imported; it can run once.
    """
    from runners.simulation.torch_extensions import libraries_adapted

    values, card = attempt.point.values, card or card_of(attempt)
    ready = ready or ReadyPoint(attempt, card, refuses)
    tracer, assumptions, program, memory = ready.tracer, ready.assumptions, ready.program, ready.memory
    meter, journal = ready.meter, ready.journal
    memory.refuses, ready.budget = refuses, values.get("budget")
    workload_block = processes.forks_end_here()
    phases = Phases(meter, journal, whole=values.get("phases") == WHOLE)  # type: ignore[arg-type]
    tracer.on_failure = lambda: journal.end_in(phases)
    try:
        _check_dtypes(attempt)
        if is_program(attempt):
            with ready.entered(attempt, workload):
                with processes.forks_end_here():  # its arguments are this point's
                    _prepare(workload, values, ready.device)
                phases.open()
                finished = _run(workload, values, ready.device, phases, workload_block)
        elif quantized_weights.requested_scheme(values):  # the libraries ask tensors for their device
            with libraries_adapted(tracer, card.is_host):
                surroundings, device = program_device(card, tracer, memory)
                with surroundings, _workload_hooks(tracer):
                    with processes.forks_end_here():
                        workload.prepare(values, device)
                    phases.open()
                    with tracer.around_workload():
                        finished = _run(workload, values, device, phases, workload_block)
        else:
            with libraries_adapted(tracer, card.is_host):
                with processes.forks_end_here(), _autocast_in_imports(card):
                    _prepare(workload, values, "meta")
                phases.open()
                with _workload_hooks(tracer), tracer.around_workload():
                    finished = _run(workload, values, "meta", phases, workload_block)
        phases.close(completed=True)
        meter.cut()
        if is_program(attempt) and tracer.is_unused:
            raise NothingPlaced(f"nothing was placed on {ready.device}: the program ran on the host")
        if tracer.bounds:
            finished = {**finished, "metrics": with_uncertainty(finished["metrics"], tracer.events, tracer.bounds)}
        assumptions.on_end()
        journal.add({"kind": "finished", **finished})
        if attempt.point["workload"] == "command" and (steps := finished["metrics"].get(ENDED_AFTER)):
            ended = f"ended after {steps} steps of its optimizer (workload.steps)"
            tracer.notes[f"{ended}; what comes later is not in the peak"] = None
    except BaseException as error:
        assumptions.on_end()
        own = workload_block.raised or error  # contexts around the workload may have replaced its own
        if phases.is_open and not isinstance(error, NothingPlaced):  # that one is raised after the last phase
            phases.close(completed=_left_a_phase(own, phases.raised))
        meter.cut()  # threads that the workload left may go on
        if assumptions.has_bounds and not _is_refusal(own):
            own = Unavailable(f"{assumptions.described_bounds()}, and then the program failed: {own}")
        journal.add({"kind": "failed", **_described(_without_machine_errors(own), describe_error, attempt)})
    # In front, where they stay whatever ends the lines: a refusal in the replay, or what could not be followed.
    if notes := [*tracer.notes, *program.notes(), *assumptions.notes()]:
        journal.lines.insert(0, {"kind": "notes", "notes": notes, EVENT: 0})
    if is_program(attempt) and not card.is_host:
        journal.lines.insert(0, {"kind": "host_tensors", "peak_bytes": tracer.host_tensors.peak, EVENT: 0})
    if tracer.failure is None:
        only = card.name if memory.is_of_one_card else None
        return AllocationTrace(journal.lines, tracer.events[: meter.end], only, memory.settings)
    # The workload may have caught the exception and continued on a path that depends on unknown numbers.
    until = tracer.failure_event
    known = [line for line in journal.lines if line[EVENT] <= until and line["kind"] not in ("failed", "finished")]
    failed = {"kind": "failed", **describe_error(Unavailable(tracer.failure)), EVENT: until}
    return AllocationTrace([*known, failed], tracer.events[:until])


def _left_a_phase(error: BaseException, raised: BaseException | None) -> bool:
    """Whether what ended the workload left a phase as the exception `raised`, and so failed there and not afterwards.

    A program that exits leaves its phase by SystemExit, and fails by its exit code.
    """
    is_exit = isinstance(error, ProgramFailed) and isinstance(raised, SystemExit)
    return is_exit or any(cause is raised for cause in failure.causes(error))


def _described(error: BaseException, describe_error: DescribeError, attempt: Attempt) -> dict[str, Any]:
    if issubclass(type(error), ProgramFailed):
        facts: Mapping[str, Any] = error.facts  # type: ignore[attr-defined]
        return dict(facts)
    is_its_end = attempt.point["workload"] == "command" and not issubclass(type(error), (Unavailable, NothingPlaced))
    return {**describe_error(error), **({"exit_code": 1} if is_its_end else {})}  # as an interpreter leaves


def _assumed_number(values: Mapping[str, Any]) -> float:
    assume = (values.get("workload") or {}).get("assume")
    return 1.0 if assume is None else float(assume)


def _is_refusal(error: BaseException) -> bool:
    """Whether the card's memory refused an allocation, or the tracer what it cannot follow."""
    return isinstance(error, Unavailable) or "out of memory" in untrusted.text(error, failure.LONGEST_MESSAGE).lower()


class NothingPlaced(Exception):
    """A program ended without a tensor on the card: what it took says nothing about the card."""


def is_program(attempt: Attempt) -> bool:
    """Whether the workload is the user's own code, which chooses its device and may ask about the card."""
    return attempt.point["workload"] in OWN_CODE


def _prepare(workload: ModuleType, values: Mapping[str, Any], device: str) -> None:
    """Import the user's rules for extensions, and what the workload needs."""
    if rules := (values.get("workload") or {}).get("rules"):
        importlib.import_module(rules)
    workload.prepare(values, device)


def _run(workload: ModuleType, values: Mapping[str, Any], device: str, phases: Phases, block: Any) -> dict[str, Any]:
    whole = phases(WHOLE) if values.get("phases") == WHOLE else contextlib.nullcontext()
    with whole, block:
        finished: dict[str, Any] = workload.run(values, device, phases)
    return finished


def program_device(card: Card, tracer: Any, memory: LiveMemory) -> tuple[contextlib.AbstractContextManager[None], str]:
    """What a program is given in place of the device, and the device's name."""
    import torch

    from runners.simulation.torch_card import ProgramDevice
    from runners.simulation.torch_cuda_backend import CudaBackend
    from runners.simulation.torch_device_rules import all_entered

    if card.is_host:
        return ProgramDevice(tracer, torch.device("cpu")).entered(), "cpu"
    backend = CudaBackend(card, memory, tracer)
    device = ProgramDevice(tracer, torch.device("cuda", 0), backend.use)
    return all_entered(backend.entered(), device.entered()), "cuda"


def _without_machine_errors(error: BaseException) -> BaseException:
    """Unavailable in place of an error that is about the tracing machine and not about the card: no CUDA, no compiler,
    or no memory for the tensors that do have data."""
    message = untrusted.text(error, failure.LONGEST_MESSAGE)
    if any(sign in message for sign in NEEDS_A_DEVICE) or untrusted.type_name(type(error)).startswith("torch._dynamo"):
        return Unavailable(f"the workload needs a real device, and is traced without data: {message}")
    if issubclass(type(error), MemoryError) or ("DefaultCPUAllocator" in message and CALCULATED not in message):
        return Unavailable(f"this machine has too little memory to trace the workload: {message}")
    return error


class _EventMeter:
    """The meter of a traced workload. Its only counter is the number of events so far."""

    def __init__(self, device: str, events: array[int]) -> None:
        self._device, self._events = device, events
        self.end: int | None = None  # events after it are no longer the workload's

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        return {self._device: Reading(now={EVENT: self.now})}

    glance = boundary

    def cut(self) -> None:
        """Stop here: `now` stays what it is."""
        self.end = self.now

    @property
    def now(self) -> int:
        return len(self._events) if self.end is None else self.end


class _MemoryJournal:
    """A journal in memory, whose lines have the number of events before them."""

    def __init__(self, meter: _EventMeter) -> None:
        self.lines: list[dict[str, Any]] = []
        self._meter = meter
        self._is_over = False  # whether phases are no longer those of the trace

    def write(self, *written: facts.Fact) -> None:
        self.add(*map(facts.to_json, written))

    @property
    def bytes(self) -> int:
        """About the size of the file that the lines will make, with their counters."""
        return BYTES_OF_A_LINE * len(self.lines)

    def add(self, *lines: dict[str, Any]) -> None:
        kept = (line for line in lines if not (self._is_over and line["kind"] in ("began", "ended")))
        self.lines += [{**line, EVENT: self._meter.now} for line in kept]

    def end_in(self, phases: Phases) -> None:
        """End the phase under way as one that did not complete, and take no other phase."""
        if phases.is_open:
            name, run_index = phases.under_way
            self.add({"kind": "ended", "phase": name, "run_index": run_index, "completed": False, "elapsed_s": None})
        self._is_over = True


def rules_of(card: Card) -> Any:
    """The rules that a workload is traced by for this card, a torch_tracer.Rules."""
    from runners.simulation.kernels.torch_gpu_architecture import gpu_architecture
    from runners.simulation.torch_device_rules import CpuRules, CudaRules

    return CpuRules() if card.is_host else CudaRules(gpu_architecture(card))


def _check_dtypes(attempt: Attempt) -> None:
    """Raise Unavailable if the card does not compute in the point's dtypes, whether or not its bytes fit."""
    card, point = card_of(attempt), attempt.point
    if card.is_host:
        return
    from runners.models.torch_models import dtype_named
    from runners.simulation.kernels.torch_gpu_architecture import gpu_architecture, why_unsupported

    architecture = gpu_architecture(card)
    for name in (point["dtype"], point.get("workload.precision")):
        if name is not None and (why := why_unsupported(architecture, dtype_named(name))):
            raise Unavailable(why)


def _autocast_in_imports(card: Card) -> contextlib.AbstractContextManager[None]:
    """Around the import of the user's modules, whose decorators are made then."""
    from runners.simulation.torch_autocast import cuda_autocast_available

    return contextlib.nullcontext() if card.is_host else cuda_autocast_available()


def _workload_hooks(tracer: Any) -> contextlib.AbstractContextManager[None]:
    """Report to the tracer what no operator shows: that a workload empties the cache (`cache=empty`), and that it
    builds a model on the host before it moves the model."""
    import torch

    from runners.models import torch_models
    from runners.simulation.torch_replaced import replaced

    return replaced(
        torch_models,
        empty_cache=lambda device: tracer.empty_cache(),
        made_on_host=tracer.made_on_host,
        moved_to_device=tracer.moved_to_device,
        first_device=lambda device: device,
        real_numbers=torch._C.DisableTorchFunction,
        is_calculated=lambda device: True,
    )

"""The measured process: runs the workload of one attempt between counters, and appends each fact to its journal.

Before the workload's own libraries it imports the standard library only. To run an attempt again by hand, copy its
folder without `journal.jsonl` and run `python -m runners.child FOLDER WHAT`; without WHAT it shows what it would run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from runners import facts, failure, fingerprint, launch_command, libraries, processes
from runners.budget import Budget
from runners.failure_trace import FailureTrace
from runners.journal import Journal
from runners.meters import cpu
from runners.phases import WHOLE, Meter, ProgramFailed, Unavailable
from runners.point import Attempt, AttemptFolder
from runners.stored_json import Damaged
from runners.threads import EnteredInThreads, Threads

if TYPE_CHECKING:
    from runners.meters.torch_tensors import TensorTracker
    from runners.ready_copy import CopyKeeper
    from runners.simulation.trace import ReadyPoint

USUAL_RECURSION_LIMIT = 1000
# What calculated attempts need of ours, for the template to import once; a measured process imports it when it needs
# it. Then, what they need by the library of their model.
OF_A_CALCULATION = (
    "torch._dynamo",  # the shapes of a product's gradients import it, and sympy: 1 s of each attempt
    "runners.simulation.simulate",
    "runners.simulation.torch_card",
    "runners.simulation.torch_cuda_backend",
    "runners.simulation.torch_device_rules",
    "runners.simulation.torch_program",
    "runners.simulation.torch_tracer",
    "runners.torch_fingerprint",
)
OF_A_MODEL: dict[str | None, tuple[str, ...]] = {
    "torch": ("runners.models.torch_weights", "runners.workloads.torch_training"),
    "transformers": (
        "runners.models.torch_weights",
        "runners.models.transformers_models",
        "runners.models.transformers_prompts",
        "runners.workloads.torch_training",
    ),
}
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def main(arguments: list[str]) -> NoReturn:
    """Run the attempt in a folder. The arguments: the folder, the parent's pid (0: none), the digest of the request."""
    place, parent, digest = arguments
    folder = AttemptFolder(Path(place))
    run(folder, folder.attempt(digest), parent=int(parent) or None)


def run_by_hand(arguments: list[str]) -> NoReturn:
    """Become the process that a supervisor would start for the folder named, with its environment and current folder.

    Nothing limits its time, holds its device or writes exit.json. A folder decides which code runs, where, and with
    which environment, so all of it is shown first, and runs once its name follows the folder. Raises SystemExit with
    one line for that, and for a folder that has a journal already or no request that can be read.
    """
    if not arguments:
        raise SystemExit("usage: python -m runners.child FOLDER [WHAT]")
    folder = AttemptFolder(Path(arguments[0]).resolve())
    if folder.journal.exists():
        raise SystemExit(f"{folder.journal}: the attempt was made already; remove this file from a copy of its folder")
    try:
        attempt = folder.attempt()
    except Damaged as damaged:
        raise SystemExit(f"{folder.path}: {damaged}") from None
    what = _what_runs(attempt)
    if arguments[1:] != [what]:
        import shlex

        repeat = shlex.join(["python", "-m", "runners.child", str(folder.path), what])
        where = f"in {attempt.cwd!r} with {dict(attempt.environ or {})}"
        raise SystemExit(f"{folder.path} runs {what!r} {where}; if that is what you want, type: {repeat!r}")
    try:
        os.chdir(attempt.cwd)
    except OSError as error:
        raise SystemExit(f"{folder.request}: cwd={attempt.cwd!r}: {error.strerror}") from None
    command = launch_command.command(sys.executable, "child", str(folder.path), "0", attempt.digest)
    os.execve(sys.executable, command, launch_command.environ(attempt.environ or {}))


def _what_runs(attempt: Attempt) -> str:
    """The user's code that an attempt runs, as text; without any, the name of the workload."""
    import shlex  # late: it is no part of the measured process

    workload = attempt.point.values.get("workload")
    workload = workload if isinstance(workload, Mapping) else {}
    argv = workload.get("argv")
    program = shlex.join(map(str, argv)) if isinstance(argv, list) else None
    named = (program, workload.get("target"), attempt.point.get("quality.target"))
    return " ".join(str(each) for each in named if each) or str(attempt.point.get("workload"))


class Ready(NamedTuple):
    """A user's program that is imported, in a process that has not run it."""

    point: ReadyPoint
    record: dict[str, Any]  # of the environment, before the program saw its device


def run(
    folder: AttemptFolder,
    attempt: Attempt,
    parent: int | None,
    ready: Ready | None = None,
    keeper: CopyKeeper | None = None,
) -> NoReturn:
    """Measure and exit without the interpreter's shutdown, which takes 0.3 s and can hang on what a workload left.

    With `keeper` a copy of the process stays in which other attempts of the same program are `ready`.
    """
    if parent is not None:
        processes.die_with(parent)
    _be_an_ordinary_process()
    journal, trace = Journal(folder.journal), FailureTrace(folder, attempt.trace)
    error: BaseException | None = None
    try:
        try:
            finished = _measure(attempt, journal, trace, ready, keeper)
        except BaseException as raised:  # any exception of a workload is a fact about its point
            error = raised
            _be_undisturbed()
        else:
            _be_undisturbed()
    except BaseException as disturbed:  # an alarm of the workload's that came before they were switched off
        error = error or disturbed
        _be_undisturbed()
    if error is not None:
        with trace.unlimited():
            try:
                signal_number = _record(error, journal, trace)
            except MemoryError:  # under a limit that cannot be lifted
                failure.release(error)
                signal_number = _record(error, journal, trace)
        if signal_number:
            processes.die_of(signal_number)
    elif finished is not None:
        journal.write(facts.Finished(**finished))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # a stream of the workload's own
            stream.flush()
    processes.leave(0)


def _record(error: BaseException, journal: Journal, trace: FailureTrace) -> int | None:
    """Write down why the attempt failed. Returns the signal that ended its program, if one did."""
    if issubclass(type(error), ProgramFailed):
        failed = facts.failed(error.facts)  # type: ignore[attr-defined]
    else:
        first = failure.facts_without_its_code(error)
        if first is not None:  # the last of two counts: reading the text of the exception may end the process
            journal.write(facts.failed(first))
        failed = facts.failed(failure.failure_facts(error))
    journal.write(failed)
    journal.write(*trace.keep(failure.causes(error)))  # afterwards: a trace that ends the process does not hide why
    return failed.signal


def _be_undisturbed() -> None:
    """Switch off what a workload leaves behind to interrupt the code that runs after it.

    An alarm can still interrupt this function where no `try` covers it: call it twice, the second time where the first
    call raises.
    """
    for _ in range(100):  # an alarm may interrupt this too
        try:
            for timer in TIMERS:  # first, since the handlers below take longer than a short interval
                signal.setitimer(timer, 0)
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_IGN)
            sys.settrace(None)
            sys.setprofile(None)
            sys.setrecursionlimit(USUAL_RECURSION_LIMIT)
            return
        except BaseException:
            continue


def refused(attempt: Attempt) -> str | None:
    """Why an attempt is unavailable, where that is known before a process is started for it."""
    with contextlib.suppress(Exception):  # the process that is started then reports it
        workload = _workload(attempt)
        why: str | None = workload.refused(attempt) if hasattr(workload, "refused") else None
        return why
    return None


def import_libraries(attempt: Attempt) -> None:
    """Import the libraries that the workload names. Raises Unavailable, with the root cause, if one fails to import."""
    workload = _workload(attempt)
    modules = workload.imports(attempt.point.values)
    if attempt.device.is_calculated:  # the baseline of a measured process has no room for them
        modules = ("torch", *modules, *OF_A_CALCULATION, *OF_A_MODEL.get(attempt.point.get("model.library"), ()))
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise Unavailable(libraries.why_not_imported(module, error, failure.root_cause(error))) from error


def import_meters(attempt: Attempt) -> None:
    """Import what measures an attempt in a fork of this process, which would take 10 ms for it each time."""
    if "torch" not in sys.modules or attempt.device.is_calculated:
        return
    from runners import torch_fingerprint  # noqa: F401

    if attempt.device.is_cpu and attempt.point.get("tensors"):
        from runners.meters import torch_tensors  # noqa: F401


def _measure(
    attempt: Attempt, journal: Journal, trace: FailureTrace, ready: Ready | None, keeper: CopyKeeper | None
) -> dict[str, Any] | None:
    """Run the workload and return its result. Returns None for a calculated attempt, which writes its own end."""
    values = attempt.point.values
    import_libraries(attempt)
    workload = _workload(attempt)
    # A program of its own: this process neither has nor needs torch.
    if hasattr(workload, "measure") and not attempt.device.is_calculated:
        measured: dict[str, Any] = workload.measure(attempt, journal, trace)
        return measured
    from runners import torch_fingerprint

    if attempt.device.is_calculated:
        from runners.simulation import simulate

        record = torch_fingerprint.record(attempt) if ready is None else ready.record
        journal.write(fingerprint.fact(record))

        def keep(point: ReadyPoint) -> None:
            assert keeper is not None
            copy = Ready(point, record)
            keeper.keep(lambda folder, other: run(folder, other, keeper.supervisor, copy))

        simulate.measure(
            attempt,
            workload,
            journal,
            failure.failure_facts,
            None if ready is None else ready.point,
            None if keeper is None else keep,
        )
        return None
    threads = Threads()
    device, meter, tracking = _meter(attempt, trace, threads)
    with processes.forks_end_here():
        workload.prepare(values, device)

    journal.write(fingerprint.fact(torch_fingerprint.record(attempt)))
    torch_fingerprint.use_kernels_once()
    budget = Budget(attempt)
    if budget.is_set:
        torch_fingerprint.start_threads()
    trace.unlimited = budget.lifted
    phases = trace.phases(meter, journal, whole=values.get("phases") == WHOLE, unlimited=budget.lifted)
    with phases.heartbeat(attempt.heartbeat):  # its thread exists before the baseline and the budget are taken
        reserved = cpu.reserve_to_the_mark()  # noqa: F841 (held while the workload runs)
        instrumented = trace.records or not isinstance(tracking, nullcontext)
        journal.write(_baseline(instrumented), *budget.impose())
        phases.open()
        try:
            whole = phases(WHOLE) if values.get("phases") == WHOLE else nullcontext()
            with tracking, threads, whole, processes.forks_end_here():
                finished: dict[str, Any] = workload.run(values, device, phases)
            phases.close(completed=True)
        except BaseException as error:
            # An exception that left a phase failed there, not in the stretch after it. Without memory for its end, the
            # phase stays without one.
            lowered = budget.lowered()
            with budget.lifted(), contextlib.suppress(MemoryError):
                journal.write(*lowered)
            with budget.lifted(), contextlib.suppress(MemoryError):
                phases.close(completed=any(cause is phases.raised for cause in failure.causes(error)))
            raise
    return finished


def _workload(attempt: Attempt) -> ModuleType:
    return importlib.import_module(f"runners.workloads.{attempt.point['workload']}")


def _meter(attempt: Attempt, trace: FailureTrace, threads: Threads) -> tuple[str, Meter, AbstractContextManager[Any]]:
    """The torch device for the workload, the device's meter, and the context that tracks tensors meanwhile."""
    if attempt.device.is_cpu:
        if not attempt.point.get("tensors"):
            trace.missing = "tensors=false: without tracking, the tensors alive on cpu are unknown"
            return "cpu", cpu.CpuMeter(threads=threads), nullcontext()
        tracker = _tensor_history(trace) if trace.requested else _tensor_tracker()
        in_threads = _Entered(tracker, EnteredInThreads(tracker.pushed))
        return "cpu", cpu.CpuMeter(tensors=tracker, threads=threads), in_threads
    from runners.meters import cuda

    names, uuids = attempt.device.parts, attempt.device.uuids
    for index, name in enumerate(names):
        cuda.check(name, index, attempt.point["dtype"], uuids[index] if uuids else None)
    if trace.requested:
        trace.record(cuda.AllocatorHistory, trace.folder.snapshot)
    # The process sees its own devices only, so their indices start from 0 even if their names do not.
    return "cuda:0", cuda.CudaMeter(list(range(len(names))), list(names), cpu.CpuMeter()), nullcontext()


class _Entered(AbstractContextManager[None]):
    """Several contexts as one. No generator: see `processes.forks_end_here`."""

    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *raised: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*raised)


def _tensor_tracker() -> TensorTracker:
    from runners.meters.torch_tensors import TensorTracker

    return TensorTracker()


def _tensor_history(trace: FailureTrace) -> TensorTracker:
    from runners.torch_failure_trace import TensorHistory, TracedPhases

    history = TensorHistory()
    trace.record(lambda: history, trace.folder.trace)
    trace.phases = partial(TracedPhases, history)
    return history


def _baseline(instrumented: bool) -> facts.Baseline:
    lines = cpu.status_lines()
    counters = dict(cpu.read_status().now)
    if "VmPeak" in lines:
        counters["virtual_peak"] = lines["VmPeak"]
    return facts.Baseline(counters, cpu.available_memory_bytes(), instrumented)


def _be_an_ordinary_process() -> None:
    """Undo what sets a supervisor apart from a user's own run, and be the first that the OOM killer ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    launch_command.search_current_folder()
    with contextlib.suppress(Exception):
        faulthandler.enable()  # writes the Python stack of a segfault to the output and keeps the signal


if __name__ == "__main__":
    run_by_hand(sys.argv[1:])

"""Runs any program unchanged and without a shell. Placeholders such as {batch} in its arguments are filled in.

The program is a child of the measured process. The counters read the program's process tree
(runners/meters/program.py), without the measured process itself. Python processes in that tree load a hook through
their environment; it reports the counters of PyTorch's allocators and the exception that ended the process.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import string
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runners import facts, files, fingerprint, processes
from runners.budget import Budget
from runners.failure_trace import FailureTrace
from runners.journal import Journal
from runners.meters import cpu
from runners.meters.program import ProgramMeter
from runners.phases import WHOLE, Phases, ProgramFailed, Unavailable
from runners.point import Attempt, canonical
from runners.workloads.python_program import PythonProgram, exit_code, python_program, with_interpreter

STANDARD = ("batch", "context", "dtype", "device", "warmup", "repeats", "seed")
HOOK = Path(__file__).parent / "program_hook"
REPORTS = "SWEEPER_PROGRAM_REPORTS"  # the hook reads it
MOST_REPORTS = 100  # that the journal keeps; the counters are of all
STDERR_TAIL_BYTES = 2**14  # the end of a program's standard error that is stored
# Exceptions that only report that another process failed.
WRAPPER_EXCEPTIONS = ("CalledProcessError", "ChildFailedError", "ProcessExitedException", "ProcessRaisedException")


def imports(values: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


def placeholders(argv: Sequence[str]) -> tuple[str, ...]:
    """The names in braces, each once. Raises ValueError for malformed braces."""
    return tuple(dict.fromkeys(name for word in argv for _, name in _parts(word) if name is not None))


def filled(argv: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The arguments with placeholders replaced: strings unchanged, other values as JSON."""
    return ["".join(text + ("" if name is None else _as_word(known[name])) for text, name in _parts(w)) for w in argv]


def measure(attempt: Attempt, journal: Journal, trace: FailureTrace) -> dict[str, Any]:
    """Run the program to its end, as one phase. Raises ProgramFailed."""
    values, device = attempt.point.values, attempt.device
    trace.missing = "a program of its own is not traced"
    budget = Budget(attempt)
    if not device.is_cpu and values.get("budget") is not None:
        raise Unavailable("budget: the allocator of a program of its own cannot be limited from outside")
    reports = trace.folder.reports
    files.make_folder(reports)
    processes.inherit_orphans()  # orphans of the program stay in its tree
    meter = ProgramMeter(device.parts, device.uuids, reports)
    phases = Phases(meter, journal)
    journal.write(fingerprint.fact(fingerprint.record(attempt)))
    with phases.heartbeat(attempt.heartbeat):
        baseline = facts.Baseline({}, cpu.available_memory_bytes(), instrumented=False, of=facts.PROGRAM)
        journal.write(baseline, *budget.decide(held=0))
        phases.open()
        try:
            with phases(WHOLE if values.get("phases") == WHOLE else "run") as notes:
                program = _start(values, "cpu" if device.is_cpu else "cuda:0", reports)
                budget.impose_on(program.pid)
                with meter.sampling(), _Echo(program) as echo:
                    code = program.wait()
                reported = meter.reports()
                notes.metrics = {**meter.facts(), "torch": _torch(reported)}
                journal.write(*map(facts.report, reported[:MOST_REPORTS]))
                if code != 0:
                    raise ProgramFailed(_failure_facts(code, _failure(reported, program.pid), echo.last))
        finally:
            phases.close(completed=True)
            shutil.rmtree(reports, ignore_errors=True)
    return {"metrics": notes.metrics, "steps": None, "tokens": None}


def refused(attempt: Attempt) -> str | None:
    """Why no process is started for an attempt; None if one is."""
    if not attempt.device.is_calculated:
        return None
    try:
        _python_program(attempt.point.values, "cuda")
    except Unavailable as unavailable:
        return str(unavailable)
    return None


def prepare(values: Mapping[str, Any], device: str) -> None:
    """Check that a calculated device can follow the program. Raises Unavailable."""
    _python_program(values, device)


def run(values: Mapping[str, Any], device: str, phase: Phases) -> dict[str, Any]:
    """Run a Python program in this process, on a calculated device, in the phases that it marks or as one, `run`.

    It ends before its optimizer begins one more than `workload.steps` steps. Raises ProgramFailed.
    """
    from runners.simulation.torch_marks import MarkedPhases  # late: a measured program needs no torch here
    from runners.simulation.torch_program import OptimizerSteps

    program = _python_program(values, device)
    steps = OptimizerSteps(values["workload"].get("steps"), phase.cut)
    phases = MarkedPhases(phase)
    with phases as notes, steps.counted():
        code, last = exit_code(program)
        notes.iterations = None if phases.has_marks else steps.count or None
        if code and not steps.over:
            raise ProgramFailed(_failure_facts(code, None, last))
    metrics = {"ended_after_steps": steps.count} if steps.over else {}
    return {"metrics": metrics, "steps": steps.count or None, "tokens": None}


def _python_program(values: Mapping[str, Any], device: str) -> PythonProgram:
    return python_program(_argv(values, device))


def _parts(word: str) -> Iterable[tuple[str, str | None]]:
    """Pairs of text and the name in the braces after it. Doubled braces are text."""
    wrong = f"{word!r}: braces take a name and no more, as in {{batch}}; {{{{ and }}}} are braces"
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError:  # unbalanced braces
        raise ValueError(wrong) from None
    for text, name, form, conversion in parts:
        if form or conversion or name == "":
            raise ValueError(wrong)
        yield text, name


def _as_word(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _argv(values: Mapping[str, Any], device: str) -> list[str]:
    known = {**(values["workload"].get("params") or {}), **{name: values.get(name) for name in STANDARD}}
    return filled(values["workload"]["argv"], {**known, "device": device})


def _start(values: Mapping[str, Any], device: str, reports: Path) -> subprocess.Popen[bytes]:
    path = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        with_interpreter(_argv(values, device), sys.executable),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), REPORTS: str(reports)},
    )


class _Echo:
    """Copies the program's standard error to ours and stores its end."""

    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        assert program.stderr is not None
        self._stream, self._kept, self._over = program.stderr, bytearray(), False
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)

    @property
    def last(self) -> str:
        return bytes(self._kept[-STDERR_TAIL_BYTES:]).decode("utf-8", "replace").strip()

    def __enter__(self) -> _Echo:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading. Do not wait for the end of the pipe: an orphan of the program can hold it open."""
        self._over = True
        self._thread.join()
        self._stream.close()

    def _run(self) -> None:
        descriptor = self._stream.fileno()
        while True:
            if select.select([descriptor], [], [], 0.05)[0]:
                written = os.read(descriptor, 2**16)
                if not written:
                    return
                self._kept += written
                del self._kept[: -2 * STDERR_TAIL_BYTES]
                with contextlib.suppress(OSError):
                    os.write(2, written)
            elif self._over:
                return


def _torch(reports: Sequence[Mapping[str, Any]]) -> str | None:
    """The torch version that a process of the program reported."""
    return next((report["torch"] for report in reports if report.get("torch")), None)


def _failure(reports: Sequence[Mapping[str, Any]], program: int) -> Mapping[str, Any] | None:
    """The exception behind the program's failure, if one of its Python processes reported one.

    The program's own exception, unless it only reports that another process failed: then the first exception of the
    other processes, since one failure ends processes that were started together. Without an own exception (a script
    that runs processes in turn): the last one, since the script continued after the earlier ones.
    """
    failures: list[tuple[int, Mapping[str, Any]]] = [
        (report["pid"], report["failure"]) for report in reports if report["failure"]
    ]
    others = [failure for pid, failure in failures if pid != program]
    own = next((failure for pid, failure in failures if pid == program), None)
    if own is None:
        return others[-1] if others else None
    is_wrapper = own["chain"][0]["type"].rpartition(".")[2] in WRAPPER_EXCEPTIONS
    return others[0] if is_wrapper and others else own


def _failure_facts(code: int, failure: Mapping[str, Any] | None, last: str) -> dict[str, Any]:
    """Facts of a failure for the journal. An exit code without an exception never counts as out of memory."""
    if code < 0:
        chain = [{"type": "ProgramFailed", "bases": [], "message": f"ended by signal {-code}"}]
        return {"chain": chain, "traceback": last or None, "signal": -code}
    if failure is not None:
        return {"chain": failure["chain"], "traceback": failure["traceback"] or last or None, "exit_code": code}
    line = last.rpartition("\n")[2].strip()
    chain = [{"type": "ProgramFailed", "bases": [], "message": f"exit code {code}{': ' + line if line else ''}"}]
    return {"chain": chain, "traceback": last or None, "exit_code": code}

"""How an attempt ended, decided from its facts: built by hand here, as a child and a supervisor write them."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from runners.device import device_named
from runners.facts import exit_from_json, from_json
from runners.outcome import Outcome, Status, outcome_of
from runners.point import Attempt, Point

MIB = 2**20
GIB = 2**30

BASELINE = {
    "kind": "baseline",
    "t": 1.0,
    "counters": {"resident": 220 * MIB},
    "available_memory_bytes": 8 * GIB,
    "instrumented": True,
}
FINISHED = {"kind": "finished", "t": 9.0, "metrics": {"loss": 1.5}, "steps": 2, "tokens": 512}
EXITED = {"pid": 4711, "code": 0, "signal": None, "started_at": "2026-01-01T00:00:00+00:00", "duration_s": 3.5}
OOM = {
    "type": "torch.OutOfMemoryError",
    "bases": ["RuntimeError", "Exception", "BaseException"],
    "message": "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of ...",
}
CPU_OOM = {
    "type": "RuntimeError",
    "bases": ["Exception", "BaseException"],
    "message": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000 bytes. Error code 12",
}


def began(phase: str, t: float, run_index: int | None = None, **baselines: dict[str, int]) -> dict[str, Any]:
    counters = {device: {"baseline": baseline} for device, baseline in baselines.items()}
    return {"kind": "began", "t": t, "phase": phase, "run_index": run_index, "counters": counters}


def ended(phase: str, t: float, completed: bool = True, **counters: dict[str, Any]) -> dict[str, Any]:
    """Counters by device."""
    return {"kind": "ended", "t": t, "phase": phase, "run_index": None, "completed": completed, "counters": counters}


def read(end: int, peak: int, counter: str = "resident") -> dict[str, Any]:
    return {"baseline": {}, "end": {counter: end}, "peak": {counter: peak}, "alloc_retries": 0, "num_ooms": 0}


def heartbeat(phase: str, t: float, run_index: int | None = None, **peaks: dict[str, int]) -> dict[str, Any]:
    counters = {device: {"peak": peak} for device, peak in peaks.items()}
    return {"kind": "heartbeat", "t": t, "phase": phase, "run_index": run_index, "counters": counters}


def failed(*chain: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "failed", "t": 9.0, "chain": list(chain), "traceback": "Traceback ..."}


def raised(type_: str, message: str = "", *bases: str) -> dict[str, Any]:
    return {"type": type_, "bases": [*bases, "Exception", "BaseException"], "message": message}


def outcome(*journal: dict[str, Any], exit: dict[str, Any] | None = EXITED, device: str = "cpu") -> Outcome:
    attempt = Attempt(point=Point(values={"batch": 1}), device=device_named(device), number=3)
    return outcome_of(attempt, [from_json(line) for line in journal], None if exit is None else exit_from_json(exit))


def killed(**facts: Any) -> dict[str, Any]:
    return {"pid": 4711, "code": None, "signal": int(signal.SIGKILL), **facts}


@pytest.mark.parametrize(("integrated", "scope", "fits"), [(True, "device", False), (False, "host", None)])
def test_what_the_kernel_kills_on_a_device_that_shares_the_hosts_memory_did_not_fit_on_the_device(
    integrated: bool, scope: str, fits: bool | None
) -> None:
    environment = {"kind": "environment", "pid": 1, "at": None, "record": {"device_integrated": integrated}}
    found = outcome(environment, BASELINE, exit=killed(oom_kill_proof="oom_kill rose by 1"), device="cuda:0")
    assert (found.status, found.oom_scope, found.fits) == (Status.OOM_KILLED, scope, fits)


CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize(("used", "status"), [(80 * GIB - 8 * MIB, "oom"), (40 * GIB, "error"), (None, "error")])
def test_a_library_that_cannot_start_is_out_of_memory_where_the_driver_found_the_device_full(
    used: int | None, status: str
) -> None:
    environment = {"kind": "environment", "pid": 1, "at": None, "record": {"device_total_bytes": 80 * GIB}}
    counters = read(GIB, GIB, "allocated") | {"end": {} if used is None else {"used": used}}
    left = ended("forward", 2.0, completed=False, **{"cuda:0": counters})
    found = outcome(environment, BASELINE, left, failed(raised("RuntimeError", CUBLAS)), device="cuda:0")
    assert found.status == status
    assert found.needs_at_least_bytes is None


# -- the statuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("journal", "exit", "status", "scope", "fits_cpu", "fits_cuda"),
    [
        ([BASELINE, FINISHED], EXITED, "ok", None, True, True),
        ([BASELINE, FINISHED], killed(), "ok", None, True, True),  # it had reported its end before it was killed
        ([BASELINE, FINISHED], None, "lost", None, None, None),  # it never settled, so it is measured again
        ([BASELINE, failed(OOM)], EXITED, "oom", "device", False, False),
        ([BASELINE, failed(CPU_OOM)], EXITED, "oom", "host", False, None),
        ([BASELINE, failed(raised("MemoryError"))], EXITED, "oom", "host", False, None),
        ([BASELINE, failed(raised("ValueError"), OOM)], EXITED, "oom", "device", False, False),
        ([BASELINE, failed(raised("ValueError", "CUDA out of memory"))], EXITED, "error", None, None, None),
        ([BASELINE, failed(raised("SystemExit", "0"))], EXITED, "error", None, None, None),
        ([BASELINE, failed(raised("KeyboardInterrupt"))], EXITED, "error", None, None, None),
        ([failed(raised("runners.phases.Unavailable", "no device"))], EXITED, "unavailable", None, None, None),
        (
            [failed(raised("RuntimeError"), raised("runners.phases.Unavailable", "no"))],
            EXITED,
            "unavailable",
            None,
            None,
            None,
        ),
        ([BASELINE, failed(raised("mine.Unavailable", "the server"))], EXITED, "error", None, None, None),
        (
            [BASELINE, failed(raised("RuntimeError", "CUDA error: no kernel image is available for execution"))],
            EXITED,
            "unavailable",
            None,
            None,
            None,
        ),
        (
            [BASELINE, failed(raised("torch.AcceleratorError", "HIP error: invalid device function", "RuntimeError"))],
            EXITED,
            "unavailable",
            None,
            None,
            None,
        ),
        (
            [BASELINE, failed(raised("RuntimeError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"))],
            EXITED,
            "unavailable",
            None,
            None,
            None,
        ),
        ([BASELINE, failed(raised("KeyError", "invalid device function"))], EXITED, "error", None, None, None),
        ([BASELINE], killed(oom_kill_proof="oom_kill rose by 1"), "oom_killed", "host", False, None),
        ([BASELINE], killed(), "killed", None, None, None),
        ([BASELINE], killed(oom_kill_proof=None), "killed", None, None, None),
        ([BASELINE], killed(timed_out=True, reason="after 5 s"), "timeout", None, None, None),
        ([BASELINE], killed(interrupted=True, reason="Ctrl-C"), "interrupted", None, None, None),
        ([BASELINE], killed(interrupted=True, timed_out=True), "interrupted", None, None, None),
        ([BASELINE], {"code": None, "signal": int(signal.SIGSEGV)}, "crashed", None, None, None),
        ([BASELINE], {"code": None, "signal": int(signal.SIGABRT)}, "crashed", None, None, None),
        ([BASELINE], {"code": 0, "signal": None}, "crashed", None, None, None),
        ([BASELINE], {"code": 137, "signal": None}, "crashed", None, None, None),
        ([], {"code": 1, "signal": None}, "crashed", None, None, None),
        ([], {"unavailable": "no interpreter"}, "unavailable", None, None, None),
        ([BASELINE], None, "lost", None, None, None),
        ([BASELINE], {"lost": True, "reason": "the node is gone"}, "lost", None, None, None),
        (
            [BASELINE, failed(OOM)],
            None,
            "oom",
            "device",
            False,
            False,
        ),  # its own report counts, even if other processes were lost after it
        ([BASELINE, failed(OOM)], killed(timed_out=True), "oom", "device", False, False),
    ],
)
def test_a_status_follows_from_the_facts_and_only_memory_decides_whether_it_fits(
    journal: list[dict[str, Any]],
    exit: dict[str, Any] | None,
    status: str,
    scope: str | None,
    fits_cpu: bool | None,
    fits_cuda: bool | None,
) -> None:
    on_cpu, on_cuda = outcome(*journal, exit=exit), outcome(*journal, exit=exit, device="cuda:0")
    assert (on_cpu.status, on_cpu.oom_scope, on_cpu.fits) == (Status(status), scope, fits_cpu)
    assert (on_cuda.status, on_cuda.oom_scope, on_cuda.fits) == (Status(status), scope, fits_cuda)


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.NOT_RUN])
def test_an_attempt_that_was_not_made_does_not_decide_whether_it_fits(status: Status) -> None:
    assert Outcome(status=status, device=device_named("cpu")).fits is None


def test_statuses_are_the_closed_set_and_print_as_themselves() -> None:
    words = "ok oom oom_killed killed crashed timeout error unavailable interrupted lost skipped not_run"
    assert [str(status) for status in Status] == words.split()


def counted(count: int | None, largest: int | None = None) -> dict[str, Any]:
    return {**read(end=MIB, peak=MIB), "refusals": count, "refused_bytes": largest}


def test_a_pass_in_which_a_refusal_was_caught_does_not_decide_whether_the_point_fits() -> None:
    found = outcome(
        BASELINE,
        ended("try", 2.0, completed=False, cpu=counted(2, 512 * MIB)),
        ended("try", 3.0, cpu=counted(1, 256 * MIB)),
        FINISHED,
    )
    assert (found.status, found.fits) == (Status.OK, None)
    assert (found.handled_refusals, found.handled_refusal_bytes) == (3, 512 * MIB)


@pytest.mark.parametrize(
    ("counts", "handled", "fits"),
    [
        ((0, 0), 0, True),
        ((None, None), None, True),  # nothing was observed, and no refusal is known
        ((0, None), None, True),
        ((1, None), 1, None),  # at least one
        ((), None, True),
    ],
)
def test_no_refusal_is_known_only_if_every_stretch_was_observed(
    counts: tuple[int | None, ...], handled: int | None, fits: bool | None
) -> None:
    phases = [ended("step", 2.0, cpu=counted(count)) for count in counts]
    found = outcome(BASELINE, *phases, FINISHED)
    assert (found.handled_refusals, found.fits) == (handled, fits)


def added(*ends: tuple[int, int, int], mark: int = 800, kind: str = "data_limit", budget: int = 600) -> int | None:
    """What `budget_used_bytes` makes of the ends of phases: VmData, VmSize and VmPeak, in MiB, as are all numbers.

    The baseline has 300 of data in an address space of 800, and a budget of 600 follows.
    """
    before = {"resident": 220, "address": 300, "virtual": 800, "virtual_peak": mark}
    baseline = {**BASELINE, "counters": {counter: value * MIB for counter, value in before.items()}}
    journal = [baseline, {"kind": "budget", "budget_kind": kind, "budget_bytes": budget * MIB}]
    for data, size, peak in ends:
        end = {"address": data * MIB, "virtual": size * MIB, "mapped": (size - data) * MIB}
        journal.append(ended("step", 2.0, cpu={"baseline": {}, "end": end, "peak": {"address": peak * MIB}}))
    used = outcome(*journal, FINISHED).budget_used_bytes
    return None if used is None else used // MIB


def test_the_budget_used_on_cpu_is_the_most_that_was_added_to_the_data_segment() -> None:
    assert added((400, 900, 900)) == 100
    assert added((400, 900, 1000), (350, 850, 1000)) == 200, "more was held inside the first phase"
    assert added((300, 800, 800)) == 0


def test_reserved_addresses_that_became_data_count_as_data() -> None:
    """The arena of a thread: 64 MiB are mapped, and become data as they are used. Here 20 did before the peak."""
    assert added((330, 810, 810), (430, 910, 910)) == 130


def test_a_high_water_mark_from_before_the_baseline_is_no_use_of_the_budget() -> None:
    """glibc maps 64 MiB more for a moment: the mark was 67,092,480 bytes above every point."""
    assert added((316, 816, 864), mark=864) is None
    assert added((300, 800, 864), mark=864) is None
    assert added((470, 970, 970), mark=864) == 170, "it was passed, and shows the rest"


def test_a_use_that_the_readings_do_not_determine_is_null() -> None:
    assert added((310, 874, 938)) is None, "a new arena was mapped: 64 MiB of the mark may be it"
    assert added((310, 810, 1300), (310, 810, 1300), budget=100) is None, "more than the budget lets be data"
    assert added((900, 1460, 1460)) == 600, "nothing was refused, so it is the budget"


def test_under_a_limit_of_the_address_space_reserved_addresses_are_used_too() -> None:
    assert added((310, 874, 938), kind="address_limit") == 138
    assert added((310, 810, 864), mark=864, kind="address_limit") is None
    assert added((310, 874, 938), mark=864, kind="address_limit") == 138


def test_after_a_refusal_the_used_budget_is_not_known() -> None:
    """VmPeak also counts what a refused request tried to reserve: 713 MiB under a budget of 600."""
    reading = counted(1) | {"end": {"address": 0, "virtual": 0, "mapped": 0}}
    assert outcome(BASELINE, ended("step", 2.0, completed=False, cpu=reading), FINISHED).budget_used_bytes is None


def test_the_refusal_that_ends_an_attempt_was_not_handled() -> None:
    phase = ended("step", 2.0, completed=False, cpu=counted(3, 4096))
    assert outcome(BASELINE, phase, failed(CPU_OOM)).handled_refusals == 2
    once = ended("step", 2.0, completed=False, cpu=counted(1, 4096))
    assert outcome(BASELINE, once, failed(CPU_OOM)).handled_refusals == 0
    assert outcome(BASELINE, phase, failed(raised("ValueError"))).handled_refusals == 3


@pytest.mark.parametrize(("device", "scope"), [("cpu", "host"), ("cuda:0", "device")])
def test_a_batch_size_finder_that_finds_nothing_after_refusals_is_out_of_memory(device: str, scope: str) -> None:
    nothing = failed(raised("RuntimeError", "No executable batch size found, reached zero."))
    phase = ended("step", 2.0, completed=False, **{device: counted(9, 4096)})
    found = outcome(BASELINE, phase, nothing, device=device)
    assert (found.status, found.oom_scope, found.fits) == (Status.OOM, scope, False)
    assert (found.handled_refusals, found.requested_bytes) == (9, None)
    # It gives up after other errors too (CUDNN_STATUS_NOT_SUPPORTED).
    without = outcome(BASELINE, ended("step", 2.0, completed=False, **{device: counted(0)}), nothing, device=device)
    assert without.status is Status.ERROR


def test_a_refusal_of_a_simulated_device_decides_and_a_refusal_of_the_host_does_not() -> None:
    assert outcome(BASELINE, failed(OOM), device="sim:h100-80gb").fits is False
    assert outcome(BASELINE, failed(raised("MemoryError")), device="sim:h100-80gb").fits is None


# -- the words ---------------------------------------------------------------------------------------------------------


def test_an_error_keeps_its_type_its_message_and_its_traceback() -> None:
    found = outcome(BASELINE, failed(raised("mine.Awkward", "awkward"), raised("KeyError", "'x'")))
    assert (found.error_type, found.error_message, found.traceback) == ("mine.Awkward", "awkward", "Traceback ...")


@pytest.mark.parametrize(
    ("exit", "words"),
    [
        ({"code": None, "signal": 11}, "ended by SIGSEGV (11)"),
        (
            {"code": None, "signal": 11, "last_output": "Fatal Python error"},
            "ended by SIGSEGV (11): Fatal Python error",
        ),
        ({"code": None, "signal": 63}, "ended by signal 63"),
        ({"code": 137, "signal": None}, "ended without reporting a result, exit code 137"),
        ({"code": 0, "signal": None, "last_output": "bye"}, "ended without reporting a result, exit code 0: bye"),
        (killed(), "SIGKILL from an unknown sender"),
        (killed(oom_kill_proof="the kernel's log names it"), "the kernel's log names it"),
        (killed(timed_out=True, reason="not done after timeout=5 seconds"), "not done after timeout=5 seconds"),
        ({"lost": True, "reason": "the node is gone"}, "the node is gone"),
        ({"lost": True, "reason": None}, "its supervisor ended before the attempt had settled"),
        ({"unavailable": "no such interpreter"}, "no such interpreter"),
    ],
)
def test_a_process_that_reported_no_result_is_described_by_how_it_ended(exit: dict[str, Any], words: str) -> None:
    assert outcome(BASELINE, exit=exit).error_message == words


def test_a_success_has_no_error_no_failed_phase_and_its_metrics() -> None:
    found = outcome(BASELINE, ended("run", 2.0, cpu=read(300 * MIB, 400 * MIB)), FINISHED)
    assert (found.metrics, found.steps, found.tokens) == ({"loss": 1.5}, 2, 512)
    assert (found.failed_phase, found.error_type, found.error_message, found.traceback) == (None, None, None, None)
    assert found.peak_is_partial is False


def test_the_outcome_has_the_facts_of_the_supervisor_and_the_child() -> None:
    found = outcome(
        {"kind": "environment", "t": 0.5, "pid": 1, "record": {"host": "here"}},
        BASELINE,
        {"kind": "budget", "t": 1.1, "budget_kind": "data_limit", "budget_bytes": GIB},
        {"kind": "model", "t": 1.2, "facts": {"parameters": 7, "storage_dtype": "float32"}},
        FINISHED,
    )
    assert (found.attempt, found.pid, found.exit_code, found.signal) == (3, 4711, 0, None)
    assert (found.started_at, found.duration_s) == ("2026-01-01T00:00:00+00:00", 3.5)
    assert found.environment == {"host": "here"}
    assert (found.budget_kind, found.budget_bytes) == ("data_limit", GIB)
    assert found.model == {"parameters": 7, "storage_dtype": "float32"}
    assert found.process_baseline == {"resident": 220 * MIB}
    assert (found.available_memory_bytes, found.instrumented) == (8 * GIB, True)


def test_what_was_not_measured_is_none_and_never_0() -> None:
    found = outcome(failed(raised("runners.phases.Unavailable", "no device")), device="cuda:0")
    assert found.phases == ()
    assert found.peak("allocated") is None
    assert found.peak_phase is None
    assert found.peak_is_partial is None
    assert found.process_baseline == {}
    assert (found.requested_bytes, found.needs_at_least_bytes) == (None, None)
    assert (found.available_memory_bytes, found.budget_bytes, found.instrumented) == (None, None, None)


# -- where it failed ---------------------------------------------------------------------------------------------------


def test_an_attempt_that_did_not_reach_its_baseline_failed_at_the_start() -> None:
    assert outcome(failed(raised("ImportError"))).failed_phase == "start"
    assert outcome(exit={"code": 1}).failed_phase == "start"


def test_an_attempt_that_failed_before_its_first_phase_failed_between() -> None:
    assert (
        outcome(BASELINE, ended("between", 2.0, False, cpu=read(1, 1)), failed(raised("E"))).failed_phase == "between"
    )
    assert outcome(BASELINE, exit={"code": 1}).failed_phase == "between"


def test_an_exception_that_leaves_a_phase_failed_in_it_and_not_in_the_stretch_after_it() -> None:
    shown = {"requested_bytes": 1000, "held": {"tensor": 300 * MIB}, "needs_bytes": 300 * MIB + 1000}
    found = outcome(
        BASELINE,
        ended("forward", 2.0, False, cpu=read(300 * MIB, 400 * MIB) | {"refused": shown}),
        ended("between", 2.1, cpu=read(230 * MIB, 300 * MIB)),
        failed(CPU_OOM),
    )
    assert found.failed_phase == "forward"
    assert found.needs_at_least_bytes == 300 * MIB + 1000, "held at the refusal, not after the unwinding"


def test_an_exception_after_the_last_phase_failed_between() -> None:
    found = outcome(
        BASELINE,
        ended("caught", 2.0, False, cpu=read(1, 1)),
        ended("forward", 3.0, cpu=read(1, 1)),
        ended("between", 4.0, False, cpu=read(1, 1)),
        failed(raised("E")),
    )
    assert found.failed_phase == "between"


def test_a_process_that_died_inside_a_phase_failed_in_it() -> None:
    found = outcome(BASELINE, ended("between", 2.0, cpu=read(1, 1)), began("step", 2.0, 4, cpu={}), exit=killed())
    assert found.failed_phase == "step"
    assert (found.phases[-1].run_index, found.phases[-1].completed) == (4, False)


def test_a_process_that_died_after_a_phase_died_between() -> None:
    found = outcome(BASELINE, ended("forward", 2.0, cpu=read(300 * MIB, 400 * MIB)), exit=killed())
    assert found.failed_phase == "between"
    assert found.phases[-1].baseline == {"resident": 300 * MIB}


# -- peaks, and parts of them ------------------------------------------------------------------------------------------


def test_a_peak_is_the_highest_of_all_phases_and_names_its_phase() -> None:
    found = outcome(
        ended("one", 2.0, cpu=read(1, 5)),
        ended("two", 3.0, cpu=read(1, 9)),
        ended("three", 4.0, cpu=read(1, 9)),
        FINISHED,
    )
    assert (found.peak("resident"), found.peak_phase) == (9, "two")


def test_on_cuda_the_peak_phase_is_that_of_the_allocator_and_not_of_the_host() -> None:
    one = {"end": {}, "peak": {"allocated": 5, "resident": 900}}
    two = {"end": {}, "peak": {"allocated": 9, "resident": 100}}
    found = outcome(
        ended("one", 2.0, **{"cuda:0": one}), ended("two", 3.0, **{"cuda:0": two}), FINISHED, device="cuda:0"
    )
    assert found.peak_phase == "two"


def test_the_peak_of_several_devices_is_the_highest_and_no_sum() -> None:
    both = {"cuda:0": read(1, 5, "allocated"), "cuda:1": read(1, 7, "allocated")}
    found = outcome(ended("run", 2.0, **both), FINISHED, device="cuda:0+cuda:1")
    assert found.peak("allocated") == 7
    assert [(phase.device, phase.peak["allocated"]) for phase in found.phases] == [("cuda:0", 5), ("cuda:1", 7)]


def test_an_unfinished_phase_keeps_its_highest_heartbeat() -> None:
    found = outcome(
        BASELINE,
        began("step", 2.0, cpu={"resident": 100}),
        heartbeat("step", 2.2, cpu={"resident": 500, "tensor": 40}),
        heartbeat("step", 2.4, cpu={"resident": 400, "tensor": 50}),
        exit={"code": 1},
    )
    (phase,) = found.phases
    assert phase.peak == {"resident": 500, "tensor": 50}
    assert phase.baseline == {"resident": 100}
    assert phase.end == {}
    assert found.peak_is_partial


def test_a_heartbeat_that_was_written_too_late_does_not_count_for_the_next_phase() -> None:
    found = outcome(
        BASELINE,
        began("one", 2.0, 0, cpu={}),
        ended("one", 3.0, cpu=read(1, 900)),
        heartbeat("one", 3.01, 0, cpu={"resident": 900}),
        ended("between", 3.1, cpu=read(1, 1)),
        began("one", 3.1, 1, cpu={}),
        heartbeat("one", 3.11, 0, cpu={"resident": 900}),
        heartbeat("one", 3.2, 1, cpu={"resident": 7}),
        exit={"code": 1},
    )
    assert found.phases[-1].peak == {"resident": 7}


UNREAD: dict[str, Any] = {"baseline": {}, "end": {}, "peak": {}}


def test_a_phase_without_counters_at_its_end_leaves_a_lower_bound_and_no_peak_of_the_others() -> None:
    found = outcome(BASELINE, ended("one", 2.0, cpu=read(1, 900)), ended("two", 3.0, cpu=UNREAD), FINISHED)
    assert (found.status, found.fits, found.peak_is_partial) == (Status.OK, True, True)
    assert found.peak("resident") == 900
    assert found.phases[-1].peak == {}


def test_readings_inside_a_phase_without_counters_at_its_end_are_its_lower_bound() -> None:
    outside = [
        {"t": 2.1, "resident": 1700, "until": 2.2},
        {"t": 2.9, "resident": 5000, "until": 3.1},  # across the end: it may be of the next phase
        {"t": 2.3, "resident": 6000},  # of an earlier version
    ]
    found = outcome(
        BASELINE,
        ended("one", 2.0, cpu=read(1, 900)),
        began("two", 2.0, cpu={"resident": 1}),
        heartbeat("two", 2.5, cpu={"resident": 1500}),
        ended("two", 3.0, cpu=UNREAD) | {"run_index": None},
        FINISHED,
        exit=EXITED | {"outside": outside},
    )
    assert found.phases[-1].peak == {"resident": 1700}
    assert (found.peak("resident"), found.peak_phase, found.peak_is_partial) == (1700, "two", True)


@pytest.mark.parametrize(
    ("supervisor", "peak", "phase"),
    [(15 * MIB, 600 * MIB, None), (600 * MIB, 300 * MIB, "one"), (None, 600 * MIB, None)],
)
def test_the_mark_at_death_bounds_an_attempt_whose_last_counters_were_not_read(
    supervisor: int | None, peak: int, phase: str | None
) -> None:
    ends = EXITED | {"maxrss_bytes": 600 * MIB, "supervisor_resident_bytes": supervisor}
    one = ended("one", 2.0, cpu=read(1, 300 * MIB))
    found = outcome(
        BASELINE, one, ended("two", 3.0, cpu=UNREAD), ended("between", 3.0, cpu=UNREAD), FINISHED, exit=ends
    )
    assert (found.peak("resident"), found.peak_phase, found.peak_is_partial) == (peak, phase, True)
    assert outcome(BASELINE, one, FINISHED, exit=ends).peak("resident") == 300 * MIB, "every counter was read"


def test_a_mark_after_a_boundary_that_was_not_read_counts_for_the_point_and_for_no_phase() -> None:
    two, three = ended("two", 3.0, cpu=UNREAD), ended("three", 4.0, cpu=read(1, 800))
    found = outcome(BASELINE, ended("one", 2.0, cpu=read(1, 300)), two, three, FINISHED)
    assert [phase.peak for phase in found.phases] == [{"resident": 300}, {}, {}]
    assert (found.peak("resident"), found.peak_phase, found.peak_is_partial) == (800, None, True)


def test_a_reading_above_the_counter_wins_and_the_peak_is_a_lower_bound() -> None:
    for by, partial in ((80 * MIB, True), (2 * MIB, False)):  # the kernel's mark may lag by a little
        reading = 300 * MIB + by
        for outside in ([], [{"t": 2.1, "resident": reading, "until": 2.2}]):
            beats = [] if outside else [heartbeat("one", 2.5, cpu={"resident": reading})]
            found = outcome(
                BASELINE,
                began("one", 2.0, cpu={"resident": 1}),
                *beats,
                ended("one", 3.0, cpu=read(1, 300 * MIB)),
                FINISHED,
                exit=EXITED | {"outside": outside},
            )
            assert (found.peak("resident"), found.peak_phase) == (reading, "one")
            assert found.peak_is_partial is partial


def test_a_reset_of_torchs_own_peak_on_cuda_leaves_the_higher_heartbeat() -> None:
    found = outcome(
        began("one", 2.0, **{"cuda:0": {}}),
        heartbeat("one", 2.5, **{"cuda:0": {"allocated": 900}}),
        ended("one", 3.0, **{"cuda:0": read(1, 300, "allocated")}),
        FINISHED,
        device="cuda:0",
    )
    assert (found.peak("allocated"), found.peak_is_partial) == (900, True)


def test_a_counter_that_one_phase_does_not_have_has_no_peak_of_the_attempt() -> None:
    one, two = read(1, 900), read(1, 950)
    one["peak"] |= {"tensor": 70}
    found = outcome(BASELINE, ended("one", 2.0, cpu=one), ended("compiled", 3.0, cpu=two), FINISHED)
    assert (found.peak("resident"), found.peak("tensor"), found.peak_is_partial) == (950, None, False)


def test_heartbeats_before_the_first_phase_belong_to_between() -> None:
    found = outcome(BASELINE, heartbeat("between", 1.2, cpu={"resident": GIB}), exit={"code": 1})
    (phase,) = found.phases
    assert (phase.name, phase.peak, phase.baseline) == ("between", {"resident": GIB}, {"resident": 220 * MIB})


def test_a_partial_peak_is_not_below_what_was_held_as_the_phase_began() -> None:
    found = outcome(BASELINE, heartbeat("between", 1.2, cpu={"resident": 219 * MIB}), exit={"code": 1})
    assert found.phases[0].peak == {"resident": 220 * MIB}


def test_a_process_that_ended_at_its_baseline_has_no_phase() -> None:
    assert outcome(BASELINE, exit={"code": 1}).phases == ()


def test_a_reading_from_outside_counts_if_it_was_taken_inside_the_phase() -> None:
    outside = [{"t": 1.9, "resident": 900}, {"t": 2.1, "resident": 500}, {"t": 2.3, "resident": None}]
    found = outcome(BASELINE, began("step", 2.0, cpu={}), exit={"code": 1, "signal": None, "outside": outside})
    assert found.phases[-1].peak == {"resident": 500}


def test_the_higher_of_heartbeat_and_outside_reading_is_the_partial_peak() -> None:
    for inside, outside in ((800, 500), (500, 800)):
        found = outcome(
            BASELINE,
            began("step", 2.0, cpu={}),
            heartbeat("step", 2.2, cpu={"resident": inside}),
            exit={"code": 1, "outside": [{"t": 2.5, "resident": outside}]},
        )
        assert found.phases[-1].peak == {"resident": 800}


@pytest.mark.parametrize(
    ("exit", "resident"),
    [
        (killed(maxrss_bytes=600 * MIB, supervisor_resident_bytes=15 * MIB), 600 * MIB),
        (killed(maxrss_bytes=600 * MIB, supervisor_resident_bytes=None), 600 * MIB),
        # the mark that a process starts with is its parent's: a figure that is not above it proves nothing
        (killed(maxrss_bytes=600 * MIB, supervisor_resident_bytes=600 * MIB), None),
        (killed(maxrss_bytes=None, supervisor_resident_bytes=15 * MIB), None),
        ({"code": 1, "signal": None, "maxrss_bytes": 600 * MIB, "supervisor_resident_bytes": 15 * MIB}, None),
    ],
)
def test_the_kernels_mark_at_death_counts_after_a_signal_and_above_the_supervisors_own(
    exit: dict[str, Any], resident: int | None
) -> None:
    found = outcome(BASELINE, began("step", 2.0, cpu={}), exit=exit)
    assert found.phases[-1].peak.get("resident") == resident
    assert found.peak("resident") == resident


def test_the_mark_at_death_counts_for_the_unfinished_phase_only() -> None:
    found = outcome(
        BASELINE,
        ended("one", 2.0, cpu=read(100 * MIB, 300 * MIB)),
        exit=killed(maxrss_bytes=250 * MIB, supervisor_resident_bytes=15 * MIB),
    )
    assert [(phase.name, phase.peak["resident"]) for phase in found.phases] == [
        ("one", 300 * MIB),
        ("between", 250 * MIB),
    ]


def test_only_the_first_of_several_devices_has_the_hosts_mark() -> None:
    found = outcome(
        BASELINE,
        began("step", 2.0, **{"cuda:0": {"allocated": 1}, "cuda:1": {"allocated": 2}}),
        heartbeat("step", 2.2, **{"cuda:0": {"allocated": 10}, "cuda:1": {"allocated": 20}}),
        exit=killed(maxrss_bytes=600 * MIB, supervisor_resident_bytes=15 * MIB),
        device="cuda:0+cuda:1",
    )
    assert [(phase.device, dict(phase.peak)) for phase in found.phases] == [
        ("cuda:0", {"allocated": 10, "resident": 600 * MIB}),
        ("cuda:1", {"allocated": 20}),
    ]


def test_each_of_several_devices_read_before_the_first_phase_has_a_row() -> None:
    found = outcome(
        BASELINE,
        heartbeat("between", 1.2, **{"cuda:0": {"allocated": 10}, "cuda:1": {"allocated": 20}}),
        exit={"code": 1},
        device="cuda:0+cuda:1",
    )
    assert [(phase.device, phase.peak["allocated"]) for phase in found.phases] == [("cuda:0", 10), ("cuda:1", 20)]
    assert found.phases[0].baseline == {"resident": 220 * MIB}


def test_a_failure_raised_by_the_end_of_a_phase_keeps_the_phase_and_its_readings() -> None:
    found = outcome(
        BASELINE,
        began("forward", 2.0, **{"cuda:0": {"allocated": 1}}),
        heartbeat("forward", 2.2, **{"cuda:0": {"allocated": 10}}),
        failed(raised("RuntimeError", "CUDA error: device-side assert triggered")),
        device="cuda:0",
    )
    assert (found.status, found.failed_phase, found.peak("allocated")) == (Status.ERROR, "forward", 10)


# -- how much it would have needed -------------------------------------------------------------------------------------


def refused(device: str, cause: dict[str, Any], counter: str, **counters: Any) -> Outcome:
    readings = {name: read(held, held, counter) for name, held in counters.items()}
    return outcome(BASELINE, ended("fill", 2.0, False, **readings), failed(cause), device=device)


def test_a_refusal_needs_at_least_the_bytes_held_and_requested() -> None:
    shown = {"requested_bytes": 64 * MIB, "held": {"allocated": GIB}, "needs_bytes": GIB + 62 * MIB + 512}
    left = ended("fill", 2.0, False, **{"cuda:0": read(7 * MIB, GIB, "allocated") | {"refused": shown}})
    found = outcome(BASELINE, left, failed(OOM), device="cuda:0")
    assert (found.requested_bytes, found.needs_at_least_bytes) == (64 * MIB, GIB + 62 * MIB + 512)


def test_on_cpu_a_refusal_needs_the_live_tensors_and_the_request_and_resident_memory_proves_nothing() -> None:
    """Memory freed to malloc stays resident, and the request may be met from it."""
    shown = {"requested_bytes": 1000, "held": {"tensor": 64 * MIB}, "needs_bytes": 64 * MIB + 1000}
    left = ended("fill", 2.0, False, cpu=read(GIB, GIB, "resident") | {"refused": shown})
    found = outcome(BASELINE, left, failed(CPU_OOM))
    assert (found.requested_bytes, found.needs_at_least_bytes) == (1000, 64 * MIB + 1000)
    assert refused("cpu", CPU_OOM, "resident", cpu=GIB).needs_at_least_bytes is None


@pytest.mark.parametrize(
    ("message", "least", "most"),
    [
        (
            "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 1.00 GiB of which 4.00 MiB "
            "is free. Of the allocated memory 1.00 GiB is allocated by PyTorch, and 0 bytes is reserved",
            1.994 * GIB / 2 + 62 * MIB,
            GIB + 64 * MIB,
        ),
        (
            "CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 1.00 GiB total capacity; 960.00 MiB already "
            "allocated; 4.00 MiB free; 960.00 MiB reserved in total by PyTorch)",
            959 * MIB + 62 * MIB,
            960 * MIB + 64 * MIB,
        ),
        (
            "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
            "Currently allocated     : 960.00 MiB\nRequested               : 64.00 MiB\nDevice limit : 1.00 GiB",
            1023 * MIB,
            1024 * MIB,
        ),
    ],
)
def test_the_message_of_a_refusal_says_what_was_held_when_the_exception_has_freed_it(
    message: str, least: int, most: int
) -> None:
    refusal = raised("torch.OutOfMemoryError", message, "RuntimeError")
    found = refused("cuda:0", refusal, "allocated", **{"cuda:0": MIB})
    assert found.needs_at_least_bytes is not None
    assert least < found.needs_at_least_bytes <= most


def test_a_large_segment_of_another_size_is_no_large_need() -> None:
    message = (
        "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 1.00 GiB of which 4.00 MiB is "
        "free. Of the allocated memory 512.00 MiB is allocated by PyTorch, and 0 bytes is reserved"
    )
    refusal = failed(raised("torch.OutOfMemoryError", message, "RuntimeError"))
    left = ended("fill", 2.0, False, **{"cuda:0": read(MIB, GIB, "allocated")})
    record = {"allocator_settings": "expandable_segments:True,large_segment_size_mb:64"}
    environment = {"kind": "environment", "pid": 1, "at": None, "record": record}
    found = outcome(environment, BASELINE, left, refusal, device="cuda:0")
    assert found.needs_at_least_bytes is not None
    assert 512 * MIB < found.needs_at_least_bytes < 514 * MIB


def test_what_a_device_still_held_after_the_exception_is_not_taken_for_what_it_held() -> None:
    assert refused("cuda:0", OOM, "allocated", **{"cuda:0": 64 * MIB}).needs_at_least_bytes is None


def test_without_the_bytes_held_or_requested_there_is_no_lower_bound() -> None:
    assert refused("cpu", raised("MemoryError"), "resident", cpu=GIB).needs_at_least_bytes is None
    assert refused("cuda:0", OOM, "reserved", **{"cuda:0": GIB}).needs_at_least_bytes is None
    assert outcome(BASELINE, failed(OOM), device="cuda:0").needs_at_least_bytes is None


def test_refused_host_memory_gives_no_lower_bound_of_a_device() -> None:
    assert refused("cuda:0", CPU_OOM, "allocated", **{"cuda:0": GIB}).needs_at_least_bytes is None


def test_several_devices_have_no_lower_bound() -> None:
    both = {"cuda:0": GIB, "cuda:1": 2 * GIB}
    found = refused("cuda:0+cuda:1", OOM, "allocated", **both)
    assert (found.status, found.fits, found.needs_at_least_bytes) == (Status.OOM, False, None)


def test_the_memory_of_a_process_that_calculates_is_no_figure_of_the_device() -> None:
    began_there = began("step", 2.0, **{"sim:h100-80gb": {}})
    outside = [{"t": 2.1, "resident": 500}]
    for exit in ({"code": 1, "outside": outside}, killed(maxrss_bytes=600 * MIB, outside=outside)):
        found = outcome(began_there, exit=exit, device="sim:h100-80gb")
        assert found.peak("resident") is None
        assert found.phases[-1].peak == {}

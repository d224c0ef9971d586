"""The CUDA meter: its exact calls, against a stand-in for torch.cuda that is written from PyTorch's documentation."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runners import journal
from runners.device import device_named
from runners.facts import Cause, Exit, Failed, Finished
from runners.journal import Journal
from runners.meters import cuda, cuda_statistics, nvml
from runners.meters.cpu import CpuMeter
from runners.outcome import Outcome, Status, outcome_of
from runners.phases import Phases, Unavailable
from runners.point import Attempt, Point

MIB = 2**20
GIB = 2**30


def _stand_in(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


stand_in = _stand_in("cuda_stand_in")
Device: Any = stand_in.Device
Torch: Any = stand_in.Torch

# The statistics are read once more before a reset, which stores the workload's own peaks.
BOUNDARY = ["synchronize", "memory_stats", "mem_get_info", "memory_stats", "reset_peak_memory_stats"]
BOUNDARY_AFTER_A_FAILURE = ["memory_stats", "mem_get_info", "synchronize", "memory_stats", "reset_peak_memory_stats"]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Puts a stand-in in the place of torch, in the meter's modules alone."""

    def put(*devices: Any, **options: Any) -> Any:
        torch = Torch(*devices, **options)
        for module in (cuda, cuda_statistics):
            monkeypatch.setattr(module, "torch", torch)
        return torch

    return put


class Measured:
    """An attempt, as the measured process makes it: the meter, the phases, and the journal it leaves."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.path = folder / "journal.jsonl"
        self.names = names
        self.meter = cuda.CudaMeter(list(range(len(names))), names, CpuMeter())
        self.phase = Phases(self.meter, Journal(self.path))
        self.phase.open()

    def fail(self, error: BaseException) -> None:
        """What the measured process does with an exception that reaches it."""
        self.phase.close(completed=error is self.phase.raised)
        bases = [base.__name__ for base in type(error).__mro__[1:-1]]
        Journal(self.path).write(Failed([Cause(type(error).__name__, bases, str(error))], traceback=""))

    def finish(self) -> Outcome:
        self.phase.close(completed=True)
        Journal(self.path).write(Finished(metrics=None, steps=None, tokens=None))
        return self.outcome

    @property
    def ended(self) -> list[dict[str, Any]]:
        return [line for line in journal.read_lines(self.path) if line["kind"] == "ended"]

    def counters(self, phase: str, device: str = "cuda:0") -> dict[str, Any]:
        found: dict[str, Any] = next(line for line in self.ended if line["phase"] == phase)["counters"][device]
        return found

    @property
    def outcome(self) -> Outcome:
        attempt = Attempt(point=Point(values={"batch": 1}), device=device_named("+".join(self.names)))
        return outcome_of(attempt, journal.read(self.path), Exit(code=0))


@pytest.fixture
def measure(tmp_path: Path) -> Iterator[Callable[..., Measured]]:
    def begin(*names: str) -> Measured:
        return Measured(tmp_path, names or ("cuda:0",))

    return begin


def test_a_phase_is_bracketed_by_the_documented_calls_in_their_order(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()
    torch.names()
    with measured.phase("forward"):
        assert torch.names() == BOUNDARY
        device.take(512 * MIB)
        assert torch.names() == [], "inside a phase the device is left alone"
    assert torch.names() == BOUNDARY


def test_after_a_failure_the_peaks_are_read_before_anything_that_can_raise(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()

    def forward() -> None:
        with measured.phase("forward"):
            device.take(512 * MIB)
            torch.names()
            raise RuntimeError("the workload's own")

    with pytest.raises(RuntimeError, match="the workload's own"):
        forward()
    assert torch.names() == BOUNDARY_AFTER_A_FAILURE
    assert measured.counters("forward")["peak"]["allocated"] == 512 * MIB


def test_a_phase_has_the_bytes_held_before_it_after_it_and_at_most(install: Any, measure: Any) -> None:
    install(device := Device())
    device.take(100 * MIB)
    measured = measure()
    with measured.phase("forward"):
        device.take(300 * MIB)
        device.drop(300 * MIB)
        device.take(50 * MIB)
    counters = measured.counters("forward")
    for counter in ("allocated", "requested", "active"):
        assert counters["baseline"][counter] == 100 * MIB
        assert counters["end"][counter] == 150 * MIB
        assert counters["peak"][counter] == 400 * MIB
    assert counters["baseline"]["reserved"] == 100 * MIB
    assert counters["end"]["reserved"] == counters["peak"]["reserved"] == 400 * MIB, "what is freed stays reserved"


def test_weights_that_are_alive_at_a_reset_stay_in_the_later_peaks(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()
    with measured.phase("weights"):
        device.take(256 * MIB)
    with measured.phase("work"):
        device.take(64 * MIB)
        device.drop(64 * MIB)
    assert measured.counters("work")["peak"]["allocated"] == 320 * MIB


def test_a_peak_that_is_over_is_no_part_of_the_next_phase(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()
    with measured.phase("big"):
        device.take(512 * MIB)
        device.drop(512 * MIB)
    with measured.phase("small"):
        device.take(MIB)
    assert measured.counters("small")["peak"]["allocated"] == MIB
    assert measured.counters("small")["peak"]["reserved"] == 514 * MIB, "the cache, and a segment for small sizes"


def test_the_stretch_between_two_phases_is_measured(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()
    with measured.phase("one"):
        pass
    device.take(7 * MIB)
    device.drop(7 * MIB)
    measured.phase.close(completed=True)
    assert measured.ended[-1]["phase"] == "between"
    assert measured.ended[-1]["counters"]["cuda:0"]["peak"]["allocated"] == 7 * MIB


def test_rounding_shows_as_the_difference_of_allocated_and_requested(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()
    with measured.phase("odd"):
        device.take(1000)
    assert measured.counters("odd")["peak"]["requested"] == 1000
    assert measured.counters("odd")["peak"]["allocated"] == 1024


def test_used_is_of_the_whole_device_and_has_no_peak(install: Any, measure: Any) -> None:
    install(device := Device(others=3 * GIB))
    measured = measure()
    with measured.phase("forward"):
        device.take(2 * GIB)
    counters = measured.counters("forward")
    assert counters["end"]["used"] == stand_in.CONTEXT_BYTES + 3 * GIB + 2 * GIB
    assert "used" not in counters["peak"]


def test_retries_and_refusals_are_counted_for_each_phase(install: Any, measure: Any) -> None:
    install(device := Device(num_alloc_retries=5, num_ooms=1))
    measured = measure()
    with measured.phase("forward"):
        device.num_alloc_retries += 2
    with measured.phase("backward"):
        device.num_ooms += 1
    assert (measured.counters("forward")["alloc_retries"], measured.counters("forward")["num_ooms"]) == (2, 0)
    assert (measured.counters("backward")["alloc_retries"], measured.counters("backward")["num_ooms"]) == (0, 1)


def fill(device: Any, measured: Measured, count: int, size: int) -> Outcome:
    """A phase that keeps `count` tensors in a list, which an exception empties before anybody reads a counter."""

    def fill() -> None:
        with measured.phase("fill"):
            _ = [device.tensor(size) for _ in range(count)]

    with pytest.raises(RuntimeError) as refused:
        fill()
    error = refused.value.with_traceback(None)
    measured.fail(error)
    return measured.outcome


def test_refusals_that_reach_the_workload_are_counted_and_those_that_a_library_handles_are_not(
    install: Any, measure: Any
) -> None:
    """cuDNN is refused a workspace and takes a smaller one: the allocator counts it, and no exception is raised."""
    torch = install(device := Device())
    measured = measure()
    with measured.phase("convolution"):
        device.num_ooms += 1
    with measured.phase("too much"):
        for size in ("512.00 MiB", "256.00 MiB"):
            with contextlib.suppress(RuntimeError):
                device.num_ooms += 1
                raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size}.")
    outcome = measured.finish()
    assert (measured.counters("convolution")["num_ooms"], measured.counters("convolution")["refusals"]) == (1, 0)
    assert (measured.counters("too much")["num_ooms"], measured.counters("too much")["refusals"]) == (2, 2)
    assert (outcome.status, outcome.fits) == (Status.OK, None)
    assert (outcome.handled_refusals, outcome.handled_refusal_bytes) == (2, 512 * MIB)


def test_a_pass_in_which_only_a_library_was_refused_a_workspace_fits(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()
    with measured.phase("convolution"):
        device.num_ooms += 1
    outcome = measured.finish()
    assert (outcome.fits, outcome.handled_refusals) == (True, 0)


def test_a_refused_allocation_is_an_oom_with_a_partial_peak_and_a_lower_bound(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()
    cuda.limit("cuda:0", 0, GIB)
    outcome = fill(device, measured, 32, 64 * MIB)
    assert torch.devices[0].allocator.allocated == 0, "the exception freed the list"
    assert measured.counters("fill")["end"]["allocated"] == 0
    assert outcome.status is Status.OOM
    assert outcome.fits is False
    assert outcome.failed_phase == "fill"
    assert outcome.peak_is_partial
    assert outcome.peak("allocated") == GIB
    assert outcome.requested_bytes == 64 * MIB
    assert outcome.needs_at_least_bytes == GIB + 62 * MIB + 512, "a segment of 64 MiB is for a tensor above 62 MiB"
    assert measured.counters("fill")["num_ooms"] == 1


@pytest.mark.parametrize(
    ("size", "segment", "least"),
    [(700, 2 * MIB, 512), (3 * MIB, 20 * MIB, MIB + 512), (11 * MIB, 12 * MIB, 10 * MIB + 512)],
)
def test_a_small_tensor_is_not_said_to_need_its_whole_segment(
    install: Any, measure: Any, size: int, segment: int, least: int
) -> None:
    install(device := Device())
    measured = measure()
    cuda.limit("cuda:0", 0, 64 * MIB)
    device.take(64 * MIB)
    outcome = fill(device, measured, 1, size)
    assert outcome.requested_bytes == segment
    assert outcome.needs_at_least_bytes == 64 * MIB + least
    assert outcome.needs_at_least_bytes <= 64 * MIB + -(-size // 512) * 512, "never more than it needs"


def test_a_large_segment_of_another_size_is_known_by_the_settings(
    install: Any, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:20")
    torch = install(device := Device())
    measured = measure()
    cuda.limit("cuda:0", 0, 64 * MIB)
    device.take(64 * MIB)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:64")

    def refuse() -> None:
        with measured.phase("fill"):
            torch.observers[0](0, 64 * MIB, 64 * MIB, 0)
            raise stand_in.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")

    with pytest.raises(RuntimeError) as refused:
        refuse()
    measured.fail(refused.value)
    assert measured.outcome.needs_at_least_bytes == 65 * MIB + 512


def test_a_request_above_one_gib_is_exact_and_not_the_message_with_two_decimals(install: Any, measure: Any) -> None:
    install(device := Device(total=8 * GIB))
    outcome = fill(device, measure(), 1, 9 * GIB + 3 * MIB)
    assert outcome.requested_bytes == 9 * GIB + 4 * MIB


def test_the_figures_of_the_message_stand_where_the_allocator_shows_no_refusal(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()
    torch.observers.clear()
    cuda.limit("cuda:0", 0, GIB)
    outcome = fill(device, measured, 32, 64 * MIB)
    assert outcome.requested_bytes == 64 * MIB
    assert outcome.needs_at_least_bytes is not None
    assert GIB + 62 * MIB - 6 * MIB < outcome.needs_at_least_bytes <= GIB + 64 * MIB


def test_a_refusal_in_which_nvml_fails_is_an_oom_without_a_lower_bound(install: Any, measure: Any) -> None:
    install(device := Device(nvml_fails=True, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb"))
    measured = measure()
    cuda.limit("cuda:0", 0, GIB)
    outcome = fill(device, measured, 32, 64 * MIB)
    assert (outcome.status, outcome.fits) == (Status.OOM, False)
    assert outcome.error_type == "RuntimeError"
    assert outcome.peak("allocated") == GIB
    assert (outcome.requested_bytes, outcome.needs_at_least_bytes) == (None, None)
    assert measured.counters("fill")["num_ooms"] == 0, "torch did not get as far as counting it"


def test_a_refusal_that_was_handled_lends_its_figures_to_no_other_failure(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()
    cuda.limit("cuda:0", 0, GIB)

    def work() -> None:
        with measured.phase("work"):
            with pytest.raises(RuntimeError, match="out of memory"):
                device.tensor(2 * GIB)
            raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="CUDA error") as failure:
        work()
    measured.fail(failure.value)
    assert measured.outcome.status is Status.OOM
    assert (measured.outcome.requested_bytes, measured.outcome.needs_at_least_bytes) == (None, None)


def test_of_several_devices_the_one_that_refused_has_the_lower_bound(install: Any, measure: Any) -> None:
    install(Device(), second := Device())
    measured = measure("cuda:2", "cuda:5")
    for index, name in enumerate(("cuda:2", "cuda:5")):
        cuda.limit(name, index, GIB)
    outcome = fill(second, measured, 32, 64 * MIB)
    assert outcome.needs_at_least_bytes == GIB + 62 * MIB + 512


# -- the workload's own resets -----------------------------------------------------------------------------------------

RESETS = {
    "torch.cuda.reset_peak_memory_stats": lambda torch: torch.cuda.reset_peak_memory_stats(0),
    "torch.cuda.reset_max_memory_allocated": lambda torch: torch.cuda.reset_max_memory_allocated(),
    "torch.accelerator.reset_peak_memory_stats": lambda torch: torch.accelerator.reset_peak_memory_stats(),
}


@pytest.mark.parametrize("name", RESETS)
def test_a_workload_that_resets_the_peak_does_not_shrink_its_own_figure(install: Any, measure: Any, name: str) -> None:
    torch = install(device := Device())
    measured = measure()
    with measured.phase("train"):
        device.take(8 * GIB)
        device.drop(8 * GIB)
        RESETS[name](torch)
        device.take(MIB)
        assert measured.meter.glance()["cuda:0"].peak["allocated"] == 8 * GIB, "a heartbeat has it too"
    with measured.phase("later"):
        pass
    peak = measured.counters("train")["peak"]
    assert (peak["allocated"], peak["requested"], peak["active"]) == (8 * GIB, 8 * GIB, 8 * GIB)
    assert measured.counters("later")["peak"]["allocated"] == MIB
    assert measured.outcome.peak("allocated") == 8 * GIB


@pytest.mark.parametrize("name", RESETS)
def test_a_workload_reads_the_peaks_that_torch_would_give_it_without_the_meter(
    install: Any, measure: Any, name: str
) -> None:
    torch = install(device := Device())
    measured = measure()
    with measured.phase("load"):
        device.take(2 * GIB)
        RESETS[name](torch)
        device.take(3 * GIB)
        device.drop(3 * GIB)
    with measured.phase("step"):
        device.take(GIB)
        assert torch.cuda.max_memory_allocated() == torch.accelerator.max_memory_allocated() == 5 * GIB
        assert torch.cuda.memory_stats()["requested_bytes.all.peak"] == 5 * GIB
        assert torch.cuda.max_memory_reserved() == 5 * GIB
        assert torch.cuda.memory_allocated() == 3 * GIB
        RESETS[name](torch)
        assert torch.cuda.max_memory_allocated() == 3 * GIB, "its own reset works"
    assert measured.counters("step")["peak"]["allocated"] == 3 * GIB


def test_a_workload_that_resets_the_counts_hides_no_refusal(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()
    with measured.phase("fit"):
        with pytest.raises(RuntimeError, match="out of memory"):
            device.tensor(100 * GIB)
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.memory_stats()["num_ooms"] == 0
        with pytest.raises(RuntimeError, match="out of memory"):
            device.tensor(100 * GIB)
        torch.accelerator.reset_accumulated_memory_stats()
    assert (measured.counters("fit")["num_ooms"], measured.counters("fit")["alloc_retries"]) == (2, 2)


# -- allocators that do not count --------------------------------------------------------------------------------------


def no_counters(counters: dict[str, Any]) -> bool:
    return not DEVICE_COUNTERS & set(counters["peak"]) and set(counters["end"]) & DEVICE_COUNTERS == {"used"}


def test_without_caching_nothing_is_counted_and_no_peak_is_0(
    install: Any, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")
    install(device := Device())
    measured = measure()
    with measured.phase("forward"):
        device.take(512 * MIB)
    assert no_counters(measured.counters("forward"))
    assert measured.counters("forward")["num_ooms"] is None
    with pytest.raises(Unavailable, match=r"^cuda:0: a budget limits .*, and PYTORCH_NO_CUDA_MEMORY_CACHING is set$"):
        cuda.limit("cuda:0", 0, GIB)


def test_once_a_workload_disables_caching_nothing_is_counted(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()
    with measured.phase("before"):
        device.take(GIB)
    with measured.phase("without"):
        torch._C._cuda_cudaCachingAllocator_enable(False)
        device.take(8 * GIB)
        torch._C._cuda_cudaCachingAllocator_enable(True)
    assert measured.counters("before")["peak"]["allocated"] == GIB
    assert no_counters(measured.counters("without"))


def test_a_pluggable_allocator_has_no_counters_and_takes_no_budget(install: Any, measure: Any) -> None:
    install(device := Device(), backend="pluggable")
    measured = measure()
    with measured.phase("forward"):
        device.take(GIB)
    assert no_counters(measured.counters("forward"))
    with pytest.raises(Unavailable, match=r"the allocator is pluggable, not PyTorch's own$"):
        cuda.limit("cuda:0", 0, GIB)


def test_cudamallocasync_takes_no_budget_since_it_would_limit_another_counter(install: Any) -> None:
    torch = install(Device(), backend="cudaMallocAsync")
    with pytest.raises(Unavailable, match="caching allocator reserves, and the allocator is cudaMallocAsync, not"):
        cuda.limit("cuda:0", 0, GIB)
    assert torch.calls == []


def test_the_private_pools_of_graphs_are_read_once_a_graph_was_captured(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()
    with measured.phase("eager"):
        device.take(64 * MIB)
    with measured.phase("capture"):
        device.capture(2 * GIB)
    assert "graph_pools" not in measured.counters("eager")["end"]
    assert measured.counters("capture")["end"]["graph_pools"] == 2 * GIB
    assert measured.counters("capture")["end"]["allocated"] == 64 * MIB, "which a replay does not show"
    assert measured.outcome.peak("graph_pools") == 2 * GIB


# -- a device that cannot be opened ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["CUDA error: all CUDA-capable devices are busy or unavailable", "CUDA error: out of memory"]
)
def test_a_device_without_room_for_a_context_is_unavailable_and_no_oom_of_the_first_point(
    install: Any, measure: Any, reason: str
) -> None:
    install(device := Device(opens=RuntimeError(f"{reason}\nCUDA kernel errors might be asynchronously reported")))
    with pytest.raises(Unavailable, match=f"^cuda:0: no context can be created on it: {reason}$"):
        measure()
    with pytest.raises(Unavailable, match=f"^cuda:0: no context can be created on it: {reason}$"):
        cuda.limit("cuda:0", 0, GIB)
    device.opens = None
    measured = measure()
    device.opens = RuntimeError(reason)
    with pytest.raises(RuntimeError, match=reason), measured.phase("forward"):
        pass  # later it is the workload's


def test_a_budget_on_several_devices_leaves_the_current_device_as_it_was(install: Any) -> None:
    torch = install(Device(), Device(), Device())
    for index in range(3):
        cuda.limit(f"cuda:{index}", index, GIB)
    assert torch.cuda.current_device() == 0
    assert [device.limit for device in torch.devices] == [GIB, GIB, GIB]


def test_a_process_that_was_given_another_device_than_planned_measures_nothing(install: Any) -> None:
    install(Device(uuid="8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11"))
    cuda.check("cuda:3", 0, "float32", "GPU-8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11")
    cuda.check("cuda:3", 0, "float32", None)
    with pytest.raises(Unavailable, match=r"^cuda:3: this process was given GPU-8c1d.* where GPU-ffff was planned$"):
        cuda.check("cuda:3", 0, "float32", "GPU-ffff")


def test_a_sticky_error_hides_neither_the_failure_nor_the_peak(install: Any, measure: Any) -> None:
    install(device := Device())
    measured = measure()

    def forward() -> None:
        with measured.phase("forward"):
            device.take(GIB)
            device.fail_later(RuntimeError("CUDA error: device-side assert triggered"))
            device.answer()  # a call that waits, in the workload

    with pytest.raises(RuntimeError, match="device-side assert"):
        forward()
    counters = measured.counters("forward")
    assert counters["peak"]["allocated"] == GIB
    assert counters["end"]["allocated"] == GIB
    assert "used" not in counters["end"], "the driver did not answer: absent, not 0"


def fail_unseen(device: Any, measured: Measured) -> Outcome:
    """A kernel fails and the workload does not wait for it: the wait at the phase's end raises."""

    def forward() -> None:
        with measured.phase("forward"):
            device.take(GIB)
            device.fail_later(RuntimeError("CUDA error: device-side assert triggered"))

    with pytest.raises(RuntimeError, match="device-side assert") as failure:
        forward()
    measured.fail(failure.value)
    return measured.outcome


def test_a_kernel_that_failed_unseen_fails_the_phase_that_launched_it(install: Any, measure: Any) -> None:
    install(device := Device())
    outcome = fail_unseen(device, measure())
    assert outcome.status is Status.ERROR
    assert outcome.failed_phase == "forward"
    assert outcome.peak_is_partial


def test_a_kernel_that_failed_unseen_costs_no_peak(install: Any, measure: Any) -> None:
    install(device := Device())
    assert fail_unseen(device, measure()).peak("allocated") == GIB


@pytest.mark.parametrize(
    ("call", "absent"),
    [("mem_get_info", {"used"}), ("memory_stats", {"allocated", "reserved", "requested", "active"})],
)
def test_a_counter_that_raises_is_absent_and_costs_no_other(
    install: Any, measure: Any, call: str, absent: set[str]
) -> None:
    torch = install(device := Device())
    measured = measure()
    torch.raises[call] = RuntimeError("not now")
    with measured.phase("forward"):
        device.take(GIB)
    end, peak = measured.counters("forward")["end"], measured.counters("forward")["peak"]
    assert set(end) & DEVICE_COUNTERS == DEVICE_COUNTERS - absent
    assert set(peak) & DEVICE_COUNTERS == DEVICE_COUNTERS - absent - {"used"}


DEVICE_COUNTERS = {"allocated", "reserved", "requested", "active", "used"}


def test_a_peak_that_could_not_be_reset_is_no_phases_own(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()
    device.take(GIB)
    device.drop(GIB)
    torch.raises["reset_peak_memory_stats"] = RuntimeError("not now")
    with measured.phase("forward"):
        device.take(MIB)
    del torch.raises["reset_peak_memory_stats"]
    with measured.phase("backward"):
        pass
    with measured.phase("step"):
        device.take(MIB)
    assert not set(measured.counters("forward")["peak"]) & DEVICE_COUNTERS
    assert measured.counters("forward")["end"]["allocated"] == MIB
    assert measured.counters("step")["peak"]["allocated"] == 2 * MIB


def test_before_the_device_is_initialised_nothing_is_0(install: Any) -> None:
    torch = install(Device())
    meter = cuda.CudaMeter([0], ["cuda:0"], CpuMeter())
    torch.raises["init"] = RuntimeError("CUDA driver initialization failed")
    reading = meter.boundary(failed=True)["cuda:0"]
    assert not set(reading.now) & DEVICE_COUNTERS
    assert not set(reading.peak) & DEVICE_COUNTERS
    assert reading.num_ooms is None


def test_under_cudamallocasync_the_counters_it_does_not_keep_are_absent(install: Any, measure: Any) -> None:
    install(device := Device(num_ooms=1), backend="cudaMallocAsync")
    measured = measure()
    with measured.phase("forward"):
        device.take(GIB)
    counters = measured.counters("forward")
    assert set(counters["peak"]) & DEVICE_COUNTERS == {"allocated", "reserved"}
    assert set(counters["end"]) & DEVICE_COUNTERS == {"allocated", "reserved", "used"}
    assert counters["peak"]["allocated"] == GIB
    assert counters["alloc_retries"] is None
    assert counters["num_ooms"] is None


def test_a_heartbeat_reads_the_peak_so_far_and_never_waits_for_the_device(install: Any, measure: Any) -> None:
    torch = install(device := Device())
    measured = measure()
    with measured.phase("forward"):
        device.take(GIB)
        device.drop(GIB)
        torch.names()
        reading = measured.meter.glance()["cuda:0"]
        assert torch.names() == ["memory_stats"]
    assert reading.peak["allocated"] == reading.peak["reserved"] == GIB
    assert reading.peak["resident"] > 0


def test_a_heartbeat_does_not_call_the_driver_under_cudamallocasync(install: Any, measure: Any) -> None:
    torch = install(Device(), backend="cudaMallocAsync")
    measured = measure()
    torch.names()
    assert not set(measured.meter.glance()["cuda:0"].peak) & DEVICE_COUNTERS
    assert torch.names() == []


def test_a_heartbeat_survives_statistics_that_cannot_be_read(install: Any, measure: Any) -> None:
    torch = install(Device())
    measured = measure()
    torch.raises["memory_stats"] = RuntimeError("not now")
    assert not set(measured.meter.glance()["cuda:0"].peak) & DEVICE_COUNTERS


def test_each_of_several_devices_has_its_own_reading(install: Any, measure: Any) -> None:
    torch = install(first := Device(), second := Device())
    measured = measure("cuda:2", "cuda:5")
    torch.calls.clear()
    with measured.phase("forward"):
        first.take(GIB)
        second.take(3 * GIB)
    assert measured.counters("forward", "cuda:2")["peak"]["allocated"] == GIB
    assert measured.counters("forward", "cuda:5")["peak"]["allocated"] == 3 * GIB
    assert measured.outcome.peak("allocated") == 3 * GIB
    synchronized = [position for position, (call, _) in enumerate(torch.calls) if call == "synchronize"]
    read = [position for position, (call, _) in enumerate(torch.calls) if call == "mem_get_info"]
    assert synchronized[1] < read[0], "every device is waited for before one is read"


def test_only_the_first_device_has_the_hosts_memory(install: Any, measure: Any) -> None:
    install(Device(), Device())
    measured = measure("cuda:0", "cuda:1")
    with measured.phase("forward"):
        pass
    host = {"resident", "resident_anon", "resident_file"}
    first, second = measured.counters("forward", "cuda:0"), measured.counters("forward", "cuda:1")
    assert host <= set(first["baseline"])
    assert host <= set(first["end"])
    assert first["peak"]["resident"] >= first["end"]["resident_anon"]
    assert "address" not in first["end"]
    assert not host & (set(second["baseline"]) | set(second["end"]) | set(second["peak"]))


def test_a_reading_has_the_users_name_of_the_device_whatever_its_index(install: Any, tmp_path: Path) -> None:
    install(device := Device())
    meter = cuda.CudaMeter([0], ["cuda:7"], CpuMeter())
    meter.boundary()
    device.take(MIB)
    assert meter.boundary()["cuda:7"].now["allocated"] == MIB


def test_a_torch_without_cuda_is_unavailable_with_that_reason(install: Any) -> None:
    install(built_for=None)
    with pytest.raises(Unavailable, match=r"^cuda:0: torch 2\.13\.0 is built without CUDA and without ROCm$"):
        cuda.check("cuda:0", 0, "float32")


def test_the_installed_torch_reports_why_it_has_no_device() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(Unavailable, match=r"^cuda:0: ."):
        cuda.check("cuda:0", 0, "float32")


def test_a_missing_driver_is_reported_with_the_drivers_message_on_one_line(install: Any) -> None:
    torch = install(Device())
    torch.raises["init"] = RuntimeError("Found no NVIDIA driver on your system. Please check ...\n  and more\n")
    with pytest.raises(Unavailable) as refused:
        cuda.check("cuda:0", 0, "float32")
    assert str(refused.value) == "cuda:0: Found no NVIDIA driver on your system. Please check ..."


@pytest.mark.parametrize(("devices", "there"), [(1, "cuda:0"), (4, "cuda:0 to cuda:3")])
def test_a_missing_index_is_unavailable_and_the_devices_are_listed(install: Any, devices: int, there: str) -> None:
    install(*(Device() for _ in range(devices)))
    with pytest.raises(Unavailable, match=f"^cuda:9: there is no such device, torch sees {there}$"):
        cuda.check("cuda:9", 9, "float32")


def test_bfloat16_is_unavailable_where_the_device_does_not_declare_it(install: Any) -> None:
    install(Device(capability=(7, 5)), Device(capability=(8, 0)))
    cuda.check("cuda:0", 0, "float32")
    cuda.check("cuda:1", 1, "bfloat16")
    with pytest.raises(Unavailable, match=r"^cuda:0: bfloat16 needs compute capability 8\.0, this device has 7\.5$"):
        cuda.check("cuda:0", 0, "bfloat16")


def test_every_rocm_device_declares_bfloat16(install: Any) -> None:
    torch = install(Device(capability=(6, 0)), built_for=None)
    torch.version.hip = "6.4"
    cuda.check("cuda:0", 0, "bfloat16")


def test_a_device_that_only_nvml_counts_is_missing(install: Any) -> None:
    """In MIG mode NVML counts every card until CUDA is initialised, and CUDA gives a process one slice."""
    torch = install(Device(name="NVIDIA A100-SXM4-40GB MIG 1g.5gb"), counted_by_nvml=8)
    assert torch.cuda.device_count() == 8
    with pytest.raises(Unavailable, match=r"^cuda:1: there is no such device, torch sees cuda:0$"):
        cuda.check("cuda:1", 1, "float32")


def test_checking_touches_no_device(install: Any) -> None:
    torch = install(Device())
    cuda.check("cuda:0", 0, "bfloat16")
    assert torch.calls == []


@pytest.mark.parametrize(
    ("uuid", "name", "hip", "expected"),
    [
        ("8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11", "NVIDIA H100", None, "GPU-8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11"),
        ("GPU-8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11", "NVIDIA H100", None, "GPU-8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11"),
        (
            "8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            None,
            "MIG-8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11",
        ),
        ("39646465-3966-3533-3731-636562643161", "AMD Instinct MI300X", "6.4", "GPU-9dde9f5371cebd1a"),
        (None, "NVIDIA H100", None, None),
    ],
)
def test_a_uuid_is_in_the_form_that_the_visible_devices_variable_takes(
    install: Any, uuid: str | None, name: str, hip: str | None, expected: str | None
) -> None:
    torch = install(Device(uuid=uuid, name=name))
    torch.version.hip = hip
    assert cuda.device_uuid(0) == expected


def test_a_device_is_described_with_all_that_its_figures_depend_on(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(Device(), backend="cudaMallocAsync")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    described = cuda.describe(0)
    assert described.pop("driver") == nvml.driver_version()
    assert described == {
        "device_name": "NVIDIA H100 80GB HBM3",
        "device_uuid": "GPU-8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11",
        "device_total_bytes": 80 * GIB,
        "device_integrated": False,
        "capability": "9.0",
        "allocator_backend": "cudaMallocAsync",
        "allocator_settings": "backend:cudaMallocAsync",
        "backend": "cuda",
        "backend_version": "13.0",
    }


@pytest.mark.parametrize("budget", [1, 24 * GIB, 24 * GIB - 1, 25_253_380_096, 85_899_345_920])
def test_a_budget_allows_the_allocator_exactly_its_bytes(install: Any, budget: int) -> None:
    torch = install(Device(total=85_899_345_920))
    assert cuda.limit("cuda:0", 0, budget) == budget
    assert torch.devices[0].limit == budget


def test_a_budget_that_the_device_does_not_have_is_unavailable(install: Any) -> None:
    torch = install(Device(total=8 * GIB))
    with pytest.raises(
        Unavailable, match=f"^cuda:0: a budget of {24 * GIB} bytes is more than the device has, .* {8 * GIB}$"
    ):
        cuda.limit("cuda:0", 0, 24 * GIB)
    assert torch.calls == []


def test_without_nvml_the_other_processes_on_a_device_are_not_measured() -> None:
    if nvml.driver_version() is not None:
        pytest.skip("there is an NVIDIA driver here")
    assert cuda.others_on("GPU-8c1d4e3c-0000-4b7e-9d67-2f5a0c1b9e11") is None

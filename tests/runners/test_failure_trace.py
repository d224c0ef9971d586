"""trace=on_failure: the tensors alive when an attempt failed, in a file next to the journal that has the failure."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from runners import failure_trace as traces
from runners.facts import Trace
from runners.failure_trace import FailureTrace
from runners.meters import cuda
from runners.outcome import Status
from runners.point import AttemptFolder
from tests.measuring import Lab, Measured

MIB = 2**20


def line(measured: Measured) -> dict[str, Any]:
    (line,) = (fact for fact in measured.journal if fact["kind"] == "trace")
    return line


def read(measured: Measured) -> dict[str, Any]:
    """The file that the journal names."""
    path = measured.folder.path / line(measured)["file"]
    assert path == measured.folder.trace
    assert path.stat().st_size == line(measured)["bytes"]
    trace: dict[str, Any] = json.loads(path.read_text())
    return trace


def found_in(lines: list[str]) -> list[str]:
    """The functions of a stack's lines, each of which has a file and a line."""
    for each in lines:
        place, _, function = each.rpartition(" in ")
        file, _, number = place.rpartition(":")
        assert (Path(file).is_file(), number.isdigit(), function.strip()) == (True, True, function)
    return [each.rpartition(" in ")[2] for each in lines]


def test_a_failure_keeps_the_largest_tensors_alive_with_the_lines_that_made_them(lab: Lab) -> None:
    measured = lab.measure("traced:raises", trace=True)
    trace = read(measured)
    assert measured.outcome.status is Status.ERROR
    assert (trace["phase"], trace["run_index"], trace["raised_by"]) == ("step", 3, None)
    tensors = [(each["bytes"] // MIB, each["dtype"], each["phase"], each["run_index"]) for each in trace["tensors"]]
    assert tensors == [(64, "float32", "build", None), (32, "float32", "step", 3), (16, "float32", "build", None)]
    assert [each["shape"] for each in trace["tensors"]] == [[each * MIB // 4] for each in (64, 32, 16)]
    assert {each["operator"] for each in trace["tensors"]} == {"aten.ones.default"}
    assert found_in(trace["tensors"][0]["lines"])[:2] == ["make", "raises"]
    assert Path(__file__).parents[1] / "faults" / "traced.py" == Path(trace["tensors"][0]["lines"][0].split(":")[0])


def test_the_bytes_alive_are_those_that_the_meter_counted(lab: Lab) -> None:
    measured = lab.measure("traced:raises", trace=True)
    failed = next(phase for phase in measured.outcome.phases if not phase.completed)
    trace = read(measured)
    assert trace["live_bytes"] == failed.end["tensor"] == sum(each["bytes"] for each in trace["tensors"])
    assert (trace["live_storages"], trace["complete"]) == (3, True)


def test_a_refused_allocation_shows_what_was_alive_as_it_was_refused(lab: Lab) -> None:
    measured = lab.measure("traced:is_refused", trace=True, budget=256 * MIB)
    trace = read(measured)
    assert (measured.outcome.status, measured.outcome.failed_phase) == (Status.OOM, "step")
    assert [each["bytes"] // MIB for each in trace["tensors"]] == [40, 20]
    assert trace["raised_by"]["operator"] == "aten.ones.default"
    assert found_in(trace["raised_by"]["lines"])[:2] == ["make", "is_refused"]


def test_a_refusal_is_found_behind_the_exception_that_the_workload_made_of_it(lab: Lab) -> None:
    trace = read(lab.measure("traced:is_refused", {"wrapped": True}, trace=True, budget=256 * MIB))
    assert [each["bytes"] // MIB for each in trace["tensors"]] == [40, 20]


def test_a_failure_that_the_workload_caught_is_not_traced(lab: Lab) -> None:
    trace = read(lab.measure("traced:recovers_and_fails", trace=True, budget=256 * MIB))
    assert (trace["phase"], trace["raised_by"]) == ("second", None)
    assert [each["bytes"] // MIB for each in trace["tensors"]] == [8]


def test_a_failure_between_phases_is_traced_in_between(lab: Lab) -> None:
    trace = read(lab.measure("traced:fails_between", trace=True))
    assert (trace["phase"], trace["tensors"][0]["phase"]) == ("between", "work")


def test_measured_as_a_whole_the_phase_is_the_whole(lab: Lab) -> None:
    trace = read(lab.measure("traced:raises", trace=True, phases="whole"))
    assert {trace["phase"], *(each["phase"] for each in trace["tensors"])} == {"whole"}


def test_a_stack_has_the_workloads_lines_alone(lab: Lab) -> None:
    lines = [each for tensor in read(lab.measure("traced:trains", trace=True))["tensors"] for each in tensor["lines"]]
    assert lines
    assert {Path(each.split(":")[0]).name for each in lines} <= {"traced.py", "custom.py"}


def test_tensors_of_a_backward_pass_have_the_line_that_called_it(lab: Lab) -> None:
    tensors = read(lab.measure("traced:trains", trace=True))["tensors"]
    weight, gradient = (each for each in tensors if each["bytes"] == 4 * MIB)
    assert weight["operator"] != gradient["operator"]
    assert found_in(gradient["lines"])[0] == "trains"


def test_the_largest_fifty_are_kept_and_ten_lines_of_each(lab: Lab) -> None:
    trace = read(lab.measure("traced:holds_many", trace=True))
    assert (len(trace["tensors"]), trace["live_storages"]) == (50, 80)
    assert [each["shape"] for each in trace["tensors"]] == [[16 * each] for each in range(80, 30, -1)]
    deep = read(lab.measure("traced:raises", trace=True))["tensors"][2]
    assert found_in(deep["lines"]) == ["make"] + ["deeper"] * 9


def test_the_scope_describes_what_is_left_out(lab: Lab) -> None:
    measured = lab.measure("traced:raises", trace=True)
    assert read(measured)["scope"] == line(measured)["scope"]
    assert "Not in it: the scratch memory of kernels" in line(measured)["scope"]


@pytest.mark.parametrize("target", ["traced:recovers", "faulty:good"])
def test_an_attempt_that_succeeds_leaves_no_trace(lab: Lab, target: str) -> None:
    measured = lab.measure(target, trace=True, budget=256 * MIB)
    assert measured.outcome.status is Status.OK
    assert not measured.folder.trace.exists()
    assert "trace" not in {fact["kind"] for fact in measured.journal}


def test_without_a_request_no_trace_is_kept(lab: Lab) -> None:
    measured = lab.measure("traced:raises")
    assert measured.outcome.status is Status.ERROR
    assert not measured.folder.trace.exists()
    assert "trace" not in {fact["kind"] for fact in measured.journal}


def test_without_tensors_there_is_no_trace_and_the_journal_has_the_reason(lab: Lab) -> None:
    measured = lab.measure("traced:raises", trace=True, tensors=False)
    assert (measured.outcome.status, measured.outcome.instrumented) == (Status.ERROR, False)
    assert line(measured)["file"] is None
    assert line(measured)["reason"].startswith("tensors=false")
    assert not measured.folder.trace.exists()


def test_traced_attempts_are_instrumented(lab: Lab) -> None:
    assert lab.measure("traced:raises", trace=True).outcome.instrumented is True
    assert lab.measure("faulty:good", trace=True).outcome.instrumented is True


def test_a_failure_before_the_workload_has_no_trace(lab: Lab) -> None:
    measured = lab.measure("no_such_module:run", trace=True)
    assert measured.outcome.status is Status.ERROR
    assert (read(measured)["tensors"], read(measured)["live_bytes"]) == ([], 0)


def test_the_failure_is_written_before_its_trace(lab: Lab) -> None:
    kinds = [fact["kind"] for fact in lab.measure("traced:raises", trace=True).journal]
    assert kinds[-2:] == ["failed", "trace"]


def test_the_trace_is_in_no_points_id(lab: Lab) -> None:
    names = {lab.measure("traced:raises", trace=trace).folder.path.name for trace in (True, False)}
    assert len({name.partition(".")[0] for name in names}) == 1


# --- what is written, and what is not ---------------------------------------------------------------------------------


class Writes:
    """A history whose file is given."""

    scope = "what is in it"

    def __init__(self, content: bytes, error: Exception | None = None) -> None:
        self.content, self.error = content, error

    def write(self, path: Path, causes: Iterable[BaseException]) -> None:
        path.write_bytes(self.content)
        if self.error is not None:
            raise self.error


def kept(folder: Path, history: Writes) -> Trace:
    trace = FailureTrace(AttemptFolder(folder), requested=True)
    trace.record(lambda: history, trace.folder.trace)
    (line,) = trace.keep([ValueError()])
    return line


def test_a_trace_that_is_too_large_is_dropped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces.LARGEST_BYTES == 64 * MIB
    monkeypatch.setattr(traces, "LARGEST_BYTES", 100)
    assert kept(tmp_path, Writes(b"x" * 101)) == Trace(None, reason="it has 101 bytes, and at most 100 are kept")
    assert list(tmp_path.iterdir()) == []
    assert kept(tmp_path, Writes(b"x" * 100)).file == "trace.json"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), RuntimeError("two\nlines")])
def test_a_trace_that_cannot_be_written_is_a_reason_and_no_error(tmp_path: Path, error: Exception) -> None:
    line = kept(tmp_path, Writes(b"half of i", error))
    assert line.file is None
    assert line.reason.startswith(type(error).__name__)
    assert "\n" not in line.reason
    assert list(tmp_path.iterdir()) == []


def test_a_failure_before_anything_could_be_recorded_has_that_reason(tmp_path: Path) -> None:
    (line,) = FailureTrace(AttemptFolder(tmp_path), requested=True).keep([ImportError()])
    assert (line.file, line.reason) == (None, "the attempt failed before there was anything to record")


def test_a_folder_that_is_gone_is_a_reason_and_no_error(tmp_path: Path) -> None:
    assert kept(tmp_path / "gone", Writes(b"all")).file is None


# --- CUDA -------------------------------------------------------------------------------------------------------------


def stand_in(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    spec = importlib.util.spec_from_file_location("cuda_stand_in", Path(__file__).parent / "meters/cuda_stand_in.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cuda_stand_in", module)
    spec.loader.exec_module(module)
    torch = module.Torch(module.Device(), **options)
    monkeypatch.setattr(cuda, "torch", torch)
    return torch


def on_cuda(folder: Path) -> FailureTrace:
    trace = FailureTrace(AttemptFolder(folder), requested=True)
    trace.record(cuda.AllocatorHistory, trace.folder.snapshot)
    return trace


def test_on_cuda_the_allocators_own_history_is_recorded_bounded_and_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = stand_in(monkeypatch)
    trace = on_cuda(tmp_path)
    assert trace.records
    assert torch.names() == ["_record_memory_history"]
    settings = {"enabled": "all", "context": "all", "stacks": "python", "max_entries": cuda.HISTORY_ENTRIES}
    assert torch.cuda.memory.recording == settings
    (line,) = trace.keep([RuntimeError("CUDA out of memory.")])
    assert torch.names() == ["_dump_snapshot"]
    assert (line.file, line.bytes) == ("trace.pickle", (tmp_path / "trace.pickle").stat().st_size)
    assert "https://pytorch.org/memory_viz" in line.scope
    assert set(pickle.loads((tmp_path / "trace.pickle").read_bytes())) == {"segments", "device_traces"}
    assert [path.name for path in tmp_path.iterdir()] == ["trace.pickle"]


def test_an_allocator_without_a_history_is_measured_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, backend="cudaMallocAsync")
    trace = on_cuda(tmp_path)
    assert not trace.records
    reason = "RuntimeError: cudaMallocAsync does not yet support recordHistory"
    assert trace.keep([ValueError()]) == [Trace(None, reason=reason)]


def test_a_device_that_no_longer_answers_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = stand_in(monkeypatch)
    trace = on_cuda(tmp_path)
    torch.raises["_dump_snapshot"] = RuntimeError("CUDA error: device-side assert triggered\nCompile with ...")
    (line,) = trace.keep([ValueError()])
    assert line.reason == "RuntimeError: CUDA error: device-side assert triggered"

"""What a real device must show, through the command line. Run by `make test-gpu`."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners import processes

pytestmark = pytest.mark.gpu

MIB = 2**20
GIB = 2**30


@pytest.fixture(scope="module")
def held(sweep_once: Callable[[str], Any]) -> Any:
    return sweep_once("held")("hold")


def test_an_allocation_of_512_mib_is_exactly_that(held: Any) -> None:
    row = held.points.loc[1]
    assert held.code == 0, held.output
    assert row.status == "ok"
    assert row.peak_allocated_bytes == 536_870_912
    assert row.peak_requested_bytes == 536_870_912


def test_reserved_holds_the_allocated_and_used_holds_the_reserved(held: Any) -> None:
    row = held.points.loc[1]
    assert row.peak_reserved_bytes >= row.peak_allocated_bytes
    assert row.device_total_bytes >= row.peak_used_bytes >= row.peak_reserved_bytes
    phases = held.phases
    for moment in ("baseline", "end", "peak"):
        reserved, allocated = phases[f"{moment}_reserved_bytes"], phases[f"{moment}_allocated_bytes"]
        assert (reserved >= allocated).all(), moment
    assert (phases.end_used_bytes >= phases.end_reserved_bytes).all()


def test_a_row_has_the_hosts_memory_and_the_devices(held: Any) -> None:
    row = held.points.loc[1]
    assert row.peak_resident_bytes >= row.process_baseline_bytes > 50 * MIB


def test_the_row_and_the_environment_name_the_device_that_was_measured(held: Any) -> None:
    from runners.meters import cuda

    here = cuda.describe(0)
    row = held.points.loc[1]
    environment = held.table("environment").set_index("environment_id").loc[row.environment_id]
    assert row.device == "cuda:0"
    assert row.device_uuid == environment.device_uuid == here["device_uuid"]
    assert row.device_total_bytes == here["device_total_bytes"]
    assert environment.device_name == here["device_name"]
    assert environment.backend == here["backend"]
    assert environment.allocator_backend == "native"


def test_weights_that_are_alive_before_a_reset_stay_in_the_peak(sweep: Any) -> None:
    phases = sweep("weights").phases
    assert phases.loc["weights"].peak_allocated_bytes == 256 * MIB
    assert phases.loc["work"].baseline_allocated_bytes == 256 * MIB
    assert phases.loc["work"].peak_allocated_bytes == 320 * MIB
    assert phases.loc["work"].end_allocated_bytes == 256 * MIB


def test_two_sweeps_of_the_same_point_agree_to_the_byte(held: Any, sweep: Any) -> None:
    counters = ["peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes"]
    assert sweep("hold").points.loc[1, counters].tolist() == held.points.loc[1, counters].tolist()


def assert_a_refusal_under_one_gib(run: Any) -> None:
    """batch=1, 32, 2 of 64 MiB each: the second is refused, which does not affect the third."""
    assert run.points.status.to_dict() == {1: "ok", 32: "oom", 2: "ok"}, run.output
    assert run.code == 0, "an oom is a result"
    refused = run.points.loc[32]
    assert refused.oom_scope == "device"
    assert bool(refused.fits) is False
    assert refused.failed_phase == "fill"
    assert refused.peak_is_partial
    assert 0 < refused.peak_allocated_bytes <= GIB
    assert refused.requested_bytes == 64 * MIB
    # The exception empties the list before a counter is read: what was held is the allocator's own record.
    held = refused.peak_allocated_bytes
    assert held >= GIB - 64 * MIB
    assert held + 62 * MIB < refused.needs_at_least_bytes <= held + 64 * MIB
    passed = run.points.loc[2]
    assert passed.peak_allocated_bytes == 128 * MIB
    assert not passed.peak_is_partial
    phases = run.table("phases").merge(run.points.reset_index(drop=True)[["point_id", "batch"]], on="point_id")
    fill = phases[phases.phase == "fill"].set_index("batch")
    assert fill.num_ooms.to_dict() == {1: 0, 32: 1, 2: 0}
    assert not fill.completed[32]


def test_an_attempt_over_its_budget_is_an_oom_and_the_next_one_passes(sweep: Any) -> None:
    run = sweep("chunks", "batch=1,32,2", "budget=1GiB")
    assert_a_refusal_under_one_gib(run)
    assert (run.points.budget_kind == "allocator").all()
    assert (run.points.budget_bytes == GIB).all()


def test_an_attempt_over_a_limit_of_its_own_is_an_oom_and_the_next_one_passes(sweep: Any) -> None:
    """G8: each attempt has its own process, so that no frame of a refused one keeps memory."""
    assert_a_refusal_under_one_gib(sweep("capped", "batch=1,32,2"))


def test_a_pass_after_refusals_that_the_workload_caught_does_not_decide_whether_it_fits(sweep: Any) -> None:
    """batch=32 is 2 GiB under 1 GiB: it and its half, which the budget leaves no room for, are refused."""
    run = sweep("halves", "batch=1,32", "budget=1000MiB")
    assert run.code == 3, run.output
    assert run.points.status.to_dict() == {1: "ok", 32: "ok"}
    assert run.points.handled_refusals.to_dict() == {1: 0, 32: 2}
    assert run.points.fits.isna().to_dict() == {1: False, 32: True}
    assert run.points.handled_refusal_bytes[32] == 2 * GIB


def test_a_budget_that_the_device_does_not_have_is_unavailable(sweep: Any) -> None:
    row = sweep("hold", "budget=100TiB").points.loc[1]
    assert row.status == "unavailable"
    assert "more than the device has" in row.error_message


def test_a_named_index_that_is_missing_is_unavailable_and_costs_no_other(sweep: Any) -> None:
    run = sweep("hold", devices="cuda:0,cuda:99")
    rows = run.points.set_index("device")
    assert run.code == 3, run.output
    assert rows.status.to_dict() == {"cuda:0": "ok", "cuda:99": "unavailable"}
    assert rows.peak_allocated_bytes.isna().to_dict() == {"cuda:0": False, "cuda:99": True}


def test_no_visible_device_is_unavailable_and_not_measured_on_another(sweep: Any) -> None:
    """G1, with any number of devices."""
    run = sweep("hold", CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="")
    assert run.code == 2, run.output
    assert run.points.loc[1].status == "unavailable"
    assert run.points.filter(regex="^peak_.*_bytes$").isna().all(axis=None)


def test_cuda_0_is_the_first_of_the_visible_devices(sweep: Any) -> None:
    """G1: indices are those that torch gives the visible devices. NVML numbers them otherwise."""
    import torch

    from runners.meters import cuda

    if torch.cuda.device_count() < 2:
        pytest.skip("there is one device")
    second = cuda.device_uuid(1)
    assert second is not None
    run = sweep("hold", CUDA_VISIBLE_DEVICES=second)
    assert run.points.loc[1].device_uuid == second
    assert set(run.table("environment").device_uuid) == {second}


def test_allocated_and_reserved_are_two_columns_and_not_one(sweep: Any) -> None:
    """G6: of sixteen growing allocations, freed one by one, the cache keeps every block."""
    row = sweep("growing").points.loc[1]
    assert row.peak_allocated_bytes == 256 * MIB
    assert row.peak_reserved_bytes > row.peak_allocated_bytes


def test_a_workload_that_resets_the_peak_shrinks_neither_its_figure_nor_what_it_reads(sweep: Any) -> None:
    row = sweep("resets").points.loc[1]
    assert row.status == "ok", row.error_message
    assert row.peak_allocated_bytes == 512 * MIB


def test_the_private_pool_of_a_graph_is_reported(sweep: Any) -> None:
    row = sweep("graph").points.loc[1]
    assert row.status == "ok", row.error_message
    assert row.peak_graph_pools_bytes >= 64 * MIB
    assert row.peak_reserved_bytes >= row.peak_graph_pools_bytes


def test_without_caching_no_peak_is_0(sweep: Any) -> None:
    row = sweep("hold", PYTORCH_NO_CUDA_MEMORY_CACHING="1").points.loc[1]
    assert row.status == "ok"
    assert row[["peak_allocated_bytes", "peak_reserved_bytes"]].isna().all()
    assert row.peak_used_bytes > 0


def test_a_device_assert_is_an_error_of_its_point_alone(sweep: Any) -> None:
    """G7: it destroys the context of the process, but loses no peak and affects no other point."""
    run = sweep("out_of_range", "batch=1,2")
    bad, good = run.points.loc[1], run.points.loc[2]
    assert (bad.status, good.status) == ("error", "ok"), run.output
    assert run.code == 3
    assert "device-side assert" in bad.error_message
    assert bad.failed_phase == "look_up"
    assert bad.peak_is_partial
    assert bad.peak_allocated_bytes >= 128 * MIB
    assert good.peak_allocated_bytes >= 128 * MIB


def test_a_hang_keeps_the_last_peak_that_was_read(sweep: Any) -> None:
    row = sweep("hang", "timeout=40").points.loc[1]
    assert row.status == "timeout"
    assert row.failed_phase == "hang"
    assert row.peak_is_partial
    assert row.peak_allocated_bytes == 512 * MIB


def test_cudamallocasync_is_recorded_and_its_missing_counters_are_null(sweep: Any) -> None:
    import torch

    if torch.version.hip is not None:
        pytest.skip("ROCm has no cudaMallocAsync")
    run = sweep("hold", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    row = run.points.loc[1]
    assert row.status == "ok", run.output
    (environment,) = run.table("environment").itertuples()
    assert environment.allocator_backend == "cudaMallocAsync"
    assert environment.allocator_settings == "backend:cudaMallocAsync"
    assert 512 * MIB <= row.peak_allocated_bytes < 576 * MIB
    assert row.peak_reserved_bytes >= row.peak_allocated_bytes
    assert row[["peak_requested_bytes"]].isna().all()
    assert run.phases[["peak_active_bytes", "alloc_retries", "num_ooms"]].isna().all(axis=None)


def test_several_devices_in_one_attempt_have_a_row_each_and_are_never_summed(sweep: Any) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("there is one device")
    run = sweep("both", devices="cuda:0+cuda:1")
    rows = run.phases.loc["hold"].set_index("phase_device")
    assert rows.peak_allocated_bytes.to_dict() == {"cuda:0": 64 * MIB, "cuda:1": 192 * MIB}
    assert run.points.loc[1].peak_allocated_bytes == 192 * MIB


def test_the_orchestrator_never_appears_among_the_devices_processes(sweep: Any, tmp_path: Path) -> None:
    """G4, by the files that a process has open, which a container cannot hide, and by NVML where it answers."""
    from runners.meters import cuda

    ready, go = tmp_path / "ready", tmp_path / "go"
    os.mkfifo(ready)
    os.mkfifo(go)
    ready_pipe = os.open(ready, os.O_RDWR)  # to read and write, so that neither end finds the other closed
    go_pipe = os.open(go, os.O_RDWR)
    orchestrator = subprocess.Popen(
        sweep.argv("pause", f"workload.params.ready={ready}", f"workload.params.go={go}", "batch=1,2,3"),
        cwd=tmp_path,
        env=sweep.environ(),
        stdin=subprocess.DEVNULL,
    )
    try:
        for _ in range(3):
            assert select.select([ready_pipe], [], [], 120)[0], "no attempt reached the device"
            os.read(ready_pipe, 1)
            measured = [pid for pid in processes.descendants_of(orchestrator.pid) if has_a_device_open(pid)]
            assert measured, "the attempt itself has the device open"
            assert not has_a_device_open(orchestrator.pid)
            others = cuda.others_on(str(cuda.device_uuid(0)))
            assert orchestrator.pid not in {other.pid for other in others or ()}
            os.write(go_pipe, b"g")
        assert orchestrator.wait(120) == 0
    finally:
        orchestrator.kill()
        orchestrator.wait()
        os.close(ready_pipe)
        os.close(go_pipe)


def has_a_device_open(pid: int) -> bool:
    try:
        names = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return any(name.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")) for name in names)

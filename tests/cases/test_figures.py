"""Cases of cases.md: the bytes in a row are the bytes that the workload held."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from tests.cases.conftest import MIB, Ran, Sweep, row_of, run, workload


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """64 MiB per unit of batch, each point in a new interpreter."""
    return run(tmp_path_factory.mktemp("growing"), [*workload("grows"), "batch=1,2,4,8,16", "start=cold"])


def taken(row: pd.Series | pd.DataFrame) -> pd.Series:
    """Above the baseline, in MiB."""
    return (row["peak_resident_bytes"] - row["process_baseline_bytes"]) / MIB


@pytest.mark.slow
def test_the_process_baseline_is_separate_from_what_the_workload_takes(growing: Ran) -> None:
    """Case 53 (asv docs, rbx#726)."""
    rows = growing.points
    baseline = rows["process_baseline_bytes"] / MIB
    assert baseline.max() - baseline.min() < 4
    environment = growing.table("environment").iloc[0]
    if str(environment["torch"]).startswith("2.13.") and environment["backend"] == "cpu":
        assert baseline.between(215, 235).all()
    assert (taken(rows) - 64 * rows["batch"]).abs().max() < 2
    differences = rows["peak_resident_bytes"].diff() / rows["batch"].diff() / MIB
    assert (differences.dropna() - 64).abs().max() <= 0.5


@pytest.mark.slow
def test_bytes_are_bytes_and_a_printed_gib_is_2_to_the_30(growing: Ran) -> None:
    """Case 54 (torchtune#1346, orbit#290, asv#1162): kibibytes or decimal units would be outside these bounds."""
    row = growing.point(batch=16)
    assert 1.29e9 - 219 * MIB <= row["peak_resident_bytes"] - row["process_baseline_bytes"] <= 1.36e9 - 219 * MIB
    printed = re.findall(r"batch=(\d+)  fits, ([0-9.]+) ([MG]iB) resident", growing.out)
    assert [unit for _, _, unit in printed] == ["MiB"] * 4 + ["GiB"]
    for batch, shown, unit in printed:
        bytes_of_unit = {"MiB": 2**20, "GiB": 2**30}[unit]
        assert shown == f"{growing.point(batch=int(batch))['peak_resident_bytes'] / bytes_of_unit:.2f}"


@pytest.mark.slow
def test_the_shortest_spike_is_in_the_peak_every_time(sweep: Sweep) -> None:
    """Case 14 (rbx#725, ByConity#1116): the peak is the high-water mark and not a sample."""
    rows = sweep(*workload("spike", mib=1024), "seed=0,1,2,3,4").points
    above = taken(rows)
    assert len(above) == 5
    assert above.between(1230 - 219, 1290 - 219).all()
    assert above.max() - above.min() < 16


def test_address_space_that_is_never_touched_is_not_resident(every_end: Ran) -> None:
    """Case 52 (Futility#113): 2 GiB are reserved."""
    assert -4 <= taken(row_of(every_end, "untouched")) <= 41


@pytest.mark.slow
def test_a_peak_does_not_depend_on_the_points_before_it(sweep: Sweep) -> None:
    """Case 50: the large point first, and last."""
    falling = sweep(*workload("grows"), "batch=8,1", "name=falling")
    rising = sweep(*workload("grows"), "batch=1,8", "name=rising")
    for batch in (1, 8):
        first, second = (ran.point(batch=batch)["peak_resident_bytes"] for ran in (falling, rising))
        assert abs(first - second) < 8 * MIB


@pytest.mark.slow
def test_the_weights_have_the_dtype_and_its_spellings_are_one_point(sweep: Sweep) -> None:
    """Cases 59 (transformers#34743, transformers#29955, ModuleFormer#6) and 60 (transformers#27769)."""
    ran = sweep("dtype=float32,bfloat16,float16,half,torch.float16", "batch=4", "context=512", "allocator=repeatable")
    rows = ran.points.set_index("dtype")
    assert list(rows.index) == ["float32", "bfloat16", "float16"]
    assert list(rows["status"]) == ["ok", "ok", "ok"]
    assert list(rows["parameter_bytes"]) == [27_362_304, 13_681_152, 13_681_152]
    assert list(rows["storage_dtype"]) == ["float32", "bfloat16", "float16"]
    for peak in ("peak_tensor_bytes", "peak_resident_bytes"):
        assert rows[peak]["float32"] > rows[peak]["bfloat16"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The decoder of 8 layers of width 256, trained in four ways and then evaluated."""
    ways = ["workload.method=full,lora", "workload.rank=4", "workload.checkpointing=false,true"]
    words = ["model=tiny-llama", "workload=train", *ways, "batch=4", "context=512", "workload.evaluation.batch=4"]
    return run(tmp_path_factory.mktemp("trained"), [*words, "allocator=repeatable", "timeout=600"])


def over_the_model(ran: Ran, counter: str, phase: str, **values: object) -> int:
    """Bytes at a phase's peak less those at the end of model_load."""
    phases = ran.table("phases")
    mine = phases[phases["point_id"] == ran.point(**values)["point_id"]].set_index("phase")
    return int(mine.loc[phase, f"peak_{counter}_bytes"] - mine.loc["model_load", f"end_{counter}_bytes"])


@pytest.mark.slow
def test_adapters_are_counted_exactly_and_take_less(trained: Ran) -> None:
    """Case 61 (peft#2421, peft#1469, AgileRL#623)."""
    ways = ({"workload.method": way, "workload.checkpointing": False} for way in ("full", "lora"))
    full, lora = (trained.point(**way) for way in ways)
    assert (full["trainable_parameters"], full["parameters"]) == (6_840_576, 6_840_576)
    assert (lora["trainable_parameters"], lora["parameters"]) == (32_768, 6_873_344)
    assert lora["storage_dtype"] == "float32"
    assert full["peak_resident_bytes"] - lora["peak_resident_bytes"] >= 20 * MIB


@pytest.mark.slow
def test_checkpointing_takes_effect_in_training_and_only_there(trained: Ran) -> None:
    """Case 63 (starcoder#112, transformers#30320, Harness-RL#5)."""
    plain, checkpointed = ({"workload.method": "full", "workload.checkpointing": on} for on in (False, True))
    backward = [over_the_model(trained, "resident", "warm_backward", **point) for point in (plain, checkpointed)]
    assert backward[1] / backward[0] < 0.65
    # By tensor bytes: the steps before leave 5 MiB in the heap, which are in the resident peak of the evaluation.
    evaluations = [over_the_model(trained, "tensor", "evaluation", **point) for point in (plain, checkpointed)]
    assert evaluations[1] == pytest.approx(evaluations[0], rel=0.05)
    assert trained.point(**checkpointed)["loss_check"] == "same"
    assert "no such key" in run(trained.folder.parent, ["workload=forward", "workload.checkpointing=true"]).err

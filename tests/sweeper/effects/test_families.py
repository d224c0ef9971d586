from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeper
from runners.device import CALCULATED, MEASURED
from runners.outcome import Status
from sweeper import cli
from sweeper.columns import FIXED
from sweeper.effects.families import (
    NEEDS,
    NEEDS_OF_PHASES,
    PEAKS,
    Difference,
    Family,
    PhaseKey,
    differences,
    families,
    title,
)
from sweeper.effects.memory_fit import NotFitted, Size
from sweeper.errors import Mistake
from sweeper.units import format_bytes
from sweeper.views.effects_report import as_text, effects
from sweeper.views.layout import assignments
from tests import command_line

MIB = 2**20
Costs = Mapping[str, tuple[int, int, int]]  # of each phase: fixed, a sample, a token
TRAINING: Costs = {
    "model_load": (60 * MIB, 0, 0),
    "warm_forward": (100 * MIB, 0, 150_000),
    "warm_backward": (100 * MIB, 0, 200_000),
    "warm_step": (180 * MIB, 0, 0),
}
KEYS_OF_WORKLOADS = tuple(name for name in FIXED if name.startswith("workload."))


class Run:
    """Rows as a sweep leaves them, with peaks that are known."""

    def __init__(self) -> None:
        self.points: list[dict[str, Any]] = []
        self.phases: list[dict[str, Any]] = []

    def add(self, status: str = "ok", device: str = "cpu", costs: Costs = TRAINING, **more: Any) -> dict[str, Any]:
        swept = {key: more.pop(key) for key in list(more) if "." in key}
        columns = {key: more.pop(key) for key in list(more) if key in NEEDS and key not in ("workload", "attention")}
        batch, context = columns.get("batch", 1), columns.get("context", 64)
        settled = {"batch": batch, "context": context, "dtype": columns.get("dtype", "float32")}
        nested = {
            **settled,
            "attention": more.pop("attention", None),
            "model": {"name": "tiny", "config": {"vocab_size": more.pop("vocab_size", 8192)}},
            "workload": {"name": more.pop("workload", "train"), **more},
        }
        counter = "tensor" if device == "cpu" else "allocated"
        at = {phase: fixed + batch * (sample + context * token) for phase, (fixed, sample, token) in costs.items()}
        row: dict[str, Any] = dict.fromkeys(NEEDS) | {
            "run": "bill",
            "point_id": f"{len(self.points):016x}",
            "device": device,
            "kind": CALCULATED if device.startswith("sim:") else MEASURED,
            "attempt": 1,
            **{"model": "tiny", "workload": nested["workload"]["name"], "allocator": "repeatable"},
            **settled,
            "tokens": 2 * batch * context,
            "config": json.dumps(nested),
            "order": len(self.points),
            "status": status,
            "fits": {"ok": True, "oom": False}.get(status),
            "peak_is_partial": status != "ok",
            f"peak_{counter}_bytes": max(at.values()),
        }
        own = {f"workload.{key}": value for key, value in more.items()}
        self.points.append(row | {key: own.get(key) for key in KEYS_OF_WORKLOADS} | swept | columns)
        for position, (phase, peak) in enumerate(at.items()):
            warm = phase.startswith("warm_")
            self.phases.append(
                {
                    **{key: self.points[-1][key] for key in ("point_id", "device", "attempt")},
                    **{"phase_device": device, "phase": phase, "run_index": 0 if warm else None},
                    **{"elapsed_s": float(position), "metrics": None, "position": position},
                    **{name: None for name in NEEDS_OF_PHASES if name.endswith("_bytes")},
                    f"peak_{counter}_bytes": peak,
                    f"baseline_{counter}_bytes": 90 * MIB,
                }
            )
        return self.points[-1]

    def grid(self, batches: Sequence[int] = (1, 2, 4, 8), contexts: Sequence[int] = (64, 128, 256), **more: Any) -> Run:
        for batch in batches:
            for context in contexts:
                self.add(batch=batch, context=context, **more)
        return self

    def differences(self) -> list[Difference]:
        return differences(self.points, self.phases)

    def families(self) -> list[Family]:
        return families(self.points, self.phases)

    def family(self) -> Family:
        (found,) = self.families()
        return found

    def effects(self, at: Mapping[str, int] | None = None) -> dict[str, Any]:
        found = effects(self.points, self.phases, at)
        assert json.loads(json.dumps(found)) == found
        return found


def tensor(found: Difference) -> int | None:
    return found.bytes["peak_tensor_bytes"]


# --- neighbours -------------------------------------------------------------------------------------------------------


def test_neighbours_differ_by_one_step_of_one_dimension() -> None:
    costs = {"warm_forward": (0, 10, 1000)}
    found = Run().grid((1, 2, 8), (64, 128), costs=costs).differences()
    steps = [(each.dimension, *each.step, *each.at.values(), tensor(each)) for each in found]
    assert steps == [
        *[("batch", 1, 2, 64, 64_010), ("batch", 2, 8, 64, 6 * 64_010)],
        *[("batch", 1, 2, 128, 128_010), ("batch", 2, 8, 128, 6 * 128_010)],
        *[("context", 64, 128, 1, 64_000), ("context", 64, 128, 2, 128_000), ("context", 64, 128, 8, 512_000)],
    ]
    assert all(list(each.bytes) == list(PEAKS) for each in found)


def test_numbers_are_ordered_by_size_and_everything_else_by_the_plan() -> None:
    run = Run()
    for batch, dtype in ((4, "float32"), (1, "float32"), (4, "bfloat16"), (1, "bfloat16"), (4, "float16")):
        run.add(batch=batch, dtype=dtype, changed="batch,dtype")
    steps = [(each.dimension, each.step) for each in run.differences()]
    assert steps == [
        *[("batch", (1, 4)), ("batch", (1, 4))],
        *[("dtype", ("float32", "bfloat16")), ("dtype", ("bfloat16", "float16")), ("dtype", ("float32", "bfloat16"))],
    ]


def test_different_devices_and_kinds_are_never_compared() -> None:
    run = Run().grid((1, 2), (64,))
    run.grid((2, 4), (64,), device="cuda:0").grid((1, 4), (64,), device="sim:rtx-4090")
    assert [(each.device, each.kind, each.step) for each in run.differences()] == [
        ("cpu", MEASURED, (1, 2)),
        ("cuda:0", MEASURED, (2, 4)),
        ("sim:rtx-4090", CALCULATED, (1, 4)),
    ]
    assert [(family.rows[0]["device"], len(family.rows)) for family in run.families()] == [
        ("cpu", 2),
        ("cuda:0", 2),
        ("sim:rtx-4090", 2),
    ]


def test_points_that_also_differ_in_a_key_that_is_no_dimension_are_no_neighbours() -> None:
    run = Run()
    run.add(batch=1, lr=0.1)
    run.add(batch=2, lr=0.2)
    assert run.differences() == []


def test_keys_that_are_null_without_effect_may_change_with_the_varied_one() -> None:
    run = Run()
    run.add(method="full", rank=None, **{"workload.method": "full"})
    run.add(method="lora", rank=8, changed="workload.method", **{"workload.method": "lora"})
    (found,) = run.differences()
    assert (found.dimension, found.step) == ("workload.method", ("full", "lora"))


def follower(batch: int) -> dict[str, Any]:
    """A point whose `ckpt` follows its batch, as the tables have it."""
    path = f"/ckpt/fold_{batch}.pt"
    settings = {"workload.ckpt": "/ckpt/fold_${batch}.pt", "batch": batch}
    return {"batch": batch, "context": 512, "ckpt": path, "workload.ckpt": path, "settings": json.dumps(settings)}


def test_points_with_a_key_that_follows_the_varied_one_are_neighbours_and_one_family() -> None:
    run = Run()
    for batch in (1, 2, 4, 8):
        run.add(**follower(batch))
    steps = run.differences()
    assert [(step.dimension, step.step, step.at) for step in steps] == [
        ("batch", (1, 2), {}),
        ("batch", (2, 4), {}),
        ("batch", (4, 8), {}),
    ]
    assert all(step.bytes["peak_tensor_bytes"] for step in steps)
    family = run.family()
    assert [size.batch for size in family.sizes] == [1, 2, 4, 8]
    assert "workload.ckpt=/ckpt/fold_${batch}.pt" in title(family, [family])


@pytest.mark.parametrize("status", [status.value for status in Status if status is not Status.OK])
def test_a_point_that_did_not_pass_completely_gives_no_difference_and_a_reason(status: str) -> None:
    run = Run()
    run.add(batch=1)
    run.add(status, batch=2, failed_phase="warm_backward")
    (found,) = run.differences()
    assert set(found.bytes.values()) == {None}
    assert found.seconds is None
    assert all(f"{status} in warm_backward" in reason for reason in found.because.values())
    assert set(found.because) == {*PEAKS, "seconds"}


def test_flaky_partial_and_unread_peaks_give_no_difference() -> None:
    run = Run()
    run.add(batch=1)
    run.add(batch=2, flaky=True)
    run.add(batch=4)
    run.add(batch=8, peak_is_partial=True)
    run.add(batch=16)
    run.add(batch=32, handled_refusals=2)
    flaky, _, partial, _, refused = run.differences()
    assert refused.because["peak_tensor_bytes"] == "the workload was refused memory and continued"
    assert tensor(flaky) is None
    assert flaky.because["peak_tensor_bytes"] == "it passes only sometimes"
    assert "partial" in partial.because["peak_tensor_bytes"]
    whole = Run().grid((1, 2), (64,)).differences()[0]
    assert whole.because == {column: "not read" for column in PEAKS if column != "peak_tensor_bytes"}


def test_used_bytes_are_not_compared_if_another_process_was_on_the_device() -> None:
    run = Run()
    run.add(device="cuda:0", batch=1, peak_used_bytes=1000)
    run.add(device="cuda:0", batch=2, peak_used_bytes=9000, contaminated=True)
    (found,) = run.differences()
    assert found.bytes["peak_used_bytes"] is None
    assert found.because["peak_used_bytes"] == "another process was on the device"
    assert found.bytes["peak_allocated_bytes"] is not None


def test_the_time_is_that_of_a_warm_repeat_and_names_its_phases() -> None:
    run = Run().grid((1, 2), (64,))
    for phase in run.phases:
        phase["elapsed_s"] *= 2 if phase["point_id"] == run.points[1]["point_id"] else 1
    warm = [phase for phase in run.phases if phase["run_index"] == 0]
    run.phases += [dict(phase, run_index=1, elapsed_s=2 * phase["elapsed_s"]) for phase in warm]
    (found,) = run.differences()
    assert found.seconds == pytest.approx(1.5 * (1 + 2 + 3))
    assert found.time_of == "warm_forward + warm_backward + warm_step, mean of 2 repeats"
    assert found.seconds_spread == pytest.approx(2 * (1 + 2 + 3))


def test_calculated_points_and_points_without_warm_phases_have_no_time() -> None:
    (calculated,) = Run().grid((1, 2), (64,), device="sim:rtx-4090").differences()
    assert (calculated.seconds, calculated.because["seconds"]) == (None, "a calculated device has no times")
    (cold,) = Run().grid((1, 2), (64,), costs={"whole": (1, 2, 3)}).differences()
    assert (cold.seconds, cold.because["seconds"]) == (None, "no phase named warm_... has a time")


# --- costs ------------------------------------------------------------------------------------------------------------


def test_each_phase_has_its_own_costs() -> None:
    family = Run().grid().family()
    for phase, (fixed, _, token) in TRAINING.items():
        found = family.fits[PhaseKey(phase, "cpu")]
        assert not isinstance(found, NotFitted)
        assert found.costs == pytest.approx({"fixed": fixed, "per_sample": 0, "per_token": token}, rel=1e-6, abs=1e-3)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([status.value for status in Status if status is not Status.OK]), st.integers(1, 2**40))
def test_a_point_that_did_not_pass_completely_never_enters_a_fit(status: str, absurd: int) -> None:
    run = Run().grid()
    before = run.family().fits
    run.add(status, batch=16, context=256, costs=dict.fromkeys(TRAINING, (absurd, 0, 0)))
    run.add(batch=32, context=256, peak_is_partial=True, costs=dict.fromkeys(TRAINING, (absurd, 0, 0)))
    family = run.family()
    assert family.fits == before
    assert sum(family.left_out.values()) == 2


def test_only_the_attempt_that_counts_is_fitted() -> None:
    run = Run().grid()
    run.phases += [dict(phase, attempt=2, peak_tensor_bytes=2**50) for phase in run.phases]
    run.phases += [dict(run.phases[0], phase="quality", peak_tensor_bytes=2**50)]  # no part of the workload
    assert run.family().peak_phase(Size(8, 256)) == PhaseKey("warm_backward", "cpu")


def test_only_eager_attention_has_a_cost_of_a_squared_token() -> None:
    for attention, squares in (("sdpa", False), (None, False), ("eager", True)):
        fits = Run().grid(attention=attention).family().fits.values()
        terms = [found.costs for found in fits if not isinstance(found, NotFitted)]
        assert len(terms) == len(TRAINING)
        assert all(("per_token_squared" in costs) is squares for costs in terms)
    used = Run().grid(attention=None, attention_used="eager").family()  # the library's own choice
    assert all("per_token_squared" in found.costs for found in used.fits.values() if not isinstance(found, NotFitted))


def test_between_counts_as_a_phase_only_if_it_has_the_peak() -> None:
    below = Run().grid(costs={**TRAINING, "between": (0, 0, 100)}).family()
    above = Run().grid(costs={**TRAINING, "between": (500 * MIB, 0, 0)}).family()
    assert PhaseKey("between", "cpu") not in below.peaks
    assert above.peak_phase(Size(8, 256)) == PhaseKey("between", "cpu")


def test_a_sweep_of_one_dimension_has_the_cost_of_that_one() -> None:
    found = Run().grid((1, 2, 4, 8), (256,)).effects()
    (family,) = found["families"]
    costs = family["largest"]["costs"]
    assert costs["one_more_sample_bytes"] == pytest.approx(256 * 200_000)
    assert costs["one_more_token_bytes"] is None
    assert "one more sample of 256 tokens costs" in as_text(found)
    assert "one more token" not in as_text(found)


def test_a_single_point_has_a_peak_and_no_costs() -> None:
    found = Run().grid((1,), (64,)).effects()
    (family,) = found["families"]
    assert {fit["refused"] for fit in family["fits"]} == {"neither batch nor context was varied"}
    assert all(fit["fixed_bytes"] is None for fit in family["fits"])
    assert "not fitted: model_load, warm_forward, warm_backward, warm_step: neither" in as_text(found)


# --- which phase ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 200), st.lists(st.integers(1, 100), min_size=2, max_size=8, unique=True))
def test_the_phase_with_the_peak_changes_between_two_measured_points(edge: int, batches: list[int]) -> None:
    """The step has the peak up to `edge` samples and not with one more."""
    costs = {"warm_step": (edge * MIB + MIB // 2, 0, 0), "warm_backward": (0, MIB, 0)}
    batches.sort()
    ((along, at, ranges),) = Run().grid(batches, (64,), costs=costs).family().peak_ranges()
    assert (along, at) == ("batch", 64)
    measured = [(each.phase.phase, each.first, each.last) for each in ranges if each.last is not None]
    below, above = [b for b in batches if b <= edge], [b for b in batches if b > edge]
    steps = [("warm_step", below[0], below[-1])] if below else []
    assert measured == steps + ([("warm_backward", above[0], above[-1])] if above else [])
    calculated = [(each.phase.phase, each.first, each.kind) for each in ranges if each.last is None]
    if above or edge + 1 > 8 * batches[-1]:
        assert calculated == []
    elif edge >= batches[-1]:
        assert calculated == [("warm_backward", edge + 1, CALCULATED)]


def test_a_difference_within_the_noise_of_resident_memory_is_no_change_of_phase() -> None:
    run = Run().grid((1, 2, 4), (64,), costs={"cold_step": (100 * MIB, 0, 0), "warm_step": (100 * MIB, 0, 0)})
    for number, phase in enumerate(run.phases):
        phase["peak_resident_bytes"], phase["peak_tensor_bytes"] = 400 * MIB + number * 2**18, None
    ((_, _, ranges),) = run.family().peak_ranges()
    assert len(ranges) == 1


def test_a_requested_size_is_calculated_with_the_phase_that_has_its_peak() -> None:
    found = Run().grid().effects({"batch": 16, "context": 8192})
    at = found["families"][0]["at"]
    assert (at["kind"], at["within_what_was_measured"], at["is_a_lower_bound"]) == (CALCULATED, False, False)
    assert at["peak_phase"] == "warm_backward"
    assert at["peak_bytes"] == pytest.approx(100 * MIB + 16 * 8192 * 200_000, rel=1e-6)
    assert "AT batch=16 context=8192 (calculated, outside the measured range)" in as_text(found)
    small = Run().grid().effects({"batch": 1, "context": 64})["families"][0]["at"]
    assert (small["peak_phase"], small["within_what_was_measured"]) == ("warm_step", True)
    assert small["measured_peak_bytes"] == 180 * MIB
    assert Run().grid().effects()["families"][0]["at"] is None


def test_a_phase_that_cannot_be_calculated_makes_the_peak_a_lower_bound() -> None:
    run = Run().grid()
    run.phases = [p for p in run.phases if p["phase"] != "warm_step" or p["point_id"] == run.points[0]["point_id"]]
    found = run.effects({"batch": 16, "context": 256})
    assert found["families"][0]["at"]["is_a_lower_bound"] is True
    assert "the peak is at least" in as_text(found)
    assert "not known for warm_step: neither batch nor context was varied" in as_text(found)


def test_a_requested_size_needs_a_value_for_each_varied_key_only() -> None:
    with pytest.raises(Mistake, match="context was varied too, from 64 to 256"):
        Run().grid().effects({"batch": 16})
    at = Run().grid(contexts=(64,)).effects({"batch": 16})["families"][0]["at"]
    assert (at["batch"], at["context"]) == (16, 64)
    elsewhere = Run().grid(contexts=(64,)).effects({"batch": 16, "context": 128})
    assert elsewhere["families"][0]["at"]["peak_bytes"] is None
    assert "not known: measured at context=64 only" in as_text(elsewhere)


# --- levers -----------------------------------------------------------------------------------------------------------


def levers(run: Run) -> list[tuple[str, str]]:
    (family,) = run.effects()["families"]
    shares = family["largest"]["parts"]
    assert sum(share["bytes"] for share in shares) == family["largest"]["peak_bytes"]
    return [(share["of"], share["kind"]) for share in shares]


def test_the_first_lever_reduces_the_largest_part_of_the_peak() -> None:
    fixed = Run().grid(costs={"warm_backward": (10**10, 0, 40_000)}, method="full")
    assert levers(fixed)[0] == ("fixed costs", CALCULATED)
    assert "workload.method=lora" in as_text(fixed.effects())
    activations = Run().grid(costs={"warm_backward": (MIB, 0, 10**6)})
    assert levers(activations)[0] == ("activations", CALCULATED)
    assert "workload.checkpointing=true" in as_text(activations.effects())
    logits = Run().grid(vocab_size=128_000, costs={"warm_backward": (MIB, 0, 600_000)})
    assert levers(logits)[0] == ("logits", CALCULATED)
    assert "a token costs 1.2 times its logits" in as_text(logits.effects())
    assert "x vocab_size 128000 x 4 bytes" in as_text(logits.effects())


def test_the_logits_are_those_of_a_microbatch_or_of_a_chunk() -> None:
    whole, parts = (Run().grid((4,), (64,), vocab_size=1000, accumulate=of).families()[0] for of in (None, 4))
    backward = PhaseKey("warm_backward", "cpu")
    assert whole.logits(Size(4, 64), backward)[0] == 4 * 64 * 1000 * 4  # type: ignore[index]
    assert parts.logits(Size(4, 64), backward)[0] == 64 * 1000 * 4  # type: ignore[index]
    chunks = Run().grid((4,), (64,), vocab_size=1000, workload="generate", logits="all", prefill_chunk=16).families()[0]
    assert chunks.logits(Size(4, 64), PhaseKey("warm_prefill", "cpu"))[0] == 4 * 16 * 1000 * 4  # type: ignore[index]


def test_logits_are_no_part_of_a_smaller_peak_or_of_a_phase_without_them() -> None:
    assert "logits" not in dict(levers(Run().grid(vocab_size=10**6)))
    assert "logits" not in dict(levers(Run().grid(costs={"warm_step": (MIB, 0, 10**6)})))


def test_the_cache_is_a_part_as_the_workload_measured_it() -> None:
    run = Run().grid(workload="generate", logits="last", costs={"warm_decode": (MIB, 0, 1000)})
    for phase in run.phases:
        phase["metrics"] = json.dumps({"cache_bytes": 2 * MIB, "cache_bytes_on_device": MIB})
    assert ("cache", MEASURED) in levers(run)
    assert "logits" not in dict(levers(run))
    assert "1.00 MiB (measured: cache_bytes of warm_decode)" in as_text(run.effects())


def test_without_a_fit_bytes_held_before_a_pass_are_the_fixed_costs() -> None:
    assert ("fixed costs", MEASURED) in levers(Run().grid((8,), (256,)))


def overrides(run: Run) -> dict[str, tuple[int | None, str | None]]:
    """What is advised for the largest point of the first family, with its saving and the saving's kind."""
    parts = run.effects()["families"][0]["largest"]["parts"]
    found = [lever for part in parts for lever in part["levers"]]
    return {assignments(lever["changes"]): (lever["saves_bytes"], lever["kind"]) for lever in found}


def test_a_saving_is_the_difference_of_two_points_of_the_run() -> None:
    found = overrides(Run().grid(costs={"warm_backward": (MIB, 0, 10**6)}))
    assert found["batch=4"] == (4 * 256 * 10**6, MEASURED)
    assert found["context=128"] == (8 * 128 * 10**6, MEASURED)
    assert found["workload.checkpointing=true"] == (None, None)  # no such point, and no arithmetic for this model


def test_a_change_is_listed_under_one_part_and_referred_to_under_the_others() -> None:
    run = Run().grid(vocab_size=128_000, costs={"warm_backward": (MIB, 0, 900_000)})
    parts = {part["of"]: part for part in run.effects()["families"][0]["largest"]["parts"]}
    assert {"batch": 4} in [lever["changes"] for lever in parts["logits"]["levers"]]
    assert {"batch": 4} not in [lever["changes"] for lever in parts["activations"]["levers"]]
    assert {"batch": 4} in parts["activations"]["levers_above"]
    text = as_text(run.effects())
    assert text.count("batch=4 saves") == 1
    (above,) = (line.strip() for line in text.splitlines() if line.strip().startswith("as above: "))
    assert "batch=4" in above
    assert "context=128" in above


def test_a_change_that_saves_nothing_in_the_run_is_not_advised() -> None:
    costs = {"warm_backward": (MIB, 0, 10**6)}
    run = Run().grid(costs=costs, checkpointing=False)
    assert "workload.checkpointing=true" in overrides(run)
    assert "workload.checkpointing=true" not in overrides(run.grid(costs=costs, checkpointing=True))


def test_only_experiments_of_the_workload_are_advised() -> None:
    assert "experiment=training_levers" in as_text(Run().grid().effects())
    assert "experiment=" not in as_text(Run().grid(workload="custom").effects())


def test_without_measured_points_there_is_no_column_for_the_time() -> None:
    calculated = as_text(Run().grid(device="sim:rtx-4090").effects())
    assert "seconds" not in calculated
    assert "time" not in calculated.split("\n\n")[0]
    assert "the seconds are of one warm repeat" in as_text(Run().grid().effects())


def test_a_difference_in_time_that_may_be_noise_is_marked() -> None:
    run = Run().grid((1, 2), (64,))
    assert "s ?" in as_text(run.effects())
    assert "?: one repeat, so its spread is not known" in as_text(run.effects())
    run.phases += [dict(phase, run_index=1) for phase in run.phases if phase["run_index"] == 0]
    for phase in run.phases:
        phase["elapsed_s"] *= 2 if phase["point_id"] == run.points[1]["point_id"] else 1
    assert "s ?" not in as_text(run.effects())
    assert "s ~" not in as_text(run.effects()), "the repeats agree"
    for phase in run.phases:
        phase["elapsed_s"] *= 9 if phase["run_index"] == 1 else 1
    assert "s ~" in as_text(run.effects())


def test_steps_of_each_device_have_its_counters_alone_within_the_width() -> None:
    run = Run().grid((1, 2), (64,), checkpointing=False).grid((1, 2), (64,), checkpointing=True)
    run.grid((1, 2), (64,), device="sim:rtx-4090", checkpointing=False)
    steps = as_text(run.effects(), 60).split("\n\n")[0]
    assert max(map(len, steps.splitlines()[:-1])) <= 60
    cpu, card = steps.split("sim:rtx-4090")
    assert "tensor" in cpu
    assert "allocated" not in cpu
    assert "allocated" in card
    assert "tensor" not in card
    assert " - " not in steps


def test_a_change_that_the_largest_point_lacks_has_the_saving_of_the_nearest_one() -> None:
    costs = {"warm_backward": (MIB, 0, 10**6)}
    run = Run().grid((1, 2), (64,), costs=costs, checkpointing=False)
    run.grid((1,), (64,), costs={"warm_backward": (MIB, 0, 10**5)}, checkpointing=True)
    text = as_text(run.effects())
    saving = format_bytes(64 * (10**6 - 10**5))
    assert f"workload.checkpointing=true saves {saving} (measured: tensor, at batch=1 in this run)" in text


def test_a_difference_that_is_not_known_has_the_reason_of_the_point_without_a_peak() -> None:
    run = Run()
    run.add("oom", device="sim:rtx-4090", batch=1, failed_phase="cold_forward", unlimited_peak_bytes=5)
    run.add("error", device="sim:rtx-4090", batch=2, failed_phase="start")
    (found,) = run.differences()
    assert found.because["peak_allocated_bytes"] == "error in start: its peak is partial"


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_a_run_of_failures_only_gives_one_line_with_the_reason() -> None:
    run = Run()
    for batch in (1, 2):
        run.add("error", batch=batch, failed_phase="start", error_type="TypeError", error_message="no\nbatch")
    text = as_text(run.effects())
    assert text.count("\n") == 0
    assert "no point passed completely" in text
    assert "2 error in start: its peak is partial (TypeError: no)" in text
    assert as_text(effects([], [])) == "no point passed completely, so nothing can be compared: no points"


def test_every_number_in_the_text_is_marked_as_measured_or_calculated() -> None:
    text = as_text(Run().grid().effects({"batch": 16, "context": 8192}))
    sections = text.split("\n\n")
    assert len(sections) >= 5
    for section in sections:
        if any(character.isdigit() for character in section) and "points:" not in section:
            assert MEASURED in section or CALCULATED in section
    percents = [line for line in text.splitlines() if "%" in line and "points" not in line]
    assert percents
    assert all(MEASURED in line or CALCULATED in line for line in percents)


def test_calculated_devices_are_marked() -> None:
    found = Run().grid(device="sim:rtx-4090").effects()
    assert "ONE STEP OF ONE DIMENSION (calculated" in as_text(found)
    assert MEASURED not in {found["families"][0]["largest"]["kind"], *(each["kind"] for each in found["differences"])}
    assert "(calculated, not measured)" in as_text(found)


def test_family_titles_have_the_values_that_differ() -> None:
    run = Run().grid(dtype="float32").grid(dtype="bfloat16", lr=0.1)
    titles = [family["title"] for family in run.effects()["families"]]
    assert titles == [
        ["cpu", "tiny", "train", "float32", "allocator=repeatable"],
        ["cpu", "tiny", "train", "bfloat16", "allocator=repeatable", "workload.lr=0.1"],
    ]


def test_families_that_differ_in_a_key_that_was_not_swept_are_both_shown() -> None:
    run = Run().grid((1, 2), (64,), checkpointing=False).grid((1, 2), (64,), checkpointing=True)
    text = as_text(run.effects())
    assert "workload.checkpointing=false" in text
    assert "workload.checkpointing=true" in text
    assert text.count("WHAT IT COSTS") == 2


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no run in outputs; name the folder of one, or measure one, as in sweeper batch=1,2,4"),
        (["a", "b"], "got a b"),
        (["a", "--csv"], "no such flag: --csv; usage: sweeper effects [RUN] [--json] [--at SIZE] [--picture FILE]"),
        (["a", "--at"], "--at: expected one argument"),
        (["a", "--at", "batch=0"], "'batch=0' is not batch or context and a number"),
        (["a", "--at", "width=4"], "'width=4' is not batch or context"),
        (["a", "--picture=x.gif"], "x.gif: its name must end in .png, .svg, .pdf"),
        (["nowhere"], "no such folder"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Mistake) as mistake:
        cli.run(["effects", *arguments])
    assert message in str(mistake.value)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small points, really measured."""
    folder = tmp_path_factory.mktemp("swept")
    command_line.run(["batch=1,2", "context=16,32", "start=warm", "devices=cpu", "name=small"], folder)
    return folder / "outputs" / "small"


def test_a_real_sweep_has_its_differences_its_costs_and_a_picture(swept: Path, tmp_path: Path) -> None:
    picture = tmp_path / "effects.png"
    shown = ["--json", "--at", "batch=4,context=32", "--picture", str(picture)]
    done = command_line.run(["effects", str(swept), *shown], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    points = sweeper.load(swept).points.set_index(["batch", "context"])
    assert {(each["dimension"], each["from"], each["to"]) for each in found["differences"]} == {
        ("batch", 1, 2),
        ("context", 16, 32),
    }
    for each in found["differences"]:
        at = {**each["at"], each["dimension"]: each["from"]}
        to = {**each["at"], each["dimension"]: each["to"]}
        both = [int(points.loc[(size["batch"], size["context"]), "peak_tensor_bytes"]) for size in (at, to)]
        assert each["peak_tensor_bytes"] == both[1] - both[0] > 0
        assert each["time_of"] == "warm_forward, mean of 2 repeats"
    first = found["families"][0]
    assert (first["counter"], first["passed"]) == ("tensor", 4)
    fits = {fit["phase"]: fit for fit in first["fits"]}
    assert fits["warm_forward"]["worst_residual"] < 0.005
    assert fits["warm_forward"]["per_token_bytes"] > 4 * 1000  # a token's logits are among what it costs
    assert first["at"]["peak_bytes"] > first["largest"]["peak_bytes"]
    levers = [lever for part in first["largest"]["parts"] for lever in part["levers"]]
    (halved,) = [lever for lever in levers if lever["changes"] == {"dtype": "bfloat16"}]
    assert (halved["kind"], halved["saves_bytes"]) == (None, None)  # no term has the tensors of the layers
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_text_of_a_real_sweep_has_its_sections(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["effects", str(swept)]) == 0
    text = capsys.readouterr().out
    for heading in ("ONE STEP OF ONE DIMENSION (measured", "WHAT IT COSTS (calculated", "THE PEAK", "WHICH LEVER"):
        assert heading in text
    assert "one more sample of 32 tokens costs" in text


def test_without_matplotlib_a_picture_is_refused_in_one_line_and_the_rest_works(
    swept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        Mistake, match=r'^--picture x.png: matplotlib is not installed; .*pip install "sweeper\[pictures\]"'
    ):
        cli.run(["effects", str(swept), "--picture", "x.png"])
    assert capsys.readouterr().out == ""
    assert cli.run(["effects", str(swept)]) == 0


def test_a_picture_that_cannot_be_written_is_a_mistake(swept: Path) -> None:
    with pytest.raises(Mistake, match="cannot be written: No such file or directory"):
        cli.run(["effects", str(swept), "--picture", "/nowhere/x.svg"])

"""The JSON of facts: exactly the keys that readers of earlier runs know, and typed values back from them."""

from __future__ import annotations

from typing import Any

import pytest

from runners import facts
from runners.facts import Cause, Counters, DeviceUse, Exit, Fact, OutsideReading

HELD = {"resident": 7, "tensor": 3}

LINES: dict[str, tuple[Fact, dict[str, Any]]] = {
    "environment": (
        facts.Environment(7, "2026-01-01T00:00:00+00:00", {"host": "here"}),
        {"pid": 7, "at": "2026-01-01T00:00:00+00:00", "record": {"host": "here"}},
    ),
    "baseline": (
        facts.Baseline(HELD, None, instrumented=True),
        {"counters": HELD, "available_memory_bytes": None, "instrumented": True},
    ),
    "baseline of a program": (
        facts.Baseline({}, 5, instrumented=False, of=facts.PROGRAM),
        {"counters": {}, "available_memory_bytes": 5, "instrumented": False, "of": "program"},
    ),
    "budget": (facts.Budget("guard", 5), {"budget_kind": "guard", "budget_bytes": 5}),
    "model": (
        facts.Model({"parameters": 5, "attention": None, "kind": "finished", "t": 9}),
        {"facts": {"parameters": 5, "attention": None, "kind": "finished", "t": 9}},
    ),
    "began": (
        facts.Began("step", 0, {"cpu": HELD}),
        {"phase": "step", "run_index": 0, "counters": {"cpu": {"baseline": HELD}}},
    ),
    "heartbeat": (
        facts.Heartbeat("between", None, {"cuda:0": HELD, "cuda:1": {}}),
        {"phase": "between", "run_index": None, "counters": {"cuda:0": {"peak": HELD}, "cuda:1": {"peak": {}}}},
    ),
    "ended": (
        facts.Ended("step", None, 0.5, None, False, {"cpu": Counters(HELD, HELD, HELD, None, 0)}, {}, {"loss": 1.5}),
        {
            "phase": "step",
            "run_index": None,
            "elapsed_s": 0.5,
            "iterations": None,
            "completed": False,
            "counters": {
                "cpu": {
                    **{"baseline": HELD, "end": HELD, "peak": HELD, "alloc_retries": None, "num_ooms": 0},
                    **{"refusals": None, "refused_bytes": None},
                },
            },
            "shapes": {},
            "metrics": {"loss": 1.5},
        },
    ),
    "report": (
        facts.Report(7, None, [{"index": 0, "peak": HELD}], torch="2.0"),
        {"pid": 7, "failure": None, "devices": [{"index": 0, "peak": HELD}], "torch": "2.0"},
    ),
    "report without torch": (facts.Report(7, None, []), {"pid": 7, "failure": None, "devices": []}),
    "failed": (
        facts.Failed([Cause("MemoryError", ["Exception"], "")], None),
        {"chain": [{"type": "MemoryError", "bases": ["Exception"], "message": ""}], "traceback": None},
    ),
    "failed of a program": (
        facts.Failed([Cause("ProgramFailed", [], "exit code 3")], "the end", exit_code=3),
        {
            "chain": [{"type": "ProgramFailed", "bases": [], "message": "exit code 3"}],
            "traceback": "the end",
            "exit_code": 3,
        },
    ),
    "trace": (
        facts.Trace("trace.json", bytes=5, scope="tensors"),
        {"file": "trace.json", "bytes": 5, "scope": "tensors"},
    ),
    "trace that is missing": (facts.Trace(None, reason="a full disk"), {"file": None, "reason": "a full disk"}),
    "finished": (facts.Finished({}, None, 64), {"metrics": {}, "steps": None, "tokens": 64}),
    "assumed": (
        facts.Assumed(3, [{"file": "train.py", "line": 41, "times": 3}], []),
        {"values": 3, "places": [{"file": "train.py", "line": 41, "times": 3}], "bounds": []},
    ),
    "unlimited": (facts.Unlimited({"allocated": 5}), {"peak": {"allocated": 5}}),
    "host_tensors": (facts.HostTensors(64), {"peak_bytes": 64}),
    "notes": (facts.Notes(["an assumption"]), {"notes": ["an assumption"]}),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_has_the_keys_of_its_kind_and_reads_back_as_the_fact(name: str) -> None:
    fact, fields = LINES[name]
    kind = name.split()[0]
    assert facts.to_json(fact) == {"kind": kind, **fields}
    assert facts.from_json({"kind": kind, **fields}) == fact
    stamped = fact._replace(t=2.5)
    assert facts.from_json(facts.to_json(stamped)) == stamped
    assert facts.to_json(stamped)["t"] == 2.5


def test_every_kind_has_a_line_here() -> None:
    assert {type(fact) for fact, _ in LINES.values()} == set(facts.KINDS)


def test_a_field_of_another_version_is_ignored_and_a_missing_one_is_none() -> None:
    line = {"kind": "finished", "metrics": {"loss": 1.5}, "verdict": "of a later version"}
    assert facts.from_json(line) == facts.Finished({"loss": 1.5}, None, None)


def test_a_model_in_a_line_of_an_earlier_version_is_read() -> None:
    line = {"kind": "model", "t": 2.5, "parameters": 5, "storage_dtype": "float32"}
    assert facts.from_json(line) == facts.Model({"parameters": 5, "storage_dtype": "float32"}, 2.5)


def test_a_line_of_no_known_kind_is_refused() -> None:
    with pytest.raises(KeyError):
        facts.from_json({"kind": "verdict"})


def test_an_exit_has_every_key_of_a_measured_process_and_those_that_apply() -> None:
    exit = Exit(
        pid=7,
        signal=9,
        outside=(OutsideReading(1.5, 5, 1.6),),
        contaminated=False,
        devices=(DeviceUse("GPU-1", 0, None),),
        oom_kill_proof="the count rose",
    )
    content = facts.exit_to_json(exit)
    assert content["outside"] == [{"t": 1.5, "resident": 5, "until": 1.6}]
    assert content["devices"] == [{"uuid": "GPU-1", "used_bytes_before": 0, "used_bytes_end": None}]
    assert (content["pid"], content["code"], content["contaminated"]) == (7, None, False)
    assert not {"lost", "unavailable", "interrupted", "reason"} & content.keys()
    assert facts.exit_from_json(content) == exit


def test_a_key_that_an_exit_file_does_not_have_is_unknown() -> None:
    assert facts.exit_from_json({"format": 1, "code": 0, "outside": [{"t": 1.5}]}) == Exit(
        code=0, outside=(OutsideReading(1.5, None),)
    )


@pytest.mark.parametrize(
    "content",
    [
        [], 5, None, "code", {}, {"format": 1}, {"code": "x"}, {"code": 0, "outside": 5}, {"code": 0, "outside": [5]},
        {"code": 0, "devices": {"uuid": 1}}, {"duration_s": "long"}, {"lost": "yes"}, {"reason": 5},
        {"contamination_waited_s": [1]},
    ],
)  # fmt: skip
def test_what_no_supervisor_writes_is_refused(content: Any) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        facts.exit_from_json(content)


@pytest.mark.parametrize(
    ("readings", "highest"),
    [
        ([], {}),
        ([{"a": 1}, {"a": 3, "b": 0}, {"a": 2}], {"a": 3, "b": 0}),
        ([{}, {"b": 5}], {"b": 5}),
    ],
)
def test_the_highest_of_each_counter_is_kept(readings: list[dict[str, int]], highest: dict[str, int]) -> None:
    assert facts.highest(readings) == highest

"""Every file of an attempt can lose any part of its bytes: no figure and no status is then taken from it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners import facts
from runners.device import device_named
from runners.facts import Exit
from runners.journal import Journal
from runners.outcome import Outcome, Status
from runners.point import Attempt, AttemptFolder, Point, write_aside
from runners.record import attempt_in, outcome_in
from runners.stored_json import Damaged

HELD = {"cpu": facts.Counters({"resident": 5}, {"resident": 6}, {"resident": 2**20}, None, None)}
ATTEMPT = Attempt(point=Point(values={"workload": {"name": "custom"}, "batch": 1}), device=device_named("cpu"))
ATTEMPT_AS_READ = replace(ATTEMPT, environ={})
FACTS = (
    facts.Environment(7, "2026-01-01T00:00:00+00:00", {"host": "h\u00e9re"}),
    facts.Baseline({"resident": 5}, None, instrumented=False),
    facts.Ended("between", None, 0.1, None, True, HELD, {}, {}),
    facts.Began("work", 0, {"cpu": {"resident": 6}}),
    facts.Heartbeat("work", 0, {"cpu": {"resident": 9}}),
    facts.Ended("work", 0, 0.1, None, True, HELD, {}, {"loss": 0.5}),
    facts.Finished({"loss": 0.5}, None, None),
)
BY_ITSELF, KILLED = Exit(code=0, started_at="2026"), Exit(signal=9, started_at="2026")


def written(path: Path, exit: Exit, size: bool = True) -> AttemptFolder:
    folder = AttemptFolder(path / "attempt")
    folder.create(ATTEMPT)
    Journal(folder.journal).write(*FACTS)
    folder.settle(exit._replace(journal_bytes=folder.journal.stat().st_size if size else None))
    return folder


def torn(file: Path) -> Iterator[str]:
    """Cut, filled with zeros to its end, and with a hole of 64 zeros: at the ends of lines and at every 11th byte."""
    whole = file.read_bytes()
    length = len(whole)
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    around = {end + each for end in ends for each in (-1, 0, 1)}
    for start in sorted({*range(0, length, 11), *around} - {length}):
        for name, content in (
            ("cut", whole[:start]),
            ("zeros", whole[:start] + bytes(length - start)),
            ("hole", whole[:start] + bytes(min(64, length - start)) + whole[start + 64 :]),
        ):
            file.write_bytes(content)
            yield f"{name} at {start}"
    file.write_bytes(whole)


def nothing_is_known_of(outcome: Outcome) -> bool:
    figures = (outcome.fits, outcome.peaks, outcome.phases, outcome.metrics, outcome.process_baseline)
    return outcome.status is Status.LOST and outcome.void and figures == (None, {}, (), {}, {})


@pytest.mark.parametrize("exit", [BY_ITSELF, KILLED], ids=["ended", "killed"])
def test_a_journal_that_lost_any_part_is_noticed(tmp_path: Path, exit: Exit) -> None:
    folder = written(tmp_path, exit)
    whole = outcome_in(folder, ATTEMPT)
    assert (whole.status, whole.void, whole.peak("resident")) == (Status.OK, False, 2**20)
    for how in torn(folder.journal):
        outcome = outcome_in(folder, ATTEMPT)
        assert nothing_is_known_of(outcome), how
        assert (outcome.error_message or "").startswith("its record is damaged: journal.jsonl "), how
    folder.journal.unlink()
    assert nothing_is_known_of(outcome_in(folder, ATTEMPT))


def test_a_journal_of_an_earlier_version_is_whole_if_its_end_is_there(tmp_path: Path) -> None:
    folder = written(tmp_path, BY_ITSELF, size=False)
    whole = outcome_in(folder, ATTEMPT)
    last = folder.journal.stat().st_size - 1
    for how in torn(folder.journal):
        outcome = outcome_in(folder, ATTEMPT)
        assert nothing_is_known_of(outcome) or (how == f"cut at {last}" and outcome == whole), how


def test_an_exit_that_lost_any_part_is_noticed(tmp_path: Path) -> None:
    folder = written(tmp_path, BY_ITSELF)
    whole = outcome_in(folder, ATTEMPT)
    last = folder.exit.stat().st_size - 1
    for how in torn(folder.exit):
        outcome = outcome_in(folder, ATTEMPT)
        assert nothing_is_known_of(outcome) or (how == f"cut at {last}" and outcome == whole), how


def test_a_request_that_lost_any_part_is_noticed(tmp_path: Path) -> None:
    folder = written(tmp_path, BY_ITSELF)
    last = folder.request.stat().st_size - 1
    for how in torn(folder.request):
        if how != f"cut at {last}":
            with pytest.raises(Damaged, match=r"point\.json cannot be read"):
                folder.attempt()
    assert folder.attempt().point.id == ATTEMPT.point.id
    shutil.rmtree(folder.path)
    with pytest.raises(Damaged, match="is missing"):
        folder.attempt()


@pytest.mark.parametrize("content", ["[]", "5", "null", "{}", '{"values": 5, "device": "cpu", "attempt": 1}'])
def test_a_request_of_another_shape_is_damaged(tmp_path: Path, content: str) -> None:
    folder = written(tmp_path, BY_ITSELF)
    folder.request.write_text(content)
    with pytest.raises(Damaged):
        folder.attempt()


def test_the_last_line_of_a_process_that_was_killed_may_be_torn(tmp_path: Path) -> None:
    folder = written(tmp_path, KILLED)
    folder.journal.write_bytes(folder.journal.read_bytes()[:-20])
    folder.settle(KILLED._replace(journal_bytes=folder.journal.stat().st_size))
    outcome = outcome_in(folder, ATTEMPT)
    assert (outcome.status, outcome.void, outcome.peak("resident")) == (Status.KILLED, False, 2**20)


def test_a_process_that_left_by_itself_is_crashed_if_its_journal_is_whole(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "attempt")
    folder.create(ATTEMPT)
    Journal(folder.journal).write(*FACTS[:4])
    folder.settle(BY_ITSELF._replace(journal_bytes=folder.journal.stat().st_size))
    outcome = outcome_in(folder, ATTEMPT)
    assert (outcome.status, outcome.void, outcome.failed_phase) == (Status.CRASHED, False, "work")


# --- what only a checksum notices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["journal.jsonl", "exit.json", "point.json"])
def test_no_flipped_bit_of_a_settled_attempt_changes_a_figure(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path, BY_ITSELF)
    whole, file = outcome_in(folder, ATTEMPT), folder.path / name
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        outcome = outcome_in(folder, ATTEMPT)
        if outcome != whole:
            assert nothing_is_known_of(outcome), at
            assert name in (outcome.error_message or ""), at


def test_a_digit_that_became_another_one_is_noticed(tmp_path: Path) -> None:
    folder = written(tmp_path, BY_ITSELF)
    content = folder.journal.read_text()
    folder.journal.write_text(content.replace("1048576", "1048577"))
    assert outcome_in(folder, ATTEMPT).error_message == (
        "its record is damaged: journal.jsonl changed after the attempt had settled"
    )


def test_an_attempt_of_an_earlier_version_has_no_checksums_and_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path, BY_ITSELF)
    content = json.loads(folder.exit.read_text())
    folder.exit.write_text(json.dumps({key: content[key] for key in content if key not in ("checksums", "crc32")}))
    request = json.loads(folder.request.read_text())
    folder.request.write_text(json.dumps({key: request[key] for key in request if key != "crc32"}))
    assert folder.attempt() == ATTEMPT_AS_READ
    outcome = outcome_in(folder, ATTEMPT)
    assert (outcome.status, outcome.peak("resident")) == (Status.OK, 2**20)


# --- files of another attempt -----------------------------------------------------------------------------------------


def two(path: Path) -> tuple[AttemptFolder, AttemptFolder]:
    """Two settled attempts at one point, in folders with their names."""
    found = []
    for number in (1, 2):
        attempt = replace(ATTEMPT, number=number)
        folder = AttemptFolder(path / attempt.name)
        folder.create(attempt)
        Journal(folder.journal).write(*FACTS, facts.Finished({"loss": number}, None, None))
        folder.settle(BY_ITSELF._replace(journal_bytes=folder.journal.stat().st_size))
        found.append(folder)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (["exit.json"], "journal.jsonl and point.json changed after the attempt had settled"),
        (["journal.jsonl"], "journal.jsonl changed after the attempt had settled"),
        (["journal.jsonl", "exit.json"], "point.json changed after the attempt had settled"),
    ],
)
def test_files_of_another_attempt_are_noticed(tmp_path: Path, files: list[str], why: str) -> None:
    one, other = two(tmp_path)
    for name in files:
        shutil.copy(other.path / name, one.path / name)
    outcome = outcome_in(one, attempt_in(one))
    assert nothing_is_known_of(outcome)
    shorter = r"journal\.jsonl has \d+ of its \d+ bytes"  # where a figure of the other attempt has fewer digits
    assert re.fullmatch(f"its record is damaged: ({re.escape(why)}|{shorter})", outcome.error_message or "")
    assert outcome_in(other, attempt_in(other)).metrics == {"loss": 2}


@pytest.mark.parametrize("files", [["point.json"], ["point.json", "journal.jsonl", "exit.json"]])
def test_a_folder_with_the_request_of_another_attempt_is_damaged(tmp_path: Path, files: list[str]) -> None:
    one, other = two(tmp_path)
    for name in files:
        shutil.copy(other.path / name, one.path / name)
    assert attempt_in(other).number == 2
    with pytest.raises(Damaged, match=r"point\.json is the request of another attempt, .*\.cpu\.2"):
        attempt_in(one)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"values": {"batch": 2}}, "its id is not that of its values"),
        ({"values": []}, "point has a value of another type"),
        ({"device": "gpu:9"}, "'gpu' is not a valid DeviceType"),
        ({"device": None}, "has no attribute"),
        ({"attempt": True}, "number has a value of another type"),
        ({"attempt": 0}, "attempt is not 1 or more"),
        ({"attempt": 2**63}, "number has a value of another type"),
        ({"heartbeat": "often"}, "heartbeat has a value of another type"),
        ({"environ": {"A": 1}}, "environ has a value of another type"),
        (
            {"card": {"name": "x", "vendor": "y", "architecture": "z", "total_bytes": -1}},
            "device has a value of another",
        ),
        ({"card": {"name": "x"}}, "missing 3 required"),
        ({"identity": {"torch": 2}}, "identity has a value of another type"),
    ],
)
def test_a_request_with_a_value_that_no_sweep_writes_is_damaged(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    folder = AttemptFolder(tmp_path)
    write_aside(folder.request, ATTEMPT.to_json() | change)
    with pytest.raises(Damaged, match=rf"point\.json cannot be read: no sweep writes it so \(.*({why})"):
        folder.attempt()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"kind": "began", "phase": 5, "counters": {}}, "began: phase has a value of another type"),
        ({"kind": "began", "counters": {}}, "began: it has no 'phase'"),
        ({"kind": "heartbeat", "phase": "work", "counters": {"cpu": 5}}, "heartbeat: "),
        (
            {"kind": "heartbeat", "phase": "work", "counters": {"cpu": {"peak": {"resident": -1}}}},
            "heartbeat: peak has",
        ),
        (
            {"kind": "heartbeat", "phase": "work", "counters": {"cpu": {"peak": {"resident": 0.5}}}},
            "heartbeat: peak has",
        ),
        (
            {"kind": "heartbeat", "phase": "work", "counters": {"cpu": {"peak": {"resident": None}}}},
            "heartbeat: peak has",
        ),
        ({"kind": "baseline", "counters": [], "available_memory_bytes": 5}, "baseline: counters has"),
        ({"kind": "baseline", "counters": {}, "available_memory_bytes": -5}, "baseline: available_memory_bytes has"),
        ({"kind": "budget", "budget_kind": None, "budget_bytes": 5}, "budget: budget_kind has"),
        ({"kind": "ended", "phase": "work", "counters": {}, "elapsed_s": 2**70}, "ended: elapsed_s has"),
        ({"kind": "ended", "phase": "work", "counters": {}, "metrics": [1]}, "ended: metrics has"),
        ({"kind": "ended", "phase": "work", "counters": {"cpu": {"refused": {"held": {}}}}}, "ended: counters has"),
        ({"kind": "failed", "chain": []}, "failed: a failure without an exception"),
        ({"kind": "failed", "chain": [{"bases": []}]}, "failed: it has no 'type'"),
        ({"kind": "failed", "chain": [{"type": "E", "bases": "E"}]}, "failed: chain has"),
        ({"kind": "environment", "record": {"device_total_bytes": "5"}}, "environment: device_total_bytes has"),
        ({"kind": "environment", "record": {"libraries": -1}}, "environment: libraries has"),
        ({"kind": "environment", "record": None}, "environment: record has"),
        ({"kind": "finished", "metrics": {}, "tokens": 2**63}, "finished: tokens has"),
        ({"kind": "finished", "metrics": {}, "steps": True}, "finished: steps has"),
    ],
)
def test_a_line_that_no_process_writes_makes_the_attempt_lost(tmp_path: Path, line: dict[str, Any], why: str) -> None:
    """Also with checksums that agree: a workload can write into the journal of its own process."""
    folder = AttemptFolder(tmp_path / "attempt")
    folder.create(ATTEMPT)
    Journal(folder.journal).write(*FACTS)
    with folder.journal.open("a") as journal:
        journal.write(json.dumps({"t": 1.0, **line}) + "\n")
    folder.settle(BY_ITSELF)
    outcome = outcome_in(folder, ATTEMPT)
    assert nothing_is_known_of(outcome)
    assert f"journal.jsonl has lines that cannot be read, one of the kind {why}" in (outcome.error_message or "")

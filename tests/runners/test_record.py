"""Every file of an attempt can lose any part of its bytes: no figure and no status is then taken from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners import facts
from runners.device import device_named
from runners.facts import Exit
from runners.journal import Journal
from runners.outcome import Outcome, Status
from runners.point import Attempt, AttemptFolder, Damaged, Point
from runners.record import outcome_in

HELD = {"cpu": facts.Counters({"resident": 5}, {"resident": 6}, {"resident": 2**20}, None, None)}
ATTEMPT = Attempt(point=Point(values={"workload": {"name": "custom"}, "batch": 1}), device=device_named("cpu"))
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
    with pytest.raises(Damaged, match="FileNotFoundError"):
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

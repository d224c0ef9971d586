"""Phases without lines of their own: every figure of the attempt is the one that all lines would give."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners import facts, phases
from runners.device import device_named
from runners.facts import Baseline, Finished
from runners.journal import Journal
from runners.outcome import Outcome
from runners.phases import Phases, Reading
from runners.point import Attempt, AttemptFolder, Point
from runners.record import outcome_in

ATTEMPT = Attempt(
    point=Point(values={"workload": {"name": "custom"}, "quality": {"target": "a:b"}}), device=device_named("cpu")
)
MIB = 2**20
HELD = {"resident": 100 * MIB, "address": 90 * MIB, "virtual": 200 * MIB, "mapped": 110 * MIB, "data_and_shared": 0}


class Random:
    """A meter of two devices with random readings, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random, self.retries = random.Random(seed), 0
        self.virtual_peak = 200 * MIB

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        self.retries += self.random.randrange(3)
        address = 90 * MIB + self.random.randrange(50) * MIB
        self.virtual_peak = max(self.virtual_peak, address + 110 * MIB)
        now = HELD | {"address": address, "virtual": address + 110 * MIB, "data_and_shared": self._bytes()}
        refusals = self.random.choice([0, 0, None, 1])
        cpu = Reading(
            now=now | {"used": self._bytes()},
            peak={"resident": self._bytes(), "address": self.virtual_peak},
            alloc_retries=self.retries,
            num_ooms=None,
            refusals=refusals,
            refused_bytes=self.random.randrange(MIB) if refusals else None,
        )
        other = Reading(now={"allocated": self._bytes()}, peak={"allocated": self._bytes()}, alloc_retries=self.retries)
        return {"cpu": cpu, "other": other}

    def glance(self) -> Mapping[str, Reading]:
        return {"cpu": Reading(peak={"resident": 5})}

    def _bytes(self) -> int:
        return self.random.randrange(1000) * MIB


def measured(folder: Path, seed: int, assessed: bool) -> Outcome:
    place = AttemptFolder(folder)
    place.create(ATTEMPT)
    journal = Journal(place.journal)
    journal.write(Baseline({**HELD, "virtual_peak": 200 * MIB}, None, instrumented=True))
    phase, chance = Phases(Random(seed), journal), random.Random(seed)
    phase.open()
    for number in range(60):
        try:
            with phase(chance.choice(["step", "other"]), number):
                if chance.random() < 0.1:
                    raise ValueError
        except ValueError:
            pass
    if assessed:
        with phase("quality"):
            pass
    phase.close(completed=True)
    journal.write(Finished({}, None, None))
    place.settle(facts.Exit(code=0, started_at="2026", journal_bytes=place.journal.stat().st_size))
    return outcome_in(place, ATTEMPT)


def figures(outcome: Outcome) -> dict[str, Any]:
    counters = {
        name: sum(each.alloc_retries or 0 for each in outcome.phases if each.device == name)
        for name in ("cpu", "other")
    }
    return {
        "peaks": outcome.peaks,
        "fits": outcome.fits,
        "partial": outcome.peak_is_partial,
        "refusals": (outcome.handled_refusals, outcome.handled_refusal_bytes),
        "shared": outcome.used_with_shared_bytes,
        "retries": counters,
    }


@pytest.mark.parametrize("assessed", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_an_attempt_whose_later_phases_are_joined_has_the_figures_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, assessed: bool
) -> None:
    all_listed = measured(tmp_path / "all", seed, assessed)
    monkeypatch.setattr(phases, "LISTED_BYTES", 20_000)
    joined = measured(tmp_path / "joined", seed, assessed)
    assert figures(joined) == figures(all_listed)
    assert len(joined.phases) < len(all_listed.phases)
    unlisted = [phase for phase in joined.phases if phase.name == "unlisted"]
    listed = [phase for phase in joined.phases if phase.name in ("step", "other")]
    assert {phase.device for phase in unlisted} == {"cpu", "other"}
    assert (unlisted[0].iterations or 0) + len(listed) / 2 == 60


def test_a_phase_that_lasts_is_listed_by_its_heartbeat_and_a_new_name_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    phase = Phases(Random(0), journal)
    phase.open()
    for _ in range(4):
        with phase("step"):
            pass
    monkeypatch.setattr(phases, "LISTED_BYTES", journal.bytes)
    for name in ("step", "step", "new", "step"):
        with phase(name):
            pass
    with phase("step"):
        phase._beat()
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [(line["kind"], line["phase"]) for line in lines] == [
        *(("ended", "between"), ("began", "step"), ("ended", "step")) * 4,
        *(("ended", "unlisted"), ("ended", "between"), ("began", "new"), ("ended", "new")),
        *(("ended", "unlisted"), ("began", "step"), ("heartbeat", "step"), ("ended", "step")),
    ]


def test_heartbeats_become_rarer_so_that_a_day_of_them_is_a_few_thousand() -> None:
    elapsed, count = 0.0, 0
    while elapsed < 24 * 3600:
        elapsed += phases.pause(0.2, elapsed)
        count += 1
    assert 1000 < count < 7500
    assert phases.pause(0.2, 100) == 0.2


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("x" * 201, ValueError, "its name has 201 characters, and at most 200"),
        ("unlisted", ValueError, "this is the name of phases without a line of their own"),
        (7, TypeError, "is a text"),
    ],
)
def test_a_name_that_no_line_can_have_is_refused(
    tmp_path: Path, name: Any, error: type[Exception], message: str
) -> None:
    phase = Phases(Random(0), Journal(tmp_path / "journal.jsonl"))
    with pytest.raises(error, match=message):
        phase(name)


def test_notes_of_all_phases_and_reports_of_a_model_have_a_limit_together(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    phase = Phases(Random(0), journal)
    phase.open()
    for number in range(30):
        with phase("step", number) as notes:
            notes.metrics = {"values": list(range(100_000))}
    assert journal.bytes < 1.2 * phases.LARGEST_NOTES_BYTES
    assert '"metrics": {"[...]": "[... 1 of 1 values left out ...]"}' in journal.path.read_text()
    for _ in range(8):
        phase.model(values=list(range(100_000)))
    with pytest.raises(RuntimeError, match="report the model once"):
        phase.model(values=1)

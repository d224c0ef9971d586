"""Reads what an attempt left in its folder, and notices files that lost a part of what was written."""

from __future__ import annotations

from collections.abc import Sequence

from runners import facts, journal
from runners.facts import Exit, Fact
from runners.journal import Kept
from runners.outcome import Outcome, outcome_of
from runners.point import Attempt, AttemptFolder, Damaged


def outcome_in(folder: AttemptFolder, attempt: Attempt) -> Outcome:
    """The outcome of an attempt from the files in its folder."""
    kept = journal.kept_in(folder.journal, is_journal=True)
    found, is_odd = journal.facts_of(kept)
    try:
        exit = folder.settled()
    except Damaged as damaged:
        return outcome_of(attempt, found, None, damage=str(damaged))
    damage = _damage(kept, found, is_odd, exit)
    return outcome_of(attempt, found, exit, damage=damage, record_bytes=kept.bytes)


def _damage(kept: Kept, found: Sequence[Fact], is_odd: bool, exit: Exit | None) -> str | None:
    """What is wrong with a journal, or None. A process that was killed may leave its last line torn."""
    if kept.damage or is_odd:
        return f"journal.jsonl {kept.damage or 'has lines that cannot be read'}"
    if exit is None:
        return None
    if exit.journal_bytes is not None and kept.bytes < exit.journal_bytes:
        return f"journal.jsonl has {kept.bytes} of its {exit.journal_bytes} bytes"
    if exit.code != 0:
        return None
    if kept.torn:
        return "journal.jsonl ends inside a line"
    reported = any(isinstance(fact, (facts.Failed, facts.Finished)) for fact in found)
    # An earlier version did not record the size, so a workload that left by itself looks the same.
    if not reported and exit.journal_bytes is None:
        return "journal.jsonl has no end, although its process ended with exit code 0"
    return None

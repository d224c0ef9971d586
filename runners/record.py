"""Reads what an attempt left in its folder, and notices files that are not as they were written."""

from __future__ import annotations

from collections.abc import Sequence

from runners import facts, journal
from runners.facts import Exit, Fact
from runners.journal import Kept
from runners.outcome import Outcome, outcome_of
from runners.point import Attempt, AttemptFolder
from runners.stored_json import Damaged


def attempt_in(folder: AttemptFolder) -> Attempt:
    """The attempt that a folder of a run is named after. Raises Damaged, also if it holds another attempt's request."""
    attempt = folder.attempt()
    if attempt.name != f"{folder.path.parent.name}/{folder.path.name}":
        raise Damaged(f"{folder.request.name} is the request of another attempt, {attempt.name}")
    return attempt


def outcome_in(folder: AttemptFolder, attempt: Attempt) -> Outcome:
    """The outcome of an attempt from the files in its folder."""
    kept = journal.kept_in(folder.journal)
    found, odd = journal.facts_of(kept)
    try:
        exit = folder.settled()
    except Damaged as damaged:
        return outcome_of(attempt, found, None, damage=str(damaged))
    damage = _damage(folder, kept, found, odd, exit)
    return outcome_of(attempt, found, exit, damage=damage, record_bytes=kept.bytes)


def _damage(folder: AttemptFolder, kept: Kept, found: Sequence[Fact], odd: str | None, exit: Exit | None) -> str | None:
    """What is wrong with the files, or None. A process that was killed may leave its last line torn."""
    name = folder.journal.name
    if odd or kept.damage:
        return f"{name} {odd or kept.damage}"
    if exit is None:
        return None
    if exit.journal_bytes is not None and kept.bytes < exit.journal_bytes:
        return f"{name} has {kept.bytes} of its {exit.journal_bytes} bytes"
    if exit.checksums is not None:  # an earlier version did not record them
        now = {name: kept.checksum, folder.request.name: folder.checksum(folder.request)}
        changed = [each for each, checksum in now.items() if checksum != exit.checksums.get(each)]
        if changed:
            return f"{' and '.join(changed)} changed after the attempt had settled"
    if exit.code != 0:
        return None
    if kept.torn:
        return f"{name} ends inside a line"
    reported = any(isinstance(fact, (facts.Failed, facts.Finished)) for fact in found)
    # An earlier version did not record the size, so a workload that left by itself looks the same.
    if not reported and exit.journal_bytes is None:
        return f"{name} has no end, although its process ended with exit code 0"
    return None

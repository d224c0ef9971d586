"""Every attempt that did not pass, with those of the same message together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from runners.outcome import UNAVAILABLE, Status
from sweeper.rows import Row
from sweeper.views.layout import error_text
from sweeper.views.page.marks import Mark, mark_of

MOST_KINDS = 100
MOST_LISTED = 50  # attempts of a kind
LONGEST = 600  # characters of a message in the summary: the cause of a refusal stands at the end of a long line
NO_ATTEMPT = (Status.OK.value, Status.SKIPPED.value, Status.NOT_RUN.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """`at`: the values of the keys that vary. `peak`: of `counter`, up to the failure: a lower bound."""

    device: str
    at: str
    attempt: int
    peak: int | None
    counter: str | None
    needs_at_least: int | None
    would_take: int | None
    requested: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKind:
    mark: Mark
    status: str
    phase: str | None
    summary: str
    message: str  # all of it
    failures: Sequence[Failure]
    total: int

    @property
    def says_more(self) -> bool:
        """Whether the message has more than the summary."""
        return bool(self.message) and _name_and_text(self.message) != _name_and_text(self.summary)

    @property
    def has_would(self) -> bool:
        return any(each.would_take is not None for each in self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    kinds: Sequence[FailureKind]
    total: int
    hidden_kinds: int


def failures_of(attempts: Sequence[Row], at: dict[str, str]) -> Failures:
    """`at`: by point id, the values of a point as typed."""
    together: dict[tuple[str, str | None, str, str], list[Row]] = defaultdict(list)
    failed = [
        row for row in attempts if row["status"] not in NO_ATTEMPT or (row["fits"] is None and row["status"] == "ok")
    ]
    for row in failed:
        message = row["error_message"] or ""
        together[row["status"], row["failed_phase"], row["error_type"] or "", _without_numbers(message)].append(row)
    kinds = [
        FailureKind(
            mark=mark_of(rows[0]),
            status=status,
            phase=phase,
            summary=_summary(rows[0]),
            message=": ".join(filter(None, (rows[0]["error_type"], rows[0]["error_message"]))),
            failures=[_failure(row, at) for row in rows[:MOST_LISTED]],
            total=len(rows),
        )
        for (status, phase, _, _), rows in sorted(together.items(), key=lambda each: -len(each[1]))
    ]
    return Failures(kinds=kinds[:MOST_KINDS], total=len(failed), hidden_kinds=len(kinds[MOST_KINDS:]))


def _without_numbers(message: str) -> str:
    """The message with its digits alike, so that refusals of different sizes are one kind."""
    return "".join("0" if letter.isdigit() else letter for letter in message[:400]).replace("00", "0")


def _summary(row: Row) -> str:
    """The whole message if it is one line of moderate length, and otherwise the beginning of it."""
    message = (row["error_message"] or "").strip()
    if row["error_type"] is None or not message or "\n" in message or len(message) > LONGEST:
        return error_text(row["error_type"], row["error_message"]) or _ended(row)
    name = row["error_type"].rpartition(".")[2]
    return message if row["error_type"] == UNAVAILABLE else f"{name}: {message}"


def _name_and_text(message: str) -> tuple[str, str]:
    name, _, text = message.partition(": ")
    return name.rpartition(".")[2], text


def _ended(row: Row) -> str:
    if row["status"] == Status.OK.value:
        return "the workload continued after a refused allocation, or used more than its budget"
    if row["signal"] is not None:
        return f"ended by signal {row['signal']}"
    return "no message" if row["exit_code"] is None else f"exit code {row['exit_code']}, no message"


def _failure(row: Row, at: dict[str, str]) -> Failure:
    return Failure(
        device=row["device"],
        at=at[row["point_id"]],
        attempt=row["attempt"],
        peak=row["peak_bytes"],
        counter=row["peak_counter"] if row["peak_bytes"] is not None else None,
        needs_at_least=row["needs_at_least_bytes"],
        would_take=row["unlimited_peak_bytes"],
        requested=row["requested_bytes"],
    )

"""The events of a sweep as JSON, one object per line, for programs (docs/command-line.md describes them)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.outcome import Outcome, Status
from runners.point import Point
from sweeper.frontier.open_values import SearchedValues
from sweeper.views.code_place import place_in
from sweeper.views.continuation import as_typed
from sweeper.views.progress import Show


class EventShow(Show):
    """Every event has `event`; those of a point have `device`, `point_id` and `values`, its swept keys."""

    def planned(self, device: str, point: Point) -> None:
        self._event("planned", **self._of(device, point))

    def began(self, device: str, point: Point) -> None:
        self._event("began", **self._of(device, point))

    def waiting(self, device: str, point: Point, holder: str) -> None:
        self._event("waiting", **self._of(device, point), holder=holder)

    def settled(self, device: str, point: Point, outcome: Outcome, recalled: bool) -> None:
        log = self._log(point, outcome)
        self._event(
            "settled",
            **self._of(device, point),
            kind=outcome.device.kind,
            attempt=outcome.attempt,
            recalled=recalled,
            status=str(outcome.status),
            fits=outcome.fits,
            failed_phase=outcome.failed_phase,
            peak_bytes=dict(outcome.peaks),
            peak_counter=outcome.device.deciding_counter,
            peak_is_partial=outcome.peak_is_partial,
            unlimited_peak_bytes=outcome.unlimited_peak_bytes,
            requested_bytes=outcome.requested_bytes,
            needs_at_least_bytes=outcome.needs_at_least_bytes,
            duration_s=outcome.duration_s,
            error_type=outcome.error_type,
            error_message=outcome.error_message,
            error_at=place_in(outcome.traceback),
            assumed_values=outcome.assumed_values,
            notes=list(outcome.notes),
            output=None if log is None else str(log),
        )

    def remark(self, device: str, text: str) -> None:
        self._event("remark", device=device, text=text)

    def gave_up(self, device: str, why: str) -> None:
        self._event("gave_up", device=device, why=why)

    def stopping(self, running: int) -> None:
        super().stopping(running)
        self._event("stopping", running=running)

    def stopped(self, why: str) -> None:
        super().stopped(why)
        self._event("stopped", why=why)

    def unfinished(self, command: Sequence[str]) -> None:
        self._event("unfinished", command=list(command), typed=as_typed(command))

    def ended(
        self,
        rows: Sequence[Mapping[str, Any]],
        folder: Path,
        context: Sequence[Mapping[str, Any]] | None = None,
        searched: Sequence[SearchedValues] = (),
    ) -> None:
        from sweeper.frontier.edges import frontier

        decided = Counter(row["fits"] for row in rows if row["status"] != Status.SKIPPED.value)
        self._event(
            "ended",
            folder=str(folder),
            points=len({row["point_id"] for row in rows}),
            rows=len(rows),
            statuses=dict(Counter(str(row["status"]) for row in rows)),
            fit=decided[True],
            do_not_fit=decided[False],
            undecided=decided[None],
            frontier=frontier(rows, self._objective, margin=self._margin, searched=searched),
        )

    def _of(self, device: str, point: Point) -> dict[str, Any]:
        values = {key: point.get(key) for key in self._keys}
        return {"device": device, "point_id": point.id, "values": values}

    def _event(self, event: str, **fields: Any) -> None:
        self._line(json.dumps({"event": event, **fields}, default=str))

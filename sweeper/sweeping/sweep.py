"""The loop over a plan: one design per lane, each point recalled or measured, every outcome passed on.

There are no threads. The loop waits in one place only, the engine, for its supervisors' pipes and for signals.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyarrow import ArrowException

import sweeper
from runners.device import SIM, Device
from runners.engines.local import EngineFailed, Event, Local
from runners.fingerprint import code_names
from runners.outcome import Outcome, Status
from runners.point import Attempt, AttemptFolder, Point, canonical
from runners.record import outcome_in
from sweeper import fit_cells
from sweeper.columns import NAMED
from sweeper.designs.dialogue import NOTHING, CalculatedPeaks, Design, answer, calculated_bytes
from sweeper.designs.frontier import grows, searched
from sweeper.designs.registry import DESIGNS
from sweeper.errors import Mistake
from sweeper.plan import Plan, PlannedPoint, typed_value
from sweeper.plan_lines import (
    DeviceLine,
    End,
    EndedLine,
    NeighbourLine,
    PlanLine,
    PlannedLine,
    RunLine,
    SearchedLine,
    SkippedLine,
)
from sweeper.run_folder import RunFolder, open_run
from sweeper.sweeping.conditions import (
    calculated_lane,
    calculated_lanes,
    check_libraries,
    check_limits,
    check_locks,
    environ_of,
    locks_of,
)
from sweeper.sweeping.lane import Lane, Running
from sweeper.sweeping.recall import Fingerprint, current_fingerprint, recall
from sweeper.sweeping.signals import Signals, catch_signals
from sweeper.tables.run_tables import Tables
from sweeper.units import format_count
from sweeper.views.continuation import continuing, program
from sweeper.views.layout import error_text
from sweeper.views.progress import Show
from sweeper.views.sweep_output import show_for

LONGEST_SLUG, LONGEST_VALUE = 60, 24  # letters: a name is typed, and listed on 80 columns next to other things
WORTH_A_PROCESS = 6.0  # seconds of calculation that are left: a process takes 4 to import torch and transformers
GRACE_SECONDS = 5.0  # for running attempts to end when the sweep is stopped


class Engine(Protocol):
    """Starts attempts, one at a time in each of its lanes (see runners.engines.local.Local)."""

    def start(self, attempt: Attempt, folder: AttemptFolder, lane: str) -> None: ...

    def wait(self, timeout: float | None) -> Sequence[Event]: ...

    def has(self, lane: str) -> bool: ...

    def renew(self, lane: str) -> None: ...

    def cancel(self, reason: str) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


def sweep(
    plan: Plan,
    report: Callable[[str], None],
    started: Local | None = None,
    show_for: Callable[[Plan, Path], AbstractContextManager[Show]] = show_for,
    notes: Sequence[str] = (),
) -> int:
    """Run the plan. Returns the exit code. `report` is called with messages for the user, when the sweep starts.

    `started`: an engine that was started before the plan was known, which is used if it fits the plan. `show_for`:
    makes the output of a sweep into a run's folder. `notes`: the messages of the planning.

    0: every point is decided or skipped, 3: some are undecided, 2: no device was available, 130, 143 and 129: stopped
    by SIGINT, SIGTERM or SIGHUP. Raises Mistake before anything is started or written into an existing run.
    """
    messages = list(notes)
    check_limits(len(plan.devices))
    check_locks(plan.devices, messages.append)
    fingerprint = current_fingerprint(plan.run.python, plan.points)
    check_libraries(plan.points, fingerprint, messages.append)
    run = open_run(plan.run.outputs, plan.run.name, _slug(plan))
    try:
        with show_for(plan, run.path) as show, catch_signals() as signals:

            def engine(lanes: int) -> Engine:
                fits = started is not None and (started.python, started.count) == (plan.run.python, lanes)
                found = started if started is not None and fits else Local(plan.run.python, lanes)
                found.wake_by(signals.descriptor)
                return found

            def starts() -> None:
                for message in messages:
                    report(message)

            return Sweep(plan, fingerprint, run, show, signals, engine, starts).run()
    finally:
        run.close()


class Sweep:
    """One sweep into a run's folder. `engine` makes the engine for a number of measuring lanes.

    `starts` is called once nothing can be refused any more, and before anything is written.
    """

    def __init__(
        self,
        plan: Plan,
        fingerprint: Fingerprint,
        run: RunFolder,
        show: Show,
        signals: Signals,
        engine: Callable[[int], Engine],
        starts: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan, self.fingerprint, self.run_folder, self.show, self.signals = plan, fingerprint, run, show, signals
        self.make_engine, self.starts = engine, starts
        self.tables = Tables(run.path)
        self.order = 0
        self.known = self.tables.pairs()  # point and device, planned by this sweep or an earlier one
        self.planned: set[tuple[str, str]] = set()  # by this sweep
        calculated = (device.name for device in plan.devices if device.is_calculated)
        self.calculated = {name: dict[str, tuple[Point, int]]() for name in calculated}
        self.lanes = [Lane(device, self._design_for(device)) for device in plan.devices]
        self.calculated_seconds: list[float] = []  # of each attempt that was calculated
        self.cwd = os.getcwd()

    def run(self) -> int:
        if self.plan.run.quality and self.tables.quality not in (None, self.plan.run.quality):
            how = f"the run compares quality as its first sweep fixed it, {canonical(self.tables.quality)}"
            raise Mistake(f"name={self.plan.run.name}: {how}; take another name to compare otherwise")
        first = [next(lane.design) for lane in self.lanes]
        for lane, batch in zip(self.lanes, first, strict=True):  # raises Mistake before anything is written or started
            for each in batch:
                self._recall(each, lane.device)
        self.starts()
        try:
            self._write_plan(first)
            self._measure()
            self.run_folder.check()
            self._write_end()
            self.tables.write()
        except (EngineFailed, OSError, MemoryError, ArrowException) as error:
            self.show.stopped(f"the sweep stopped: {one_line(error)}")
            try:
                with contextlib.suppress(OSError):  # a full disk can have room for tables; a removed folder stays so
                    self.run_folder.check()
                    with contextlib.suppress(OSError):
                        self._write_end(error)
                    self.tables.write()
            except (MemoryError, ArrowException) as again:
                name = f"name={self.run_folder.path.name}"
                self.show.stopped(
                    f"its tables cannot be written ({one_line(again)}): the attempts are on the disk, and this command"
                    f" with {name} makes the tables from them"
                )
            self._show_continuation()
            return 3
        every_row = self.tables.rows()
        rows = [row for row in every_row if (row["point_id"], row["device"]) in self.planned]
        self.show.ended(rows, self.run_folder.path, every_row, self.tables.searched)
        if self.signals.caught:
            self._show_continuation()
            return 128 + self.signals.caught[0]
        if rows and all(row["status"] == Status.UNAVAILABLE for row in rows):
            return 2
        return 0 if all(row["fits"] is not None or row["status"] == Status.SKIPPED for row in rows) else 3

    def _show_continuation(self) -> None:
        """Show the command that goes on with the sweep, unless its folder was removed or replaced."""
        if self.run_folder.path.is_dir() and not self.run_folder.was_replaced():
            self.show.unfinished((*program(), *continuing(self.plan.command, self.run_folder.path.name)))

    # -- the plan -----------------------------------------------------------------------------------------------------

    def _write_plan(self, first: Sequence[Sequence[PlannedPoint]]) -> None:
        plan = self.plan
        run = RunLine(
            version=sweeper.__version__,
            command=plan.command,
            design=plan.design,
            dimensions=plan.dimensions,
            keys={**asdict(plan.run), "objective": str(plan.run.objective)},
            started_at=datetime.now(timezone.utc).isoformat(),
        )
        dimensions = tuple(each for each in plan.dimensions if grows(each))
        settings = plan.settler.settings
        self._add_lines(
            [
                run,
                *(
                    SearchedLine(values=point.values, settings=settings.get(point.id, {}), dimensions=dimensions)
                    for point in searched(plan)
                ),
                *(
                    DeviceLine(
                        name=device.name,
                        device_kind=device.type,
                        uuid=device.uuid,
                        total_bytes=device.total_bytes,
                        unavailable=device.unavailable,
                    )
                    for device in plan.devices
                ),
            ]
        )
        for lane, batch in zip(self.lanes, first, strict=True):
            self._take(lane, batch)

    def _write_end(self, error: Exception | None = None) -> None:
        """Write how the sweep ended, before the tables, which hold the size of the plan."""
        how, why = End.FINISHED, None
        if self.signals.caught:
            how, why = End.INTERRUPTED, signal.Signals(self.signals.caught[0]).name
        if error is not None:
            how, why = End.BROKE_OFF, one_line(error)
        self._add_lines([EndedLine(how=how.value, ended_at=datetime.now(timezone.utc).isoformat(), why=why)])

    def _add_lines(self, lines: Sequence[PlanLine]) -> None:
        self.run_folder.plan(lines)
        for line in lines:
            self.tables.planned(line)

    def _take(self, lane: Lane, batch: Sequence[PlannedPoint]) -> None:
        """Queue the design's next batch. Its points are in the plan before any of them starts."""
        lane.take([each for each in batch if each.because is None])
        self._add_lines([line for each in batch for line in self._lines_of(each, lane.device.name)])
        for each in lane.batch:
            if not each.later:
                self.show.planned(lane.device.name, each.point)
        self.run_folder.sync()

    def _lines_of(self, planned: PlannedPoint, device: str) -> Iterator[PlanLine]:
        """The lines of a point in a batch: a new point, or a neighbour of one known before; and why it is skipped."""
        id = planned.point.id
        self.planned.add((id, device))
        if (id, device) not in self.known:
            self.known.add((id, device))
            yield PlannedLine(
                id=id,
                order=self.order,
                device=device,
                changed_from=planned.changed_from,
                changed=planned.changed,
                values=planned.point.values,
                settings=self.plan.settler.settings.get(id, {}),
                quality_reference=self.plan.settler.quality_references.get(id),
            )
            self.order += 1
        elif planned.changed_from is not None:
            yield NeighbourLine(id=id, device=device, changed_from=planned.changed_from, changed=planned.changed)
        if planned.because is not None:
            yield SkippedLine(id=id, device=device, because=planned.because)

    # -- the measuring ------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        available = [lane for lane in self.lanes if lane.device.unavailable is None]
        measuring = [lane for lane in available if not lane.device.is_calculated]
        engine = self.make_engine(max(1, len(measuring)))
        try:
            while not self.signals.caught:
                for lane in available:
                    if self._may_start(lane):
                        self._start_next(engine, lane)
                if all(lane.done and not lane.running for lane in available):
                    return
                if any(lane.running for lane in available):  # else a lane has just finished, and another may start
                    self._wait(engine)
            self._stop(engine)
        finally:
            engine.close()

    def _may_start(self, lane: Lane) -> bool:
        """Whether it is the lane's turn.

        A device whose calculated twin is in the sweep starts after it, since its search begins there. The cpu starts
        after every other device, unless parallel=true.
        """
        twin = None if lane.device.is_calculated else self._calculated_twin(lane.device)
        if twin is not None and any(other.device is twin and not other.done for other in self.lanes):
            return False
        if lane.running and not lane.device.is_calculated:
            return False
        if self.plan.run.parallel or not lane.device.is_cpu:
            return True
        return all(other.done for other in self.lanes if other is not lane and other.device.unavailable is None)

    def _start_next(self, engine: Engine, lane: Lane) -> None:
        """Start the lane's next attempt, or several on a calculated device.

        Points with a recalled outcome on the way are settled by it.
        """
        while not lane.done and not self.signals.caught:
            planned = lane.next
            if planned is None:
                if lane.running:
                    return
                self._advance(lane)
                continue
            if lane.is_running(planned):  # the number of its next attempt is known when this one has ended
                return
            number, outcome = self._recall(planned, lane.device)
            place = lane.taken
            if planned.later:
                lane.answers[place] = None if outcome is None else answer(outcome)
            elif outcome is not None:
                self._settle(lane, place, planned.point, outcome, recalled=True)
            elif not self._start(engine, lane, place, self._attempt(planned.point, lane.device, number)):
                return
            lane.taken += 1
            if lane.running and not lane.device.is_calculated:
                return

    def _start(self, engine: Engine, lane: Lane, place: int, attempt: Attempt) -> bool:
        """Start an attempt. False if it has to wait for an engine's lane."""
        engine_lane = self._engine_lane(engine, attempt)
        if engine_lane is None:
            return False
        # Copies of one template share its memory layout, so their peaks would agree to the byte and prove nothing.
        if attempt.warm and attempt.point.id in lane.forked:
            engine.renew(engine_lane)
            lane.forked.clear()
        if not attempt.device.is_calculated:
            lane.forked.add(attempt.point.id)
        self.run_folder.check()
        attempt, folder = self._created(attempt)
        engine.start(attempt, folder, engine_lane)
        lane.running[engine_lane] = Running(attempt, place)
        self.show.began(lane.device.name, attempt.point)
        self.show.follow(lane.device.name, attempt.point, folder)
        return True

    def _created(self, attempt: Attempt) -> tuple[Attempt, AttemptFolder]:
        """The attempt in a new folder. Its number is the next free one where an earlier folder was lost."""
        while True:
            folder = self.run_folder.attempt_folder(attempt)
            try:
                folder.create(attempt)
            except FileExistsError:
                attempt = replace(attempt, number=attempt.number + 1)
            else:
                return attempt, folder

    def _engine_lane(self, engine: Engine, attempt: Attempt) -> str | None:
        """The engine's lane for an attempt, None if it has to wait.

        A measuring device has its own. Calculated devices share as many as there are cores; an attempt whose trace is
        being made by another one waits, since that trace serves every card of the same GPU architecture.
        """
        if not attempt.device.is_calculated:
            return attempt.device.name
        running = {
            engine_lane: each.attempt
            for lane in self.lanes
            if lane.device.is_calculated
            for engine_lane, each in lane.running.items()
        }
        if attempt.allocation_trace in {each.allocation_trace for each in running.values()}:
            return None
        free = next((lane for lane in map(calculated_lane, range(calculated_lanes())) if lane not in running), None)
        if free is None or not running or engine.has(free):
            return free
        left = sum(len(lane.batch) - lane.taken for lane in self.lanes if lane.device.is_calculated)
        return free if is_worth_a_process(left, self.calculated_seconds) else None

    def _advance(self, lane: Lane) -> None:
        """Send the answers to a batch into the design, and queue its next one."""
        try:
            self._take(lane, lane.design.send(lane.answers))
        except StopIteration:
            lane.done = True

    def _recall(self, planned: PlannedPoint, device: Device) -> tuple[int, Outcome | None]:
        return recall(self.run_folder, planned, device, self.plan.run, self.fingerprint)

    def _attempt(self, point: Point, device: Device, number: int) -> Attempt:
        return Attempt(
            point=point,
            device=device,
            number=number,
            environ=environ_of(point, device),
            cwd=self.cwd,
            heartbeat=self.plan.run.heartbeat,
            trace=self.plan.run.trace == "on_failure",
            identity=self.fingerprint.identity,
            allocation_trace=self._trace_file(point, device),
            locks=() if self.plan.run.parallel and device.is_cpu else locks_of(device),
        )

    def _trace_file(self, point: Point, device: Device) -> str | None:
        """Where a calculated point is traced: one file for all cards of a GPU architecture under the same code."""
        if device.card is None:
            return None
        code = self.fingerprint.code.get(canonical(code_names(point)))
        agree = (device.card.vendor, device.card.architecture, dict(self.fingerprint.identity), code)
        return str(self.run_folder.allocation_trace(point, canonical(agree)))

    def _wait(self, engine: Engine, timeout: float = 1.0) -> None:
        """Wait for events of running attempts, at most `timeout` seconds, then let the display advance."""
        for event in engine.wait(timeout):
            lane = next((lane for lane in self.lanes if event.lane in lane.running), None)
            if lane is None:
                continue
            attempt, place = lane.running[event.lane].attempt, lane.running[event.lane].place
            if event.kind == "waiting":
                self.show.waiting(lane.device.name, attempt.point, event.detail or "another sweep")
            elif event.kind in ("settled", "unkept"):
                del lane.running[event.lane]
                self.run_folder.check()
                outcome = outcome_in(event.folder, attempt) if event.kind == "settled" else _unkept(attempt, event)
                self.tables.settled(attempt, outcome)
                self._settle(lane, place, attempt.point, outcome)
                self.tables.write_if_grown()
        self.show.tick()

    def _calculated_twin(self, device: Device) -> Device | None:
        """The calculated device of this sweep that stands for a measured one."""
        return next((each for each in self.plan.devices if each.stands_for(device)), None)

    def _design_for(self, device: Device) -> Design:
        earlier = self.tables.tried(device.name) if searched(self.plan) else []
        remark = partial(self.show.remark, device.name)
        return DESIGNS[self.plan.design](self.plan, self._calculated_peaks(device), earlier, remark)

    def _calculated_peaks(self, device: Device) -> CalculatedPeaks:
        if device.is_calculated:
            others = [self.calculated[each.name] for each in self.plan.devices if _is_alike(each, device)]
            return CalculatedPeaks(repeats_exactly=True, of_others=others)
        twin = self._calculated_twin(device)
        if twin is None:
            return NOTHING
        return CalculatedPeaks(comes_first=True, total_bytes=device.total_bytes, peaks=self.calculated[twin.name])

    def _settle(self, lane: Lane, place: int, point: Point, outcome: Outcome, recalled: bool = False) -> None:
        lane.answers[place] = answer(outcome)
        if lane.device.is_calculated and not recalled and outcome.duration_s is not None:
            self.calculated_seconds.append(outcome.duration_s)
        calculated = calculated_bytes(outcome) if lane.device.is_calculated else None
        if calculated is not None:
            self.calculated[lane.device.name][point.id] = point, calculated
        self.show.settled(lane.device.name, point, outcome, recalled)
        if not recalled and lane.gives_up(outcome, self.plan.run.stop_after_same_error):
            lane.done = True
            error = error_text(outcome.error_type, None) or outcome.status
            first = format_count(self.plan.run.stop_after_same_error, "attempt").removeprefix("1 ")
            self.show.gave_up(lane.device.name, f"the first {first} ended with {error}")

    def _stop(self, engine: Engine) -> None:
        """End running attempts, which settle as interrupted; at a second signal or after GRACE_SECONDS, kill them."""
        name = signal.Signals(self.signals.caught[0]).name
        self.show.stopping(sum(len(lane.running) for lane in self.lanes))
        engine.cancel(f"the sweep was stopped by {name}")
        until = time.monotonic() + GRACE_SECONDS
        while any(lane.running for lane in self.lanes):
            if len(self.signals.caught) > 1 or time.monotonic() > until:
                engine.kill()
                return
            self._wait(engine, timeout=0.2)


def is_worth_a_process(left: int, seconds: Sequence[float]) -> bool:
    """Whether the calculated points that are left take longer than another process takes to import its libraries.

    `seconds`: of each point so far.
    """
    return bool(seconds) and left * sum(seconds) / len(seconds) > WORTH_A_PROCESS


def _is_alike(other: Device, device: Device) -> bool:
    """Whether it is another calculated card of the same vendor, on which peaks are nearly the same."""
    cards = other.card, device.card
    return other is not device and None not in cards and len({card.vendor for card in cards if card}) == 1


def _unkept(attempt: Attempt, event: Event) -> Outcome:
    """The outcome of an attempt whose workload left no place to write its end to."""
    why = f"its record cannot be kept: {event.detail}"
    return Outcome(status=Status.LOST, void=True, device=attempt.device, attempt=attempt.number, error_message=why)


def _slug(plan: Plan) -> str:
    """The part of the folder name that describes a run without a name: its settings that are the same in every point.

    Settings that do not fit are counted; the tables have them.
    """
    first = plan.points[0] if plan.points else plan.settle({})
    if plan.design == fit_cells.DESIGN:
        cards = "-".join(device.name.removeprefix(SIM) for device in plan.devices[:2])
        return f"fit-{first.get('model.name') or first.get('workload')}-{cards}"
    swept = {dimension.key for dimension in plan.dimensions}
    named = [key for key in NAMED if key != "dtype" and key.partition(".")[0] not in swept | {"dtype"}]
    names = [str(name) for key in named if (name := first.get(key)) is not None]
    settings = plan.settler.settings.get(first.id, {})
    words = [
        f"{key.rpartition('.')[2]}-{_in_a_name(key, value)}" for key, value in settings.items() if key not in swept
    ]
    slug, left = "-".join(reversed(names)) or plan.design, len(words)
    for word in words:
        if len(slug) + len(word) < LONGEST_SLUG:
            slug, left = f"{slug}-{word}", left - 1
    return slug + (f"-and-{left}-more" if left else "")


def _in_a_name(key: str, value: Any) -> str:
    text = typed_value(key, value)
    safe = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")
    return safe if len(safe) <= LONGEST_VALUE else safe[:LONGEST_VALUE].rstrip("-") + ".."


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

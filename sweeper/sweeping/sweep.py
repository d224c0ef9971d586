"""The loop: one design per lane, each point recalled or measured, every outcome told to the tables and to the person.

No threads: the only place that waits is the engine, for its supervisors' pipes and for signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import sweeper
from runners import journal
from runners.device import Device
from runners.engines.local import EngineFailed, Local
from runners.fingerprint import code_names
from runners.outcome import Outcome, Status, outcome_of
from runners.point import Attempt, AttemptFolder, Point, canonical
from sweeper.designs.frontier import DESIGNS, NOTHING, Answer, CalculatedPeaks, Design, answer, grows, searched
from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.plan import Dimension, Plan, PlannedPoint
from sweeper.run_folder import RunFolder, open_run
from sweeper.sweeping.recall import Fingerprint, current_fingerprint, difference
from sweeper.tables.run_tables import Tables
from sweeper.views.progress import Show, show_for

# Measured again without being asked: the first was stopped, and nothing was there to measure in the second.
NOT_AN_ANSWER = (Status.INTERRUPTED, Status.UNAVAILABLE)
ENDS_AFTER = 5.0  # seconds that attempts have to end when the person stops the sweep


@dataclass
class Lane:
    """One device and the queue in front of it: a design that asks, and the answers it waits for."""

    device: Device
    design: Design
    asked: list[PlannedPoint] = field(default_factory=list)  # the batch under way
    answers: list[Answer | None] = field(default_factory=list)  # of its points, in the same order
    under_way: Attempt | None = None
    seat: str = ""  # the engine's lane that it is under way in: the device's own, or one of those that calculate
    copied: set[str] = field(default_factory=set)  # points that were measured in copies of its present template
    same_error: list[tuple[str | None, str | None]] | None = field(default_factory=list)  # None: something else came
    done: bool = False

    @property
    def next(self) -> PlannedPoint | None:
        """The point whose turn it is."""
        return self.asked[len(self.answers)] if len(self.answers) < len(self.asked) else None


def sweep(plan: Plan) -> int:
    """Run the plan. The exit code: 0 all points told, 3 some did not, 2 nothing could be measured, 130/143 stopped."""
    surroundings = current_fingerprint(plan.run.python, plan.points)
    run = open_run(plan.run.outputs, plan.run.name, _slug(plan))
    try:
        with show_for(plan, run.path) as show, _signals() as signals:
            return Sweep(plan, surroundings, run, show, signals).run()
    finally:
        run.close()


class Sweep:
    def __init__(self, plan: Plan, now: Fingerprint, run: RunFolder, show: Show, signals: Signals) -> None:
        self.plan, self.surroundings, self.run_folder, self.show, self.signals = plan, now, run, show, signals
        self.tables = Tables(run.path)
        self.order = 0
        self.planned = self.tables.pairs()  # by runs before this one
        self.asked: set[tuple[str, str]] = set()  # by this one
        calculated = (device.name for device in plan.devices if device.is_calculated)
        self.calculated = {name: dict[str, tuple[Point, int]]() for name in calculated}
        self.lanes = [Lane(device, self._design_for(device)) for device in plan.devices]
        self.cwd = os.getcwd()

    def run(self) -> int:
        if self.plan.run.quality and self.tables.quality not in (None, self.plan.run.quality):
            how = f"quality is compared as fixed when it began, {canonical(self.tables.quality)}"
            raise Mistake(f"name={self.plan.run.name}: {how}; take another name to compare otherwise")
        first = [next(lane.design) for lane in self.lanes]
        for lane, batch in zip(self.lanes, first, strict=True):  # a mistake ends here: nothing is written or started
            for each in batch:
                self._recall(each, lane.device)
        try:
            self._write_plan(first)
            self._measure()
            self.run_folder.check()
            self.tables.write()
        except (EngineFailed, OSError) as error:
            self.show.stopped(f"the sweep stopped: {error}")
            with contextlib.suppress(OSError):  # a full disk can have room for tables; a removed folder stays removed
                self.run_folder.check()
                self.tables.write()
            return 3
        beside = self.tables.rows()
        rows = [row for row in beside if (row["point_id"], row["device"]) in self.asked]
        self.show.ended(rows, self.run_folder.path, beside, self.tables.searched)
        if self.signals.caught:
            return 128 + self.signals.caught[0]
        if rows and all(row["status"] == Status.UNAVAILABLE for row in rows):
            return 2
        return 0 if all(row["fits"] is not None or row["status"] == Status.SKIPPED for row in rows) else 3

    # -- the plan -----------------------------------------------------------------------------------------------------

    def _write_plan(self, first: Sequence[list[PlannedPoint]]) -> None:
        plan = self.plan
        keys = {**asdict(plan.run), "objective": str(plan.run.objective)}
        self._plan_line(
            kind="run",
            format=1,
            sweeper=sweeper.__version__,
            command=list(plan.command),
            design=plan.design,
            dimensions=[_as_line(each) for each in plan.dimensions],
            keys=keys,
            started_at=datetime.now(timezone.utc).isoformat(),
        )
        for point in searched(plan):
            dimensions = [_as_line(each) for each in plan.dimensions if grows(each)]
            self._plan_line(kind="searched", values=point.values, dimensions=dimensions)
        for lane in self.lanes:
            device = lane.device
            self._plan_line(
                kind="device",
                name=device.name,
                device_kind=device.type,
                uuid=device.uuid,
                total_bytes=device.total_bytes,
                unavailable=device.unavailable,
            )
        for lane, batch in zip(self.lanes, first, strict=True):  # stands in the plan before anything starts
            self._take(lane, batch)

    def _plan_line(self, **line: Any) -> None:
        self.run_folder.plan(line)
        self.tables.planned(line)

    def _take(self, lane: Lane, asked: list[PlannedPoint]) -> None:
        """The design's next batch."""
        lane.asked = [each for each in asked if each.because is None]
        lane.answers = []
        for each in asked:
            key = (each.point.id, lane.device.name)
            self.asked.add(key)
            if key not in self.planned:
                self.planned.add(key)
                self._plan_line(
                    kind="asked",
                    id=each.point.id,
                    order=self.order,
                    device=lane.device.name,
                    changed_from=each.changed_from,
                    changed=list(each.changed),
                    values=each.point.values,
                    quality_reference=self.plan.reference_of(each.point),
                )
                self.order += 1
            elif each.changed_from is not None:
                of = {"id": each.point.id, "device": lane.device.name}
                self._plan_line(kind="neighbour", **of, changed_from=each.changed_from, changed=list(each.changed))
            if each.because is not None:
                self._plan_line(kind="skipped", id=each.point.id, device=lane.device.name, because=each.because)
            elif not each.later:
                self.show.planned(lane.device.name, each.point)

    # -- the measuring ------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        measurable = [lane for lane in self.lanes if lane.device.unavailable is None]
        measuring = [lane for lane in measurable if not lane.device.is_calculated]
        engine = Local(self.plan.run.python, max(1, len(measuring)), wake=self.signals.descriptor)
        try:
            while not self.signals.caught:
                for lane in measurable:
                    if lane.under_way is None and self._turn(lane):
                        self._start_next(engine, lane)
                if all(lane.done for lane in measurable):
                    return
                if any(lane.under_way for lane in measurable):  # else the last one made way for another
                    self._hear(engine)
            self._stop(engine)
        finally:
            engine.close()

    def _turn(self, lane: Lane) -> bool:
        """Whether the lane may measure now: on cpu only when no other lane does, unless parallel=true; and where it
        begins to look by what is calculated beside it, only when that is known."""
        like = None if lane.device.is_calculated else self._like(lane.device)
        if like is not None and any(other.device is like and not other.done for other in self.lanes):
            return False
        if self.plan.run.parallel or not lane.device.is_cpu:
            return True
        return all(other.done for other in self.lanes if other is not lane and other.device.unavailable is None)

    def _start_next(self, engine: Local, lane: Lane) -> None:
        """Start the next attempt of the lane, after recalling what earlier runs have settled."""
        while not lane.done:
            asked = lane.next
            if asked is None:
                self._advance(lane)
                continue
            point = asked.point
            number, recalled = self._recall(asked, lane.device)
            if asked.later:
                lane.answers.append(None if recalled is None else answer(recalled))
                continue
            if recalled is not None:
                self._settled(lane, point, recalled, recalled=True)
                continue
            attempt = self._attempt(point, lane.device, number)
            seat = self._seat(lane, attempt)
            if seat is None:
                return
            lane.seat = seat
            # Copies of one template share its layout of memory: they repeat to the byte what another would not.
            if attempt.warm and point.id in lane.copied:
                engine.renew(lane.seat)
                lane.copied.clear()
            if not attempt.device.is_calculated:
                lane.copied.add(point.id)
            folder = self.run_folder.attempt_folder(attempt)
            self.run_folder.check()
            folder.create(attempt)
            engine.start(attempt, folder, lane.seat)
            lane.under_way = attempt
            self.show.began(lane.device.name, point)
            return

    def _seat(self, lane: Lane, attempt: Attempt) -> str | None:
        """The engine's lane for it. Those that calculate share as many as there are cores, whatever their cards; and a
        point that is being followed is waited for, since what was followed serves every card of an architecture."""
        if not attempt.device.is_calculated:
            return lane.device.name
        calculating = [other for other in self.lanes if other.under_way is not None and other.device.is_calculated]
        taken = {other.seat for other in calculating}
        if attempt.followed in {other.under_way.followed for other in calculating if other.under_way is not None}:
            return None
        return next((seat for core in range(os.cpu_count() or 1) if (seat := f"sim-{core}") not in taken), None)

    def _advance(self, lane: Lane) -> None:
        """Send the answers to a batch into the design, and take its next one."""
        try:
            self._take(lane, lane.design.send(lane.answers))
        except StopIteration:
            lane.done = True

    def _recall(self, asked: PlannedPoint, device: Device) -> tuple[int, Outcome | None]:
        """The number the next attempt has, and the outcome that makes it unnecessary, if an earlier one told it.

        Of several answers the one that was asked for first, second, ...: those that told, if any did. Raises Mistake
        if the last was measured in other surroundings, unless resume=anew measures again beside it.
        """
        number, answers, changed = 1, [], None
        for folder in self.run_folder.attempts(asked.point, device):
            number += 1
            if folder.settled() is None:
                continue
            then = folder.attempt()
            outcome = _outcome(then, folder)
            if outcome.status in {*NOT_AN_ANSWER, *self.plan.run.retry}:
                continue
            changed = difference(then, outcome, self.surroundings, device)
            if changed is None:
                answers.append(outcome)
        if changed is not None and self.plan.run.resume != "anew":
            cure = "resume=anew measures again beside it, or take another name"
            raise Mistake(f"name={self.plan.run.name}: {changed}; {cure}")
        told = [outcome for outcome in answers if outcome.fits is not None] or answers
        return number, told[asked.nth - 1] if len(told) >= asked.nth else None

    def _attempt(self, point: Point, device: Device, number: int) -> Attempt:
        return Attempt(
            point=point,
            device=device,
            number=number,
            environ=environ_of(point, device),
            cwd=self.cwd,
            heartbeat=self.plan.run.heartbeat,
            trace=self.plan.run.trace == "on_failure",
            identity=self.surroundings.identity,
            followed=self._followed(point, device),
            locks=() if self.plan.run.parallel and device.is_cpu else _locks(device),
        )

    def _followed(self, point: Point, device: Device) -> str | None:
        """The file of a calculated point: one for all cards of an architecture, as long as the code is the same."""
        if device.card is None:
            return None
        code = self.surroundings.code.get(canonical(code_names(point)))
        agree = (device.card.vendor, device.card.architecture, dict(self.surroundings.identity), code)
        return str(self.run_folder.followed(point, canonical(agree)))

    def _hear(self, engine: Local, timeout: float | None = 1.0) -> None:
        """Wait for what attempts do, and show that time passes meanwhile."""
        for event in engine.wait(timeout):
            lane = next((lane for lane in self.lanes if lane.under_way is not None and lane.seat == event.lane), None)
            if lane is None or lane.under_way is None:
                continue
            attempt = lane.under_way
            if event.kind == "waiting":
                self.show.waiting(lane.device.name, attempt.point, event.detail or "another sweep")
            elif event.kind == "settled":
                lane.under_way = None
                outcome = _outcome(attempt, event.folder)
                self.tables.settled(attempt, outcome)
                self._settled(lane, attempt.point, outcome)
                self.tables.write_if_grown()
        self.show.tick()

    def _like(self, device: Device) -> Device | None:
        """The calculated device of this sweep that stands for a measured one."""
        return next((each for each in self.plan.devices if each.stands_for(device)), None)

    def _design_for(self, device: Device) -> Design:
        earlier = self.tables.tried(device.name) if searched(self.plan) else []
        return DESIGNS[self.plan.design](self.plan, self._calculated_for(device), earlier)

    def _calculated_for(self, device: Device) -> CalculatedPeaks:
        if device.is_calculated:
            return CalculatedPeaks(itself=True)
        like = self._like(device)
        if like is None:
            return NOTHING
        return CalculatedPeaks(comes_first=True, total_bytes=device.total_bytes, peaks=self.calculated[like.name])

    def _settled(self, lane: Lane, point: Point, outcome: Outcome, recalled: bool = False) -> None:
        lane.answers.append(answer(outcome))
        if outcome.unlimited_peak_bytes is not None:
            self.calculated[lane.device.name][point.id] = point, outcome.unlimited_peak_bytes
        self.show.settled(lane.device.name, point, outcome, recalled)
        if not recalled and self._stops(lane, outcome):
            lane.done = True
            error = outcome.error_type or "error"
            self.show.gave_up(lane.device.name, f"the first {self.plan.run.stop_after_same_error} ended with {error}")

    def _stops(self, lane: Lane, outcome: Outcome) -> bool:
        """Whether the lane's first attempts all ended with the same error, as many as stop_after_same_error says.

        What says something of memory or of the device (a refusal, a deadline, nothing there) never counts.
        """
        limit = self.plan.run.stop_after_same_error
        if outcome.status is Status.OK:
            lane.same_error = None
        if lane.same_error is None or limit == 0 or outcome.status is not Status.ERROR:
            return False
        lane.same_error.append((outcome.error_type, outcome.failed_phase))
        if len(set(lane.same_error)) > 1:
            lane.same_error = None
            return False
        return len(lane.same_error) >= limit

    def _stop(self, engine: Local) -> None:
        """End what runs, gently once: each attempt still settles, as interrupted. A second signal ends it at once."""
        name = signal.Signals(self.signals.caught[0]).name
        engine.cancel(f"the sweep was stopped by {name}")
        until = time.monotonic() + ENDS_AFTER
        while any(lane.under_way for lane in self.lanes):
            if len(self.signals.caught) > 1 or time.monotonic() > until:
                engine.kill()
                return
            self._hear(engine, timeout=0.2)


def _as_line(dimension: Dimension) -> dict[str, Any]:
    values = dimension.values
    if isinstance(values, Interval):
        return {"key": dimension.key, "interval": [values.low, values.high], "resolution": values.resolution}
    return {"key": dimension.key, "values": list(values)}


def environ_of(point: Point, device: Device) -> dict[str, str | None]:
    """What is set in the measured process's environment before its interpreter starts, and recorded with it."""
    environ: dict[str, str | None] = {}
    if device.is_cpu or device.is_calculated:
        environ["CUDA_VISIBLE_DEVICES"] = ""  # code that says plain `cuda` cannot land on a device nobody asked for
    elif device.uuids:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuids)
    # Threads that wait spinning take the cores of whoever else is measured: 3-22 s instead of 1.1-2.4 s for one point.
    if "OMP_WAIT_POLICY" not in os.environ:
        environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if point.get("allocator") == "repeatable":
        # A fixed threshold: glibc's own rises to 32 MiB after the first free, and then resident varies by 93 MiB.
        environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)
        # MKL's scratch, kept per thread, hangs on the processor: 944 MiB for a forward pass with AVX-512, 934 with
        # AVX2, which every processor of the last ten years has (931 on one without AVX-512).
        if "MKL_ENABLE_INSTRUCTIONS" not in os.environ:
            environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    if point.get("start") == "warm" and "OPENBLAS_NUM_THREADS" not in os.environ:
        environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts a thread when it is imported, and threads do not fork
    return environ


def _outcome(attempt: Attempt, folder: AttemptFolder) -> Outcome:
    return outcome_of(attempt, journal.read(folder.journal), folder.settled())


def _locks(device: Device) -> tuple[str, ...]:
    """One file per device of this machine, for every sweep of this user: one attempt at a time on a device. None of
    one that is calculated, which is no thing that could be in use."""
    if device.is_calculated:
        return ()
    folder = Path(tempfile.gettempdir()) / f"sweeper-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    names = device.uuids or device.parts
    return tuple(str(folder / f"{name.replace('/', '-').replace(':', '-')}.lock") for name in names)


def _slug(plan: Plan) -> str:
    first = plan.points[0] if plan.points else plan.settle({})
    names = (first.get("workload"), first.get("model"))
    return "-".join(str(name) for name in names if name)


@dataclass
class Signals:
    """The signals that stop a sweep, as they come; `descriptor` can be read when one has."""

    descriptor: int
    caught: list[int] = field(default_factory=list)


@contextlib.contextmanager
def _signals() -> Iterator[Signals]:
    read_end, write_end = os.pipe()
    for descriptor in (read_end, write_end):
        os.set_blocking(descriptor, False)
    signals = Signals(read_end)

    def catch(number: int, _: Any) -> None:
        signals.caught.append(number)

    stopping = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, catch) for number in stopping]
    wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(stopping, before, strict=True):
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)

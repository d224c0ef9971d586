"""Which of the usual settings fit on a card, by context: the peak of one sequence, and the largest batch. Pure.

A cell is a setting (such as LoRA with checkpointing) at one context on one device. Its figures come from ordinary rows
of a run, one for each batch that was tried: the largest batch is one that was calculated, and the next one failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runners.device import device_named
from runners.facts import FITS_IF_EXPANDABLE
from runners.outcome import Outcome, Status
from runners.point import Point, canonical

if TYPE_CHECKING:
    from sweeper.serving import CellSpeed, Serving

DESIGN = "fit"
LARGEST_BATCH = 1024  # that is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A usual way to use a model. `values`: its keys, as a person types them."""

    name: str
    values: Mapping[str, Any]


def _training(method: str, checkpointing: bool, quantize: str = "none") -> dict[str, Any]:
    return {
        "workload": "train",
        "workload.method": method,
        "workload.checkpointing": checkpointing,
        "quantize": quantize,
    }


# A calculated pass does not vary: the second one already has the cache that the first one left.
# Each new token takes as long as a pass, and adds to the cache what each token of the prompt does.
TWO_PASSES = {"warmup": 0, "repeats": 1}

# In the order of the table: from what takes least to what takes most.
SETTINGS = (
    Setting(name="run (forward)", values={"workload": "forward", **TWO_PASSES}),
    Setting(name="run (generate)", values={"workload": "generate", **TWO_PASSES, "workload.new_tokens": 8}),
    Setting(name="QLoRA + checkpointing", values=_training("lora", True, "nf4")),
    Setting(name="LoRA + checkpointing", values=_training("lora", True)),
    Setting(name="LoRA", values=_training("lora", False)),
    Setting(name="full training + checkpointing", values=_training("full", True)),
    Setting(name="full training", values=_training("full", False)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A cell that is to be filled. `point`: its point at batch 1, whose batch is null if the workload takes none."""

    device: str
    setting: str
    context: int | None  # None: the table has no columns of contexts
    values: Mapping[str, Any]  # its keys as a person types them, without the batch
    point: Point | None
    because: str | None = None  # why there is no such point


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one point ended on one device.

    `peak_bytes`: of the deciding counter (`Device.deciding_counter`), complete; of a refused point only if the
    calculation has what it would take without a limit.
    """

    device: str
    values: Mapping[str, Any]  # the settled values of the point
    point_id: str
    status: str
    fits: bool | None
    peak_bytes: int | None
    needs_at_least_bytes: int | None = None
    phase: str | None = None  # that has the peak; None if the point did not finish, since a later one may be higher
    because: str | None = None  # why it is undecided
    fits_if_expandable: bool = False
    parameters: int | None = None  # of the model, without an adapter
    left_bytes: int | None = None  # of the device's memory at the peak, if no budget limits the point
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of a point that fits

    @property
    def batch(self) -> int:
        """1 if the workload takes no batch."""
        return int(self.values.get("batch") or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A setting at one context on one device. Sizes are bytes of `counter`, null where nothing is known.

    `peak_bytes` is of batch 1, and would be its peak without a limit where that batch does not fit. `failing_batch` is
    the smallest batch that was tried and does not fit, and `largest_batch` the largest one below it that does.
    """

    device: str
    kind: str  # calculated or measured
    setting: str
    values: Mapping[str, Any]  # keys as a person types them, without the batch
    context: int | None
    counter: str
    fits: bool | None = None  # batch 1
    peak_bytes: int | None = None
    phase: str | None = None  # that has this peak; None where batch 1 does not fit
    largest_batch: int | None = None
    largest_peak_bytes: int | None = None
    largest_left_bytes: int | None = None  # of the device's memory
    is_close: bool = False  # the largest batch leaves less than the context may take beyond what is assumed
    failing_batch: int | None = None
    failing_peak_bytes: int | None = None  # without a limit
    needs_at_least_bytes: int | None = None  # what the smallest failing batch held and requested
    status: str | None = None  # of batch 1; None if it has not ended
    because: str | None = None  # why it is undecided, or a larger batch that was tried
    undecided_batch: int | None = None  # the smallest one, after which no larger batch was tried
    takes_batch: bool = True
    fits_if_expandable: bool = False  # the smallest failing batch, with expandable segments of the allocator
    point_ids: tuple[str, ...] = ()  # of the rows behind it, by batch

    @property
    def is_edge(self) -> bool:
        """Whether the batch after the largest one was tried and failed."""
        return self.failing_batch is not None and self.failing_batch == (self.largest_batch or 0) + 1

    @property
    def is_at_least(self) -> bool:
        """Whether a larger batch may fit, which was not tried."""
        return self.largest_batch is not None and self.takes_batch and not self.is_edge

    @property
    def is_open(self) -> bool:
        """Whether the sweep ended before it knew the cell."""
        if self.because is not None:
            return False
        unknown = self.status is None
        return unknown or (self.is_at_least and (self.largest_batch or 0) < LARGEST_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitDevice:
    """A device of the table. Bytes: `usable_bytes` is the total less the context and what other programs use."""

    name: str  # sim:rtx-4090
    kind: str
    card: str | None  # the driver's name
    total_bytes: int | None
    context_bytes: int | None
    context_range_bytes: tuple[int, int] | None  # the least and the most that were published
    used_by_others_bytes: int | None
    usable_bytes: int | None
    has_display: bool = False
    bandwidth_bytes_per_s: int | None = None
    price_per_hour: float | None = None

    @property
    def spare_bytes(self) -> int:
        """What the context may take beyond what is assumed, by the largest published figure."""
        if self.context_bytes is None or self.context_range_bytes is None:
            return 0
        return self.context_range_bytes[1] - self.context_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FitLevers:
    """What was changed until a cell's batch 1 fitted. `fits` is None if that was not calculated to its end.

    `changes`: by key, as a person types it. `peak_bytes` is of the cell, and `changed_peak_bytes` after the changes.
    """

    device: str
    setting: str
    context: int | None
    peak_bytes: int | None
    changes: Mapping[str, Any]
    changed_peak_bytes: int | None
    fits: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTable:
    """The answer of `sweeper fit`."""

    model: str | None
    parameters: int | None
    dtype: str | None
    devices: tuple[FitDevice, ...]
    settings: tuple[str, ...]  # rows
    contexts: tuple[int | None, ...]  # columns; (None,) if the workload takes no context
    cells: tuple[Cell, ...]
    levers: tuple[FitLevers, ...] = ()
    speeds: tuple[CellSpeed, ...] = ()
    servings: tuple[Serving, ...] = ()
    notes: tuple[str, ...] = ()  # what the figures do not say
    run: str | None = None  # the folder
    measure: str | None = None  # the command that measures one of its rows on a real card

    def cell(self, device: str, setting: str, context: int | None) -> Cell | None:
        wanted = (device, setting, context)
        return next((each for each in self.cells if (each.device, each.setting, each.context) == wanted), None)


def without_batch(values: Mapping[str, Any]) -> str:
    """The settled values of a point apart from its batch, as one text: equal in all rows of a cell."""
    return canonical({**values, "batch": None})


def result_of(point: Point, outcome: Outcome) -> Result:
    passed = outcome.status is Status.OK
    peak = outcome.unlimited_peak_bytes
    if peak is None and passed and not outcome.peak_is_partial:
        peak = outcome.peak(outcome.device.deciding_counter)
    message = " ".join((outcome.error_message or "").split())
    return Result(
        device=outcome.device.name,
        values=point.values,
        point_id=point.id,
        status=outcome.status.value,
        fits=outcome.fits,
        peak_bytes=peak,
        needs_at_least_bytes=outcome.needs_at_least_bytes,
        phase=outcome.peak_phase if passed else None,
        because=None if outcome.fits is not None else _why(outcome.error_type, message) or outcome.status.value,
        fits_if_expandable=FITS_IF_EXPANDABLE.strip() in message,
        parameters=_without_adapter(
            point.values, outcome.model.get("parameters"), outcome.model.get("trainable_parameters")
        ),
        left_bytes=_left(outcome.budget_bytes, outcome.device.total_bytes, outcome.peak("used")),
        metrics=outcome.metrics or {},
    )


def _without_adapter(values: Mapping[str, Any], parameters: int | None, trainable: int | None) -> int | None:
    """The number of parameters without those that LoRA adds, which are the trained ones."""
    workload = values.get("workload")
    if parameters is None or not isinstance(workload, Mapping) or workload.get("method") != "lora":
        return parameters
    return None if trainable is None else parameters - trainable


def _why(error_type: str | None, message: str) -> str:
    return message if error_type in (None, "Unavailable") else f"{error_type}: {message}"


def _left(budget: int | None, total: int | None, used: int | None) -> int | None:
    return None if budget is not None or total is None or used is None else total - used


def cells(wanted: Iterable[Wanted], results: Iterable[Result]) -> tuple[Cell, ...]:
    """A cell for each wanted one, in their order, from the results that have its values."""
    found: dict[tuple[str, str], dict[int, Result]] = defaultdict(dict)
    for result in results:
        found[result.device, without_batch(result.values)][result.batch] = result
    return tuple(
        _cell(each, {} if each.point is None else found[each.device, without_batch(each.point.values)])
        for each in wanted
    )


def _cell(wanted: Wanted, by_batch: Mapping[int, Result]) -> Cell:
    device = device_named(wanted.device)
    one = by_batch.get(1)
    failed = min((batch for batch, each in by_batch.items() if each.fits is False), default=None)
    below = [batch for batch, each in by_batch.items() if each.fits and (failed is None or batch < failed)]
    passed = max(below, default=None)
    undecided = min((batch for batch, each in by_batch.items() if each.fits is None), default=None)
    because = wanted.because if one is None else one.because
    if because is None and undecided is not None:
        because = f"batch {undecided}: {by_batch[undecided].because}"
    return Cell(
        device=wanted.device,
        kind=device.kind,
        setting=wanted.setting,
        values=wanted.values,
        context=wanted.context,
        counter=device.deciding_counter,
        fits=None if one is None else one.fits,
        peak_bytes=None if one is None else one.peak_bytes,
        phase=None if one is None else one.phase,
        largest_batch=passed,
        largest_peak_bytes=None if passed is None else by_batch[passed].peak_bytes,
        largest_left_bytes=None if passed is None else by_batch[passed].left_bytes,
        failing_batch=failed,
        failing_peak_bytes=None if failed is None else by_batch[failed].peak_bytes,
        needs_at_least_bytes=None if failed is None else by_batch[failed].needs_at_least_bytes,
        status=None if one is None else one.status,
        because=because,
        undecided_batch=undecided,
        fits_if_expandable=failed is not None and by_batch[failed].fits_if_expandable,
        takes_batch=wanted.point is not None and wanted.point.get("batch") is not None,
        point_ids=tuple(by_batch[batch].point_id for batch in sorted(by_batch)),
    )


def contexts_of(cells: Sequence[Cell]) -> tuple[int | None, ...]:
    """The columns of a table of these cells."""
    known = sorted({each.context for each in cells if each.context is not None})
    return tuple(known) or (None,)

"""The table of a plan with design=fit and of what has ended of it so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runners.device import Device
from sweeper import serving
from sweeper.designs.fit import Adding, cells_of
from sweeper.effects.added_levers import Verdict
from sweeper.effects.fit_levers import Goal, goals
from sweeper.fit_cells import Cell, FitDevice, FitLevers, FitTable, Result, Wanted, cells, contexts_of
from sweeper.plan import Plan, typed
from sweeper.planning.fit_request import dtype_of
from sweeper.planning.suggestions import for_shell


def table_of(plan: Plan, results: Sequence[Result], folder: Path | None = None) -> FitTable:
    """`results`: how the points ended so far, in any order."""
    rows = cells_of(plan)
    found = cells([replace(each, device=device.name) for device in plan.devices for each in rows], results)
    point = next(each.point for each in rows if each.point is not None)
    devices = tuple(_fit_device(device, point.get("used_by_others")) for device in plan.devices)
    spare = {each.name: each.spare_bytes for each in devices}
    found = tuple(replace(cell, is_close=is_close(cell, spare[cell.device])) for cell in found)
    requests = plan.design_options.get("concurrency")
    return FitTable(
        model=point.get("model.path") or point.get("model.name"),
        parameters=next((each.parameters for each in results if each.parameters is not None), None),
        dtype=point.get("dtype"),
        devices=devices,
        settings=tuple(dict.fromkeys(each.setting for each in found)),
        contexts=contexts_of(found),
        cells=found,
        levers=tuple(each for device in plan.devices for each in _levers(plan, device, rows, results)),
        speeds=serving.speeds(found, results, devices, requests),
        servings=serving.servings(found, results, requests),
        notes=tuple(_notes(plan, [each for each, cell in zip(rows, found, strict=False) if cell.because is None])),
        run=None if folder is None else str(folder),
        measure=_measure(plan, rows, found),
    )


def is_close(cell: Cell, spare_bytes: int) -> bool:
    """Whether the largest batch fits only as long as the context takes no more than is assumed."""
    return cell.largest_left_bytes is not None and cell.largest_left_bytes < spare_bytes


def _notes(plan: Plan, rows: Sequence[Wanted]) -> Iterator[str]:
    """What the settings are, where their names leave it open. `rows`: the cells that are possible."""
    points = {each.setting: each.point for each in rows if each.point is not None}
    dtype = next((point.get("dtype") for point in points.values()), None)
    half = dtype_of([device.card for device in plan.devices if device.card is not None])
    if dtype == half == "float16":
        card = "the card does not compute" if len(plan.devices) == 1 else "not every card computes"
        yield f"dtype: float16, since {card} in bfloat16."
    generate = points.get("run (generate)")
    if generate is not None:
        yield f"generate: {generate['workload.new_tokens']} new tokens after a prompt of the whole context."
    adapted = next((point for point in points.values() if point.get("workload.method") == "lora"), None)
    if adapted is not None:
        targets = adapted.get("workload.targets")
        on = ", ".join(targets) if isinstance(targets, (list, tuple)) else targets or "peft's default modules"
        yield f"LoRA: rank {adapted['workload.rank']} on {on}. QLoRA: the weights are stored in nf4."
    full = next((point for point in points.values() if point.get("workload.method") == "full"), None)
    if full is not None:
        precision = full.get("workload.precision")
        computed = "" if precision is None else f", computed in {precision}"
        in_32 = f"; in 32 bits: dtype=float32 workload.precision={half}" if full["dtype"] != "float32" else ""
        optimizer = str(full["workload.optimizer"])
        yield f"full training: weights, gradients and the states of {optimizer} in {full['dtype']}{computed}{in_32}."


def _measure(plan: Plan, rows: Sequence[Wanted], found: Sequence[Cell]) -> str | None:
    """The command that measures the largest batch of a cell on a real card: of the last row that fits anywhere."""
    fitting = [cell for cell in found if cell.fits and cell.largest_batch]
    if not fitting:
        return None
    last = [cell for cell in fitting if cell.setting == fitting[-1].setting][-1]
    choice = dict(last.values) | ({"batch": last.largest_batch} if last.takes_batch else {})
    point = plan.settle(choice)
    settings = {key: value for key, value in plan.settler.settings[point.id].items() if key != "used_by_others"}
    named = {key: point.get(key) for key in ("model", "workload") if point.get(key) is not None}
    others = {key: value for key, value in settings.items() if key not in named}
    words = [for_shell(key, typed(value)) for key, value in {**named, **others}.items()]
    return " ".join(["sweeper", *words, "devices=cuda:0"])


def _levers(plan: Plan, device: Device, rows: Sequence[Wanted], results: Sequence[Result]) -> list[FitLevers]:
    """The levers that the design added up, which follows the same rule from the same answers."""
    if not device.is_calculated or sum(each.is_calculated for each in plan.devices) > 1:
        return []
    by_id = {each.point_id: each for each in results if each.device == device.name}
    wanted = [replace(each, device=device.name) for each in rows]
    found = goals(wanted, {id: each.fits for id, each in by_id.items()})
    return [each for goal in found if (each := _added(plan, goal, device, by_id)) is not None]


def _added(plan: Plan, goal: Goal, device: Device, by_id: Mapping[str, Result]) -> FitLevers | None:
    adding = Adding(plan, goal, device)
    while adding.choice is not None:
        result = by_id.get(plan.settle(adding.choice).id)
        adding.send(None if result is None else Verdict(fits=result.fits, peak_bytes=result.peak_bytes))
    found = adding.found
    if found is None:
        return None
    kept = [trial.verdict for trial in found.trials if trial.kept and trial.verdict is not None]
    return FitLevers(
        device=goal.device,
        setting=goal.setting,
        context=goal.context,
        peak_bytes=found.run.peak_bytes,
        changes=found.changes,
        changed_peak_bytes=kept[-1].peak_bytes if kept else None,
        fits=found.fits,
    )


def _fit_device(device: Device, others: int | None) -> FitDevice:
    card = device.card
    has_limit = card is not None and not card.is_host
    used = others if others is not None or card is None else card.used_by_others_bytes
    return FitDevice(
        name=device.name,
        kind=device.kind,
        card=None if card is None else card.name,
        total_bytes=device.total_bytes,
        context_bytes=None if card is None or not has_limit else card.context_bytes,
        context_range_bytes=None if card is None else card.context_range_bytes,
        used_by_others_bytes=used,
        usable_bytes=None if card is None or not has_limit else card.usable_bytes - (used or 0),
        has_display=card is not None and card.has_display,
        bandwidth_bytes_per_s=None if card is None else card.bandwidth_bytes_per_s,
        price_per_hour=None if card is None else card.price_per_hour,
    )

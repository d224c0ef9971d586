"""The table of a plan with design=fit and of what has ended of it so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runners.device import Device
from sweeper import serving
from sweeper.designs.fit import Adding, cells_of
from sweeper.effects.added_levers import Verdict
from sweeper.effects.fit_levers import Goal, goals
from sweeper.fit import FitDevice, FitLevers, FitTable, Result, Wanted, cells, contexts_of
from sweeper.plan import Plan


def table_of(plan: Plan, results: Sequence[Result], folder: Path | None = None) -> FitTable:
    """`results`: how the points ended so far, in any order."""
    rows = cells_of(plan)
    found = cells([replace(each, device=device.name) for device in plan.devices for each in rows], results)
    point = next(each.point for each in rows if each.point is not None)
    devices = tuple(_fit_device(device, point.get("used_by_others")) for device in plan.devices)
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
        run=None if folder is None else str(folder),
    )


def _levers(plan: Plan, device: Device, rows: Sequence[Wanted], results: Sequence[Result]) -> list[FitLevers]:
    """The levers that the design added up, which follows the same rule from the same answers."""
    if len(plan.devices) > 1:
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
    if card is None or card.is_host:
        return FitDevice(
            name=device.name, kind=device.kind, card=None if card is None else card.name,
            total_bytes=device.total_bytes, context_bytes=None, used_by_others_bytes=others, usable_bytes=None,
        )  # fmt: skip
    used = card.used_by_others_bytes if others is None else others
    return FitDevice(
        name=device.name,
        kind=device.kind,
        card=card.name,
        total_bytes=card.total_bytes,
        context_bytes=card.context_bytes,
        used_by_others_bytes=used,
        usable_bytes=card.usable_bytes - (used or 0),
        has_display=card.has_display,
        bandwidth_bytes_per_s=card.bandwidth_bytes_per_s,
        price_per_hour=card.price_per_hour,
    )

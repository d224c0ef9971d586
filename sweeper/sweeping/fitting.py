"""The table of a plan with design=fit and of what has ended of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runners.device import Device
from sweeper.designs.fit import cells_of
from sweeper.fit import FitDevice, FitTable, Result, cells, contexts_of
from sweeper.plan import Plan


def table_of(plan: Plan, results: Sequence[Result], folder: Path | None = None) -> FitTable:
    """`results`: how the points ended so far, in any order."""
    rows = cells_of(plan)
    found = cells([replace(each, device=device.name) for device in plan.devices for each in rows], results)
    point = next(each.point for each in rows if each.point is not None)
    others = point.get("used_by_others")
    return FitTable(
        model=point.get("model.name"),
        parameters=next((each.parameters for each in results if each.parameters is not None), None),
        dtype=point.get("dtype"),
        devices=tuple(_fit_device(device, others) for device in plan.devices),
        settings=tuple(dict.fromkeys(each.setting for each in found)),
        contexts=contexts_of(found),
        cells=found,
        run=None if folder is None else str(folder),
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
    )

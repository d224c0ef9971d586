"""What to change first where a setting of `fit` does not fit: which settings, and which keys are tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.effects.levers import CHUNK
from sweeper.fit_cells import Wanted

PREFILL_CHUNK = "workload.prefill_chunk"
MOST_CHUNKS = 16  # each takes a pass to calculate

# For each use: its setting, and the keys with the values that save memory, those that leave the result as it is first.
USES: Sequence[tuple[str, Mapping[str, Sequence[Any]]]] = (
    ("run (generate)", {PREFILL_CHUNK: (CHUNK,), "quantize": ("nf4",)}),
    ("run (forward)", {"quantize": ("nf4",)}),
    (
        "full training",
        {
            "workload.checkpointing": (True,),
            "workload.optimizer": ("adamw-fused", "adamw-8bit"),
            "workload.method": ("lora",),
            "quantize": ("nf4",),
        },
    ),
)
RUNS = ("run (generate)", "run (forward)")  # the second is of interest where the first is not possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A cell that does not fit, and the values of the keys that may change it, its own first."""

    device: str
    setting: str
    context: int | None
    values: Mapping[str, Any]  # of the cell, as a person types them
    levers: Mapping[str, Sequence[Any]]


def goals(wanted: Sequence[Wanted], fits: Mapping[str, bool | None]) -> list[Goal]:
    """For each use: its setting at the smallest context at which one sequence does not fit. `fits`: by point's id."""
    found: dict[str, Goal] = {}
    for setting, levers in USES:
        if setting == RUNS[1] and _is_decided(RUNS[0], wanted, fits):
            continue
        for cell in wanted:
            if cell.setting == setting and cell.point is not None and fits.get(cell.point.id) is False:
                possible = {key: (cell.point.get(key), *values) for key, values in levers.items()}
                if cell.context is not None and PREFILL_CHUNK in possible and cell.context > MOST_CHUNKS * CHUNK:
                    possible[PREFILL_CHUNK] = (cell.point.get(PREFILL_CHUNK), cell.context // MOST_CHUNKS)
                possible = {key: values for key, values in possible.items() if values[0] not in values[1:]}
                found[setting] = Goal(
                    device=cell.device,
                    setting=setting,
                    context=cell.context,
                    values={key: value for key, value in cell.values.items() if key not in possible},
                    levers=possible,
                )
                break
    return list(found.values())


def _is_decided(setting: str, wanted: Sequence[Wanted], fits: Mapping[str, bool | None]) -> bool:
    return any(
        cell.setting == setting and cell.point is not None and fits.get(cell.point.id) is not None for cell in wanted
    )

"""The architecture of a GPU, and the dtypes that it computes in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from runners.device import Card

# The number of multiprocessors of the usual card: V100, T4, A100, RTX 3090, RTX 4090, H100 SXM, B200, RTX 5090.
MULTIPROCESSORS = {
    (7, 0): 80,
    (7, 5): 40,
    (8, 0): 108,
    (8, 6): 82,
    (8, 9): 128,
    (9, 0): 132,
    (10, 0): 148,
    (12, 0): 170,
}


@dataclass(frozen=True, slots=True)
class GpuArchitecture:
    vendor: str  # nvidia or amd
    capability: tuple[int, int] | None  # as (9, 0); None on amd
    multiprocessors: int | None = None  # None: those of the usual card of this capability
    name: str = ""  # as gfx942; empty where no rule asks for it

    @property
    def processors(self) -> int:
        """The number of multiprocessors; without a usual card for the capability, that of an A100."""
        return self.multiprocessors or MULTIPROCESSORS.get(self.capability or (0, 0), 108)

    @property
    def threads(self) -> int:
        """The most threads that are resident on one multiprocessor."""
        if self.capability == (7, 5):
            return 1024
        small = self.capability is not None and (8, 6) <= self.capability <= (8, 9)
        return 1536 if small or self.capability in ((12, 0), (12, 1)) else 2048


# The compute capability that each dtype needs.
# bfloat16: torch.cuda.is_bf16_supported(including_emulation=False); older cards store it and compute in float32.
# float8: aten/src/ATen/native/cuda/ScaledBlas.cpp, _scaled_mm; dtypes with block scales (32 and 16) need Blackwell.
NEEDED = {
    "bfloat16": (8, 0),
    "float8_e4m3fn": (8, 9),
    "float8_e5m2": (8, 9),
    "float8_e8m0fnu": (10, 0),
    "float4_e2m1fn_x2": (10, 0),
}
DTYPES: Mapping[torch.dtype, tuple[int, int]] = {
    getattr(torch, name): needed for name, needed in NEEDED.items() if hasattr(torch, name)
}


def why_unsupported(arch: GpuArchitecture, dtype: torch.dtype) -> str | None:
    """Why such a card does not compute in this dtype; None if it does."""
    needed = DTYPES.get(dtype)
    if arch.capability is None or needed is None or arch.capability >= needed:
        return None
    name = str(dtype).removeprefix("torch.")
    need = ".".join(map(str, needed))  # without the card's own: cards with the same reason are shown in one line
    return f"{name} needs compute capability {need}, and this card has less" + (
        ": torch only emulates it there" if dtype is torch.bfloat16 else ""
    )


def gpu_architecture(card: Card) -> GpuArchitecture:
    """The architecture of a card, whose file has for example sm_90, which is compute capability 9.0."""
    found = re.fullmatch(r"sm_(\d+)(\d)", card.architecture)
    capability = (int(found[1]), int(found[2])) if found else None
    return GpuArchitecture(card.vendor, capability, name=card.architecture)

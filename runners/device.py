"""A device by the name that a user types, and the card behind a calculated device."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

MEASURED, CALCULATED = "measured", "calculated"  # the kinds of figures in a table; they are never mixed
SIM = "sim:"  # prefix of a card's name: the device is calculated
HOST = "cpu"  # the architecture of `sim:cpu`


class DeviceType(str, enum.Enum):
    """The type of a device, as in `torch.device.type`, or `sim` for a calculated one."""

    CPU = "cpu"
    CUDA = "cuda"  # ROCm uses the same interface
    SIM = "sim"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as a file of conf/card describes it. Sizes are bytes.

    The card of `sim:cpu` is a host: it has no total, and its architecture is `cpu`.
    """

    name: str  # the driver's name
    vendor: str
    architecture: str  # sm_90, gfx942, cpu
    total_bytes: int | None
    context_bytes: int = 0  # of the driver's context and the libraries
    context_range_bytes: tuple[int, int] | None = None  # the least and the most that were published
    has_display: bool = False  # whether a desktop may run on it, which takes memory of its own
    used_by_others_bytes: int | None = None  # by other processes
    bandwidth_bytes_per_s: int | None = None
    price_per_hour: float | None = None
    sources: Mapping[str, str] | None = None  # the source of each figure, by key
    settings: str = ""  # of the caching allocator, as in PYTORCH_ALLOC_CONF

    @property
    def is_host(self) -> bool:
        return self.architecture == HOST

    @property
    def outside_bytes(self) -> int:
        """Bytes in use on the card outside the workload's allocator."""
        return self.context_bytes + (self.used_by_others_bytes or 0)

    @property
    def usable_bytes(self) -> int:
        """Bytes that an allocator can reserve on a card without other processes: the total less the context.

        Raises ValueError for a host, which has no total.
        """
        if self.total_bytes is None:
            raise ValueError(f"{self.name} has no total")
        return self.total_bytes - self.context_bytes

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, card: Mapping[str, Any]) -> Card:
        fields = {name: card[name] for name in cls.__slots__ if name in card}
        published = fields.get("context_range_bytes")
        return cls(**fields | {"context_range_bytes": None if published is None else tuple(published)})


CPU_CARD = Card(name="tensors on a CPU", vendor="", architecture=HOST, total_bytes=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where a point is measured or calculated, or why it cannot be."""

    name: str  # canonical: cpu, cuda:0, cuda:0+cuda:1, sim:h100-80gb
    uuids: tuple[str, ...] = ()  # of its parts, in their order; empty where the driver has none
    total_bytes: int | None = None  # the smallest of several parts: devices are never summed
    unavailable: str | None = None  # the reason
    backend: str | None = None  # cuda or hip, what torch was built for; None where it does not matter
    card: Card | None = None  # of a calculated device

    @property
    def type(self) -> DeviceType:
        return DeviceType(self.name.partition(":")[0])

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the devices that an attempt uses at once."""
        return tuple(self.name.split("+"))

    @property
    def uuid(self) -> str | None:
        """The UUIDs of all parts, joined by `+`."""
        return "+".join(self.uuids) or None

    @property
    def is_cpu(self) -> bool:
        """Whether it measures the memory of a process on this machine."""
        return self.type is DeviceType.CPU

    @property
    def is_calculated(self) -> bool:
        return self.type is DeviceType.SIM

    @property
    def is_host(self) -> bool:
        """Whether tensors lie in host memory, measured or calculated."""
        return self.is_cpu or self.name == f"{SIM}{HOST}"

    @property
    def kind(self) -> str:
        """Whether its figures are `measured` or `calculated`."""
        return CALCULATED if self.is_calculated else MEASURED

    @property
    def deciding_counter(self) -> str:
        """The counter whose peak is the point's peak: `allocated`; on cpu `resident`, on sim:cpu `tensor`."""
        if self.is_cpu:
            return "resident"
        return "tensor" if self.is_host else "allocated"

    @property
    def budget_counter(self) -> str:
        """The counter that a budget limits. On cpu the budget limits the growth of the address space."""
        if self.is_cpu:
            return "address"
        return "tensor" if self.is_host else "reserved"

    def stands_for(self, measured: Device) -> bool:
        """Whether this calculated device has the same kind of memory as a measured one."""
        return self.is_calculated and self.is_host == measured.is_host


@cache
def device_named(name: str) -> Device:
    """The device of a canonical name, as in a table or a folder's name. Raises ValueError for an unknown type."""
    device = Device(name=name)
    _ = device.type
    return device

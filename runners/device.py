"""A device under the name that a person gives it, and the card that stands behind a calculated one."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

MEASURED, CALCULATED = "measured", "calculated"  # the kinds of figures in a table, which are never mixed
SIM = "sim:"  # before the name of a card: the device is calculated
HOST = "cpu"  # the architecture of `sim:cpu`


class DeviceType(str, enum.Enum):
    """What the memory of a device is managed by, as in `torch.device.type`."""

    CPU = "cpu"
    CUDA = "cuda"  # ROCm uses the same interface
    SIM = "sim"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a calculated device has, as a file of conf/card describes it. Sizes are bytes.

    `sim:cpu` stands for a host: it has no total of its own, and its architecture is `cpu`.
    """

    name: str  # what the driver calls it
    vendor: str
    architecture: str  # sm_90, gfx942, cpu
    total_bytes: int | None
    context_bytes: int = 0  # the driver's context and the libraries
    used_by_others_bytes: int | None = None
    bandwidth_bytes_per_s: int | None = None
    price_per_hour: float | None = None
    sources: Mapping[str, str] | None = None  # by key, where its figure is from
    settings: str = ""  # of the caching allocator, in the syntax of PYTORCH_ALLOC_CONF

    @property
    def is_host(self) -> bool:
        return self.architecture == HOST

    @property
    def outside_bytes(self) -> int:
        """What is in use on the card and belongs to no segment of the workload's allocator."""
        return self.context_bytes + (self.used_by_others_bytes or 0)

    @property
    def usable_bytes(self) -> int:
        """What an allocator can reserve on a card that nobody else uses: the total less the context.

        Raises ValueError for a host, which has no total.
        """
        if self.total_bytes is None:
            raise ValueError(f"{self.name} has no total")
        return self.total_bytes - self.context_bytes

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, card: Mapping[str, Any]) -> Card:
        return cls(**{name: card[name] for name in cls.__slots__ if name in card})


CPU_CARD = Card(name="tensors on a CPU", vendor="", architecture=HOST, total_bytes=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where a point is measured or calculated, or the reason why it cannot be."""

    name: str  # canonical: cpu, cuda:0, cuda:0+cuda:1, sim:h100-80gb
    uuids: tuple[str, ...] = ()  # of its parts, in their order; empty where the driver gives none
    total_bytes: int | None = None  # of several parts the smallest: devices are never summed
    unavailable: str | None = None
    card: Card | None = None  # of a calculated device

    @property
    def type(self) -> DeviceType:
        return DeviceType(self.name.partition(":")[0])

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the devices that one attempt uses at once."""
        return tuple(self.name.split("+"))

    @property
    def uuid(self) -> str | None:
        """The UUIDs of all parts, joined by `+`."""
        return "+".join(self.uuids) or None

    @property
    def is_cpu(self) -> bool:
        """Whether the memory of a process on this machine is measured."""
        return self.type is DeviceType.CPU

    @property
    def is_calculated(self) -> bool:
        return self.type is DeviceType.SIM

    @property
    def is_host(self) -> bool:
        """Whether tensors are in host memory, measured or calculated."""
        return self.is_cpu or self.name == f"{SIM}{HOST}"

    @property
    def kind(self) -> str:
        """Whether its figures are `measured` or `calculated`."""
        return CALCULATED if self.is_calculated else MEASURED

    @property
    def deciding_counter(self) -> str:
        """The counter whose peak is the point's: what the allocator gave out, or on a host what is resident."""
        if self.is_cpu:
            return "resident"
        return "tensor" if self.is_host else "allocated"

    @property
    def budget_counter(self) -> str:
        """The counter that a budget limits. On cpu it is the growth of the address space."""
        if self.is_cpu:
            return "address"
        return "tensor" if self.is_host else "reserved"

    def stands_for(self, measured: Device) -> bool:
        """Whether this calculated device has the same kind of memory as a measured one."""
        return self.is_calculated and self.is_host == measured.is_host


@cache
def device_named(name: str) -> Device:
    """The device of a canonical name, as a table or a folder has it. Raises ValueError for a type that is not known."""
    device = Device(name=name)
    _ = device.type
    return device

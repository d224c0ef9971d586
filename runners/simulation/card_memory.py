"""The imitated memory that a trace is replayed on: a card's capacity behind its allocator, or a host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runners.device import Card
from runners.phases import Reading
from runners.simulation.allocator import FIRST_ADDRESS, CachingAllocator, Refused, Settings
from runners.simulation.allocator_counts import CountingAllocator

CALCULATED = "(calculated)"  # in the message of a refusal of HostMemory
ALIGNMENT = 64  # bytes, of tensors on a host: c10/core/alignment.h
COUNTERS = ("allocated", "reserved", "requested", "active")


class Memory(Protocol):
    """Memory that a trace is replayed on. Sizes are in bytes.

    `allocate` takes a size and a stream, and returns a handle or raises Refused.
    """

    @property
    def alloc_retries(self) -> int | None: ...
    @property
    def num_ooms(self) -> int | None: ...
    @property
    def allocate(self) -> Callable[[int, int], int]: ...
    @property
    def free(self) -> Callable[[int], None]: ...
    @property
    def empty_cache(self) -> Callable[[], None]: ...
    def workspace_bytes(self) -> int: ...

    def address(self, handle: int) -> int:
        """Where an allocation is."""
        ...

    def left(self) -> int | None:
        """Bytes that can be taken before an allocation is refused; None without any limit."""
        ...

    def most_taken(self, size: int) -> int:
        """The most bytes that one allocation of this size takes of those left."""
        ...

    def set_fraction(self, fraction: float) -> None:
        """Refuse what goes beyond this share of the whole memory."""
        ...

    def held(self) -> dict[str, int]:
        """The counters now."""
        ...

    def boundary(self) -> Reading:
        """The counters now, and their peaks since the last boundary."""
        ...


def memory_of(card: Card, budget: int | None, unlimited: bool = False, counts: bool = False) -> Memory:
    """The card's memory under a budget in bytes, or without any limit, which shows the demand of a refused point.
    With `counts` its allocator has all statistics of PyTorch's.

    Raises ValueError if the card's allocator settings cannot be simulated.
    """
    return HostMemory(budget) if card.is_host else CardMemory(card, budget, unlimited, counts)


class CardMemory:
    """The caching allocator with what the context, the libraries and other processes leave of the card."""

    def __init__(self, card: Card, budget: int | None, unlimited: bool, counts: bool = False) -> None:
        from runners.simulation.kernels.torch_gpu_architecture import gpu_architecture
        from runners.simulation.kernels.torch_products import workspace_bytes

        self._workspace = workspace_bytes(gpu_architecture(card))
        self._outside = card.outside_bytes
        self._total, self._budget, self._unlimited = card.total_bytes, budget, unlimited
        self.allocator = (CountingAllocator if counts else CachingAllocator)(
            capacity=None if unlimited or card.total_bytes is None else card.total_bytes - self._outside,
            total=card.total_bytes or 0,
            limit=budget,
            settings=Settings.parse(card.settings),
            outside=self._outside,
        )
        self.allocate, self.free = self.allocator.allocate, self.allocator.free
        self.empty_cache = self.allocator.empty_cache

    def workspace_bytes(self) -> int:
        return int(self._workspace)

    def address(self, handle: int) -> int:
        return handle

    def left(self) -> int | None:
        return self.allocator.left()

    def most_taken(self, size: int) -> int:
        return self.allocator.most_reserved(size)

    def set_fraction(self, fraction: float) -> None:
        if not self._unlimited and self._total is not None:
            share = int(fraction * self._total)
            self.allocator.limit = share if self._budget is None else min(self._budget, share)

    @property
    def alloc_retries(self) -> int:
        return self.allocator.alloc_retries

    @property
    def num_ooms(self) -> int:
        return self.allocator.num_ooms

    def held(self) -> dict[str, int]:
        now = {name: getattr(self.allocator, name) for name in COUNTERS}
        return now | {"used": self._outside + now["reserved"]}

    def boundary(self) -> Reading:
        peak = {name: getattr(self.allocator, f"peak_{name}") for name in COUNTERS}
        self.allocator.reset_peaks()
        return Reading(now=self.held(), peak=peak | {"used": self._outside + peak["reserved"]})


class HostMemory:
    """Tensors on the host, each rounded up to its alignment. Only a budget refuses."""

    alloc_retries = num_ooms = None

    def __init__(self, budget: int | None) -> None:
        self._budget, self._allocated, self._peak = budget, 0, 0
        self._sizes: list[int] = []
        self._starts: list[int] = []  # the bytes of all allocations before each

    def allocate(self, size: int, stream: int = 0) -> int:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if self._budget is not None and self._allocated + size > self._budget:
            raise Refused(
                f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes {CALCULATED}",
                size, self._budget - self._allocated, self._allocated, self._allocated,
            )  # fmt: skip
        self._allocated += size
        self._peak = max(self._peak, self._allocated)
        self._starts.append(self._starts[-1] + self._sizes[-1] if self._sizes else 0)
        self._sizes.append(size)
        return len(self._sizes) - 1

    def free(self, handle: int) -> None:
        self._allocated -= self._sizes[handle]

    def empty_cache(self) -> None:
        pass

    def workspace_bytes(self) -> int:
        return 0

    def left(self) -> int | None:
        return None if self._budget is None else self._budget - self._allocated

    def most_taken(self, size: int) -> int:
        return size + ALIGNMENT

    def address(self, handle: int) -> int:
        """No address is used twice."""
        return FIRST_ADDRESS + self._starts[handle]

    def set_fraction(self, fraction: float) -> None:
        pass

    def held(self) -> dict[str, int]:
        return {"tensor": self._allocated}

    def boundary(self) -> Reading:
        reading = Reading(now=self.held(), peak={"tensor": self._peak})
        self._peak = self._allocated
        return reading

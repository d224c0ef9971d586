"""The events of a trace: what a program asks of an allocator, in order, as whole numbers.

size >= 0       an allocation of so many bytes; allocations are numbered from 0
-(n + 1)        allocation number n is freed
WORKSPACE       an allocation whose size depends on the card: the workspace of a matrix product's handle
EMPTY_CACHE     torch.cuda.empty_cache()
STREAM + n      allocations from here on are made on stream n
FRACTION + n    what needs more than n / WHOLE of the card is refused from here on
REFUSED + size  an allocation of so many bytes that the card refused, and that has no number
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from runners.simulation.allocator import Refused
from runners.simulation.card_memory import Memory

WORKSPACE = 2**62
EMPTY_CACHE = WORKSPACE + 1
STREAM = WORKSPACE + 2**20
FRACTION, WHOLE = WORKSPACE + 2**50, 2**40
REFUSED = 2**61
REFUSED_WORKSPACE = WORKSPACE + 2


class Player:
    """Applies events to a memory, and keeps the handles of its allocations."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        # The refusals in the trace since the last `take_refusals`, each with what was held at that moment.
        self._refusals: list[tuple[Refused, Mapping[str, int]]] = []
        self._handles: list[int] = []
        self._stream = 0

    def play(self, events: array[int], first: int, end: int) -> None:
        """Apply the events from `first` to before `end`. Raises Refused for an allocation that does not fit."""
        memory, handles = self.memory, self._handles
        allocate, free = memory.allocate, memory.free
        for event in events[first:end]:
            if event < 0:
                free(handles[-event - 1])
            elif event < REFUSED:
                handles.append(allocate(event, self._stream))
            elif event < WORKSPACE:
                self._refuse(event - REFUSED)
            elif event == WORKSPACE:
                handles.append(allocate(memory.workspace_bytes(), self._stream))
            elif event == EMPTY_CACHE:
                memory.empty_cache()
            elif event == REFUSED_WORKSPACE:
                self._refuse(memory.workspace_bytes())
            elif event < FRACTION:
                self._stream = event - STREAM
            else:
                memory.set_fraction((event - FRACTION) / WHOLE)

    def address(self, number: int) -> int:
        """Where the allocation of this number is."""
        return self.memory.address(self._handles[number])

    def take_refusals(self) -> list[tuple[Refused, Mapping[str, int]]]:
        taken, self._refusals = self._refusals, []
        return taken

    def _refuse(self, size: int) -> None:
        try:
            self.memory.allocate(size, self._stream)
        except Refused as refused:
            self._refusals.append((refused, self.memory.held()))
        else:
            raise ValueError("a refusal of another card is in this trace")

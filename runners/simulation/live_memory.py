"""The memory that a traced program sees while it runs: the events so far, applied to the imitated allocator.

A program may ask how much memory it holds, and learns of a refusal where it allocates. This allocator is the program's:
what it resets does not disturb the counters of the attempt, which a replay takes.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable
from dataclasses import replace

from runners.device import Card
from runners.simulation.allocator import Refused
from runners.simulation.card_memory import Memory
from runners.simulation.events import REFUSED, REFUSED_WORKSPACE, WORKSPACE, Player


class LiveMemory:
    """Applies the events of a trace to a memory up to the last one, when the program asks about it.

    With `refuses` the tracer asks at every allocation. A card's capacity refuses then only: without it the program runs
    to its end, and its trace holds for every card of the architecture, unless the program learnt what differs between
    them (`is_of_one_card`).
    """

    def __init__(self, events: array[int], make: Callable[[bool], Memory], refuses: bool = False) -> None:
        """`make` is called with whether the memory is to be without any limit."""
        self.refuses = refuses
        self.is_of_one_card = False
        self.settings: str | None = None  # of the allocator, where the program sets them before it uses the card
        self._events, self._make = events, make
        self._player: Player | None = None
        self._played = 0
        self._left: int | None = 0  # bytes that can surely be allocated beyond the events that were played

    @property
    def was_asked(self) -> bool:
        """Whether the program has asked about it, or has allocated where the card refuses."""
        return self._player is not None

    def read(self) -> Memory:
        """The memory after all events so far, for a program that asks about it."""
        try:
            memory = self._advanced().memory
        except Refused:  # this card will be followed again with its refusals; what a larger one answers is not known
            self.is_of_one_card = True
            self._player, self._played = Player(self._make(True)), 0
            memory = self._advanced().memory
        if memory.alloc_retries:  # the card was full once: what is reserved depends on its size from there on
            self.is_of_one_card = True
        return memory

    def address(self, number: int) -> int:
        """Where the allocation of this number is."""
        self.read()
        assert self._player is not None
        return self._player.address(number)

    def with_settings(self, card: Card) -> Card:
        """The card with the program's settings of its allocator."""
        return card if self.settings is None else replace(card, settings=self.settings)

    def check(self) -> Refused | None:
        """Whether the last allocation among the events is refused. A refusal takes its place.

        No event is played while the memory left would be enough if each allocation took its own segment.
        """
        if self._left is None:
            return None
        place = len(self._events) - 1
        while self._events[place] < 0:  # the collector may run at any time, and frees storages
            place -= 1
        event = self._events[place]
        if self._player is not None:
            memory = self._player.memory
            self._left -= memory.most_taken(memory.workspace_bytes() if event == WORKSPACE else event)
            if self._left >= 0:
                return None
        try:
            self._left = self._advanced(place + 1).memory.left()
        except Refused as refused:
            self._events[place] = REFUSED_WORKSPACE if event == WORKSPACE else REFUSED + event
            self.is_of_one_card = True
            self._left = 0
            return refused
        return None

    def limit_changed(self) -> None:
        """The last event has set another limit."""
        self._left = 0

    def _advanced(self, end: int | None = None) -> Player:
        """Play the events before `end`, or all. No finalizer runs meanwhile, which might allocate."""
        collects = gc.isenabled()
        gc.disable()
        try:
            if self._player is None:
                self._player = Player(self._make(False))
            done, self._played = self._played, max(self._played, len(self._events) if end is None else end)
            self._player.play(self._events, done, self._played)
        finally:
            if collects:
                gc.enable()
        return self._player

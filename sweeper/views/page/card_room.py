"""On which cards a point would fit: its peak against the memory of each card of conf/card. Arithmetic. Pure.

A card has room for what is left of its memory after its context, and after other programs where its file counts them.
The point's peak is that of the device of the row: another card's kernels may take other scratch memory, which no
arithmetic knows. A row of the run for that card itself is shown instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runners.device import Card, device_named
from sweeper.rows import Row
from sweeper.units import format_bytes, format_count
from sweeper.views.page.marks import Mark

ARITHMETIC = "arithmetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRoom:
    """`known_by`: arithmetic, or the kind of the run's own row for the card. `left`: bytes, negative if too small."""

    card: str
    name: str
    room: int
    mark: Mark
    known_by: str
    left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRooms:
    """`need`: bytes that surely fit in a card with as much room; None where only a lower bound is known.

    `at_least`: bytes that no card can do without.
    """

    title: str
    device: str
    kind: str
    need: int | None
    at_least: int
    counter: str
    assumed: str
    rooms: Sequence[CardRoom]

    @property
    def is_arithmetic(self) -> bool:
        """Whether some card has no row in the run."""
        return any(each.known_by == ARITHMETIC for each in self.rooms)

    @property
    def are_alike(self) -> bool:
        """Whether the point has the same result on every card."""
        return len({each.mark for each in self.rooms}) == 1

    @property
    def sentence(self) -> str:
        """On how many cards it fits, and the smallest of them."""
        fitting = [each for each in self.rooms if each.mark is Mark.FITS]
        ruled_out = sum(each.mark is Mark.FAILS for each in self.rooms)
        of = format_count(len(self.rooms), "card")
        if self.need is None:
            least = f"The point holds at least {format_bytes(self.at_least)} of tensors"
            have = "have" if ruled_out > 1 else "has"
            return f"{least}: {ruled_out or 'none'} of {of} {have} too little room for them."
        what = f"The point reserves {format_bytes(self.need)}. It fits on"
        if not fitting:
            return f"{what} none of {of}."
        which = f"all {of}" if len(fitting) == len(self.rooms) else f"{len(fitting)} of {of}"
        smallest = f"{fitting[0].card}, which has room for {format_bytes(fitting[0].room)}"
        return f"{what} {which}; the smallest of them is {smallest}."


def card_rooms(title: str, row: Row, cards: Mapping[str, Card], rows: Iterable[Row] = ()) -> CardRooms | None:
    """`rows`: those of the run, for the same point on cards of the list. None where no peak of the point is known."""
    device = device_named(row["device"])
    if row.get("peak_is_partial"):
        return None
    if device.is_host:
        need, at_least, counter = None, row.get("peak_tensor_bytes"), "tensor"
    else:
        need, at_least, counter = row.get("peak_reserved_bytes"), row.get("peak_allocated_bytes"), "reserved"
    if at_least is None:
        return None
    own = {each["device"].removeprefix("sim:"): each for each in rows if each["point_id"] == row["point_id"]}
    found = [_room(name, card, need, at_least, own.get(name)) for name, card in cards.items()]
    found.sort(key=lambda each: (each.room, each.card))
    return CardRooms(
        title=title,
        device=row["device"],
        kind=row["kind"],
        need=need,
        at_least=at_least,
        counter=counter,
        assumed=_assumed(row, device.is_host),
        rooms=found,
    )


def _room(name: str, card: Card, need: int | None, at_least: int, own: Row | None) -> CardRoom:
    room = (card.total_bytes or 0) - card.outside_bytes
    if own is not None and own["fits"] is not None:
        peak = own.get("unlimited_peak_bytes") if not own["fits"] else own.get("peak_reserved_bytes")
        mark = Mark.FITS if own["fits"] else Mark.FAILS
        left = None if peak is None else room - peak
        return CardRoom(card=name, name=card.name, room=room, mark=mark, known_by=own["kind"], left=left)
    if at_least > room:
        mark, left = Mark.FAILS, room - at_least
    elif need is not None and need <= room:
        mark, left = Mark.FITS, room - need
    else:
        mark, left = Mark.UNKNOWN, None if need is None else room - need
    return CardRoom(card=name, name=card.name, room=room, mark=mark, known_by=ARITHMETIC, left=left)


def _assumed(row: Row, on_cpu: bool) -> str:
    if on_cpu:
        return (
            "Tensors on a CPU are a lower bound of what a card needs: it adds rounding, the allocator's cache and"
            " scratch memory of its kernels. A card is ruled out here, never promised"
        )
    return f"The peak is that of {row['device']}; the kernels of another card may take other scratch memory"

"""`estimate parameters=7e9 bits=16 card=rtx-4090`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from sweeper.estimates.card_check import CardCheck, check_card
from sweeper.estimates.memory_terms import MemoryTerm, reserve, weights
from sweeper.planning.card_request import CardRequest
from sweeper.units import format_both, format_decimal
from sweeper.views.layout import indent, term_lines


class CardReport(NamedTuple):
    terms: tuple[MemoryTerm, ...]
    check: CardCheck

    @property
    def total_bytes(self) -> int:
        return sum(term.bytes for term in self.terms)


def card_report(request: CardRequest) -> CardReport:
    """The terms of a number of parameters, and what the card has room for."""
    held = weights(request.parameters, request.bits)
    reserved = () if request.reserve_gib is None else (reserve(request.reserve_gib),)
    reserved_bytes = sum(term.bytes for term in reserved)
    check = check_card(request.parameters, request.bits, request.card, request.card_name, request.rank, reserved_bytes)
    return CardReport((held, *reserved), check)


def as_json(report: CardReport) -> dict[str, Any]:
    keys = ("term", "bytes", "formula", "assumption", "source")
    return {
        "terms": [{key: getattr(term, key) for key in keys} for term in report.terms],
        "total_bytes": report.total_bytes,
        "budget": asdict(report.check),
    }


def as_text(report: CardReport) -> str:
    return "\n".join(_lines(report))


def _lines(report: CardReport) -> Iterator[str]:
    check = report.check
    yield from term_lines(report.terms)
    if len(report.terms) > 1:
        yield f"{'total':<10} {format_both(report.total_bytes)}"
    yield ""
    yield f"on card={check.card}, where an allocator can use {format_both(check.usable_bytes)}"
    yield f"  ({check.usable}):"
    for way in check.ways:
        yield f"{way.way}: {way.verdict}, {format_decimal(abs(way.left_bytes))} {'left' if way.fits else 'missing'}"
        yield from indent([format_both(way.bytes), f"= {way.formula}", f"assumed: {way.assumption}"], 11)
    yield from check.not_estimated
    yield f"not included: {'; '.join(check.not_included)}"

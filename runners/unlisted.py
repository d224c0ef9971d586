"""Joins phases that get no lines of their own, in a journal that is long already, to one line.

Every peak is in it, so the peaks of the attempt are those that all lines would give.
"""

from __future__ import annotations

from runners.facts import Bytes, Counters, Ended, highest
from runners.journal import BETWEEN

UNLISTED = "unlisted"  # the name of the phases together
# Counters of which the highest reading at a boundary counts (runners.outcome), by the field that it is taken from.
AT_BOUNDARIES = ("used", "graph_pools")
AT_ENDS = ("data_and_shared",)


class Unlisted:
    """The phases since the last `clear`. What happened between them is a part of them."""

    def __init__(self) -> None:
        self.joined: tuple[Ended, ...] = ()  # their line, if there are any

    def add(self, ended: Ended) -> None:
        alone = _alone(ended)
        self.joined = (_together(self.joined[0], alone) if self.joined else alone,)

    def clear(self) -> None:
        self.joined = ()


def _alone(ended: Ended) -> Ended:
    counters = {device: _with_boundaries(of_device) for device, of_device in ended.counters.items()}
    count = 0 if ended.phase == BETWEEN else 1
    return ended._replace(
        phase=UNLISTED, run_index=None, iterations=count, counters=counters, shapes=None, metrics=None
    )


def _together(first: Ended, then: Ended) -> Ended:
    devices = dict.fromkeys([*first.counters, *then.counters])
    return then._replace(
        elapsed_s=(first.elapsed_s or 0.0) + (then.elapsed_s or 0.0),
        iterations=(first.iterations or 0) + (then.iterations or 0),  # how many phases they are
        completed=bool(first.completed and then.completed),
        counters={device: _of_both(first.counters.get(device), then.counters.get(device)) for device in devices},
    )


def _with_boundaries(counters: Counters) -> Counters:
    """With the readings at boundaries among the peaks, since those in the middle will not be kept."""
    seen = [{name: each[name] for name in AT_BOUNDARIES if name in each} for each in (counters.baseline, counters.end)]
    return counters._replace(peak=highest([counters.peak, *seen]))


def _of_both(first: Counters | None, then: Counters | None) -> Counters:
    if first is None or then is None:
        return first or then or Counters({}, {}, {}, None, None)
    ends = highest({name: each[name] for name in AT_ENDS if name in each} for each in (first.end, then.end))
    return Counters(
        baseline=first.baseline,
        end={**then.end, **ends},
        peak=_peaks_of_both(first.peak, then.peak),
        alloc_retries=_sum(first.alloc_retries, then.alloc_retries),
        num_ooms=_sum(first.num_ooms, then.num_ooms),
        refused=then.refused or first.refused,
        refusals=_known(first.refusals, then.refusals),
        refused_bytes=max((each for each in (first.refused_bytes, then.refused_bytes) if each), default=None),
    )


def _peaks_of_both(first: Bytes, then: Bytes) -> Bytes:
    """The highest of each counter. One that was not read of both is left out: its peak may be in the other."""
    peaks = highest([first, then])
    return {name: peak for name, peak in peaks.items() if (name in first and name in then) or name in AT_BOUNDARIES}


def _sum(first: int | None, then: int | None) -> int | None:
    return None if first is None or then is None else first + then


def _known(first: int | None, then: int | None) -> int | None:
    """At least so many: refusals that were seen count, and no refusals are known only if every stretch was observed."""
    known = (first or 0) + (then or 0)
    return known if known or None not in (first, then) else None

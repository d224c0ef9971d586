"""Levers added up until a point fits: in which order they are tried, and which are kept. Pure.

The rule, for a run (the first value of each key) and the other values that its keys may take:

1.  The run itself comes first. If it fits, nothing is changed.
2.  The keys are tried in their order, batch and context after all others, since they make the run itself smaller. A key
    takes its next value on top of what was kept before. It is kept if the peak is lower, or if the peak is not known:
    a device that refuses a point does not report what the point would have taken.
3.  If the point does not fit after all keys, those that were not kept are tried again, because another part of the
    workload may have the peak by now.
4.  Once the point fits, each kept key goes back as long as the point still fits, the key that was listed last first.

The result fits, and no kept key can take a step back. There may be a smaller set: finding it would take a run for each
combination.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Choice = Mapping[str, Any]  # a value for each key
LAST = ("batch", "context")
NOTHING_SAVED, NOT_RUN = "saves nothing here", "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a choice ended. `peak_bytes`: the complete peak of the deciding counter, None if it is not known."""

    fits: bool | None
    peak_bytes: int | None = None
    because: str | None = None  # why it is undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A key that took another value. Without a verdict the choice was not run, and `because` has the reason."""

    key: str
    value: Any
    choice: Choice
    verdict: Verdict | None
    kept: bool
    because: str | None = None  # why it was not kept
    is_back: bool = False  # a step back, after the point fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedLevers:
    """The run, what was tried on top of it, and the choice that remains. `fits` is None if a run is missing."""

    run: Verdict
    trials: tuple[Trial, ...]
    changes: Choice  # the keys that differ from the run
    fits: bool | None


Trying = Generator[Choice, Verdict | None, AddedLevers]


def add_levers(values: Mapping[str, Sequence[Any]], left_out: Callable[[Choice, Choice], str | None]) -> Trying:
    """Yields each choice to run, and is sent its verdict, or None to stop. Returns what was found.

    `left_out`: why a choice is not worth a run after another one, or None.
    """
    return _Adding(values, left_out).add()


class _Adding:
    def __init__(self, values: Mapping[str, Sequence[Any]], left_out: Callable[[Choice, Choice], str | None]) -> None:
        ordered = [*(key for key in values if key not in LAST), *(key for key in LAST if key in values)]
        self.values = {key: values[key] for key in ordered}
        self.left_out = left_out
        self.places = dict.fromkeys(ordered, 0)  # of the values of the last choice that was kept
        self.verdict = Verdict(fits=None)  # of that choice
        self.trials: list[Trial] = []

    def add(self) -> Trying:
        run = self.verdict = (yield self._choice(self.places)) or self.verdict
        while self.verdict.fits is False:
            before = len([trial for trial in self.trials if trial.kept])
            yield from self._forward()
            if len([trial for trial in self.trials if trial.kept]) == before:
                break
        if self.verdict.fits and self.trials:
            yield from self._back()
        changes = {key: self.values[key][place] for key, place in self.places.items() if place}
        return AddedLevers(run=run, trials=tuple(self.trials), changes=changes, fits=self.verdict.fits)

    def _forward(self) -> Generator[Choice, Verdict | None, None]:
        """Try each further value of each key, until the point fits."""
        for key, values in self.values.items():
            for place in range(self.places[key] + 1, len(values)):
                if self.verdict.fits is False:
                    yield from self._try(key, place)

    def _back(self) -> Generator[Choice, Verdict | None, None]:
        """Take each key back while the point fits.

        The last one that was kept made the point fit. It is tried only if another one went back since then.
        """
        last = [trial.key for trial in self.trials if trial.kept][-1]
        went_back = False
        for key in reversed(self.values):
            while key != last and self.places[key] and (yield from self._try(key, self.places[key] - 1, is_back=True)):
                went_back = True
        while went_back and self.places[last] and (yield from self._try(last, self.places[last] - 1, is_back=True)):
            pass

    def _try(self, key: str, place: int, is_back: bool = False) -> Generator[Choice, Verdict | None, bool]:
        """Whether the choice with this value of the key is kept."""
        places = self.places | {key: place}
        choice = self._choice(places)
        verdict, because = None, self.left_out(self._choice(self.places), choice)
        if because is None:
            verdict = yield choice
            because = _not_kept(verdict, self.verdict, is_back)
        trial = Trial(
            key=key,
            value=self.values[key][place],
            choice=choice,
            verdict=verdict,
            kept=because is None,
            because=because,
            is_back=is_back,
        )
        self.trials.append(trial)
        if verdict is not None and trial.kept:
            self.places, self.verdict = places, verdict
        elif because == NOT_RUN and not is_back:
            self.verdict = Verdict(fits=None, because=NOT_RUN)
        return trial.kept

    def _choice(self, places: Mapping[str, int]) -> dict[str, Any]:
        return {key: self.values[key][place] for key, place in places.items()}


def _not_kept(verdict: Verdict | None, before: Verdict, is_back: bool) -> str | None:
    """Why a choice is not kept, or None."""
    if verdict is None:
        return NOT_RUN
    if verdict.fits is None:
        return verdict.because or "undecided"
    if is_back or verdict.fits:
        return None if verdict.fits else "does not fit without it"
    if verdict.peak_bytes is not None and before.peak_bytes is not None and verdict.peak_bytes >= before.peak_bytes:
        return NOTHING_SAVED
    return None

"""The rule by which levers are added up, in worlds whose bytes are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sweeper.effects.added_levers import NOTHING_SAVED, AddedLevers, Choice, Verdict, add_levers

Values = Mapping[str, Sequence[Any]]
Nothing = Callable[[Choice, Choice], str | None]
TRAINING: Values = {
    "batch": (4, 2, 1),
    "workload.checkpointing": (False, True),
    "workload.optimizer": ("adamw", "adamw-fused"),
    "workload.method": ("full", "lora"),
}


def bytes_of(choice: Choice) -> int:
    activations = choice["batch"] * (3 if choice["workload.checkpointing"] else 30)
    return activations + (10 if choice["workload.method"] == "lora" else 100)


def followed(
    values: Values,
    limit: int,
    size: Callable[[Choice], int] = bytes_of,
    left_out: Nothing = lambda before, choice: None,
    seen: bool = True,
) -> tuple[AddedLevers, list[Choice]]:
    """What is found, and the choices in the order they were run. `seen`: whether a refused peak is known."""
    run: list[Choice] = []
    adding = add_levers(values, left_out)
    choice = next(adding)
    while True:
        run.append(choice)
        fits = size(choice) <= limit
        try:
            choice = adding.send(Verdict(fits=fits, peak_bytes=size(choice) if fits or seen else None))
        except StopIteration as end:
            return end.value, run


def test_a_run_that_fits_is_not_changed() -> None:
    found, run = followed(TRAINING, limit=220)
    assert (found.fits, found.changes, found.trials) == (True, {}, ())
    assert run == [{key: TRAINING[key][0] for key in run[0]}]


def test_levers_add_up_until_the_run_fits() -> None:
    found, _ = followed(TRAINING, limit=22)
    assert found.changes == {"workload.checkpointing": True, "workload.method": "lora"}
    assert bytes_of({**{key: values[0] for key, values in TRAINING.items()}, **found.changes}) == 22


def test_batch_and_context_come_after_all_other_keys_even_if_they_are_given_first() -> None:
    _, run = followed({**TRAINING, "context": (64, 32)}, limit=0)
    assert list(run[0])[-2:] == ["batch", "context"]
    halved = [place for place, choice in enumerate(run) if choice["batch"] == 2]
    assert run[halved[0]]["workload.method"] == "lora"


def test_a_lever_that_saves_nothing_is_not_kept() -> None:
    found, _ = followed(TRAINING, limit=22)
    (fused,) = [trial for trial in found.trials if trial.key == "workload.optimizer"]
    assert (fused.kept, fused.because) == (False, NOTHING_SAVED)


def test_a_lever_that_saved_nothing_is_tried_again_when_another_part_has_the_peak() -> None:
    def size(choice: Choice) -> int:
        return max(50 if choice["fused"] else 100, 80 if choice["recompute"] else 200)

    found, _ = followed({"fused": (False, True), "recompute": (False, True)}, 80, size)
    assert found.changes == {"fused": True, "recompute": True}
    assert [trial.kept for trial in found.trials if trial.key == "fused"] == [False, True]


def test_a_lever_that_was_not_needed_goes_back() -> None:
    found, run = followed(
        {"small": (False, True), "large": (False, True)}, 60, lambda at: 100 - at["small"] - 50 * at["large"]
    )
    assert found.changes == {"large": True}
    assert run[-2:] == [{"small": False, "large": True}, {"small": False, "large": False}]


def test_without_figures_a_lever_is_kept_until_the_run_fits_and_goes_back_if_it_was_not_needed() -> None:
    found, _ = followed(TRAINING, limit=22, seen=False)
    assert found.changes == {"workload.checkpointing": True, "workload.method": "lora"}


def test_what_cannot_be_is_never_run_and_keeps_its_reason() -> None:
    found, run = followed(
        TRAINING, 22, left_out=lambda before, choice: "no layers" if choice["workload.checkpointing"] else None
    )
    assert all(not choice["workload.checkpointing"] for choice in run)
    assert "no layers" in {trial.because for trial in found.trials}
    assert (found.fits, found.changes) == (False, {"workload.method": "lora", "batch": 1})


def test_a_point_that_was_not_run_ends_the_search_undecided() -> None:
    adding = add_levers(TRAINING, lambda before, choice: None)
    next(adding)
    adding.send(Verdict(fits=False, peak_bytes=220))
    try:
        adding.send(None)
    except StopIteration as end:
        found = end.value
    assert (found.fits, found.changes) == (None, {})


levers = st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(0, 50), min_size=1, max_size=3), min_size=1)


@given(levers, st.integers(0, 200), st.booleans())
def test_what_is_found_fits_wherever_anything_does_and_no_lever_of_it_can_go_back(
    saves: dict[str, list[int]], limit: int, seen: bool
) -> None:
    values = {key: range(len(steps) + 1) for key, steps in saves.items()}

    def size(choice: Choice) -> int:
        return 200 - sum(sum(saves[key][:place]) for key, place in choice.items())

    found, run = followed(values, limit, size, seen=seen)
    assert found.fits is (size({key: steps[-1] for key, steps in values.items()}) <= limit)
    unique = {json.dumps(choice) for choice in run}
    assert len(unique) <= 2 + 3 * sum(map(len, saves.values()))
    chosen = dict.fromkeys(values, 0) | dict(found.changes)
    if found.fits and found.changes:
        assert size(chosen) <= limit
        assert all(size({**chosen, key: place - 1}) > limit for key, place in found.changes.items())

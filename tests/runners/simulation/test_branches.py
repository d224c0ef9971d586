"""What a truth value or a number decides is read from the source of the code that asks for it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from runners.simulation.branches import Branch, Decision, LoopTest, Use, becomes, decides


class Asked:
    """Remembers what the code that asks for its truth decides by it, and answers as if it were a number below all."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self.found: list[LoopTest | Decision | None] = []
        self._answers = answers

    def __bool__(self) -> bool:
        self.found.append(decides(sys._getframe(1), comparing=False))
        return next(self._answers)

    def __lt__(self, other: Any) -> bool:
        self.found.append(decides(sys._getframe(1), comparing=True))
        return next(self._answers)


def role_in(program: Callable[[Any], Any], *answers: bool) -> LoopTest | Decision | None:
    asked = Asked(iter(answers or (True, False)))
    program(asked)
    return asked.found[0]


def use_in(program: Callable[[Any], Any]) -> Use | None:
    found: list[Use | None] = []

    class Number:
        def __int__(self) -> int:
            found.append(becomes(sys._getframe(1)))
            return 1

        __index__ = __int__

    program(Number())
    assert found, "the program did not take the number"
    return next((each for each in found if each is not None), None)


# --- loops ---


def goes_on_while_it_is_true(x: Any) -> None:
    while x:
        pass


def goes_on_while_it_is_less(x: Any) -> None:
    while x < 3:
        pass


def goes_on_while_it_is_false(x: Any) -> None:
    while not x:
        pass


def has_another_condition(x: Any) -> None:
    steps = 0
    while x and steps < 5:
        steps += 1


def breaks(x: Any) -> None:
    for _ in range(3):
        if x < 3:
            break


def returns_unless(x: Any) -> None:
    for _ in range(3):
        if not x:
            return


def breaks_an_endless_loop(x: Any) -> None:
    while True:
        if x:
            break


def breaks_if_any(x: Any) -> None:
    for _ in range(3):
        if any(each < 3 for each in [x]):
            break


def has_a_flag(x: Any) -> None:
    done = False
    while not done:
        done = bool(x < 3)


@pytest.mark.parametrize(
    ("program", "answers", "expected"),
    [
        (goes_on_while_it_is_true, (False,), LoopTest(goes_on=True, ends=False, statement="while")),
        (goes_on_while_it_is_less, (False,), LoopTest(goes_on=True, ends=False, statement="while")),
        (goes_on_while_it_is_false, (True,), LoopTest(goes_on=False, ends=False, statement="while")),
        (has_another_condition, (False,), LoopTest(goes_on=True, ends=True, statement="while")),
        (breaks, (True,), LoopTest(goes_on=False, ends=True, statement="break")),
        (returns_unless, (False,), LoopTest(goes_on=True, ends=True, statement="return")),
        (breaks_an_endless_loop, (True,), LoopTest(goes_on=False, ends=False, statement="break")),
        (breaks_if_any, (True,), LoopTest(goes_on=False, ends=True, statement="break")),
        (has_a_flag, (True,), LoopTest(goes_on=False, ends=False, statement="while")),
    ],
)
def test_a_test_of_a_loop_is_recognised_with_the_value_by_which_the_loop_goes_on(
    program: Callable[[Any], Any], answers: tuple[bool, ...], expected: LoopTest
) -> None:
    assert role_in(program, *answers) == expected


# --- branches ---


def keeps_a_copy(x: Any) -> None:
    if x < 3:
        copy.deepcopy(x)


def only_prints(x: Any) -> None:
    if not x:
        print("small")


def raises(x: Any) -> None:
    if not x:
        raise ValueError


def asserts(x: Any) -> None:
    assert x


def chooses(x: Any) -> Any:
    return bytes(1) if x else bytes(2)


def has_two_conditions(x: Any) -> None:
    if x and len("long") > 9:
        copy.deepcopy(x)


def skips_the_rest(x: Any) -> None:
    for _ in range(1):
        if x:
            continue


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (keeps_a_copy, Decision("if x < 3", may_allocate=True, taken=True)),
        (only_prints, Decision("if not x", may_allocate=False, taken=False)),
        (raises, Decision("if not x", may_allocate=False, fails=False, taken=False)),
        (asserts, Decision("assert x", may_allocate=False, fails=False, taken=True)),
        (chooses, Decision("if x", may_allocate=True, taken=True)),
        (has_two_conditions, Decision("if x and len('long') > 9", may_allocate=True, taken=None)),
        (skips_the_rest, Decision("if x", may_allocate=False, skips=True, taken=True)),
    ],
)
def test_a_branch_is_recognised_with_the_value_by_which_it_is_taken(
    program: Callable[[Any], Any], expected: Decision
) -> None:
    assert role_in(program, True) == expected


def test_a_comparison_inside_of_a_function_of_python_decides_no_branch_by_itself() -> None:
    assert role_in(lambda x: min(1, x)) is None
    assert role_in(lambda x: sorted([1, x])) is None


# --- whole numbers that C takes ---


def shows(x: Any) -> None:
    print(f"{int(x)} of 5", "%d" % x, str(int(x)))  # noqa: UP031 (as programs write it)


def counts(x: Any) -> str:
    correct = 0
    correct += int(x)
    rate = correct / 5
    return f"{rate:.0%}"


def compares(x: Any) -> str:
    return "one" if int(x) == 1 else "another"


def is_a_position(x: Any) -> str:
    return ["a", "b"][x]


def is_an_element(x: Any) -> Any:
    ids = [1, 2]
    ids.append(int(x))
    return np.array([ids]).sum()


@pytest.mark.parametrize("program", [shows, counts, compares, is_a_position, is_an_element])
def test_a_number_that_is_shown_compared_counted_or_an_element_is_of_no_further_use(
    program: Callable[[Any], Any],
) -> None:
    assert use_in(program) is None


def slices(x: Any) -> None:
    [1, 2, 3][:x]


def repeats(x: Any) -> None:
    for _ in range(x):
        pass


def is_named_before(x: Any) -> None:
    number = int(x)
    np.zeros(number + 1)


def is_halved_and_rounded(x: Any) -> None:
    np.zeros(int(int(x) / 2))


def is_returned(x: Any) -> int:
    return int(x)


def is_returned_and_is_a_size(x: Any) -> None:
    range(is_returned(x))


def is_the_length_of_a_list(x: Any) -> None:
    sizes = []
    sizes.append(int(x))
    np.split(np.arange(2), sizes)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (slices, "[1, 2, 3][:x]"),
        (repeats, "range(x)"),
        (is_named_before, "np.zeros(number + 1)"),
        (is_halved_and_rounded, "np.zeros(int(int(x) / 2))"),
        (is_returned_and_is_a_size, "range(is_returned(x))"),
        (is_the_length_of_a_list, "np.split(np.arange(2), sizes)"),
    ],
)
def test_a_number_that_may_decide_a_size_is_found_with_the_code(program: Callable[[Any], Any], code: str) -> None:
    assert use_in(program) == Use(code, is_loop=False)


def is_returned_and_is_shown(x: Any) -> None:
    print(is_returned(x))


def is_collected_and_returned(x: Any) -> list[int]:
    ids = []
    for _ in range(2):
        ids.append(int(x))
    return ids


def is_given_to_a_function_that_compares_it(x: Any) -> None:
    is_below(int(x), 3)


def is_below(number: int, limit: int) -> bool:
    return number < limit


@pytest.mark.parametrize(
    "program", [is_returned_and_is_shown, is_collected_and_returned, is_given_to_a_function_that_compares_it]
)
def test_a_number_is_followed_out_of_and_into_functions(program: Callable[[Any], Any]) -> None:
    def calls(x: Any) -> None:
        print(program(x))

    assert use_in(calls) is None


def test_a_plain_number_that_decides_a_branch_with_memory_is_found() -> None:
    def program(x: Any) -> None:
        if int(x) == 3:
            np.zeros(2)

    assert use_in(program) == Branch("if int(x) == 3")


def grows_a_size(x: Any) -> None:
    size = 8
    if x:
        size *= 2
    np.zeros(size)


def waits(x: Any) -> None:
    waited = 0
    for _ in range(3):
        if x:
            waited += 1
        if waited >= 2:
            break


def sets_a_switch(x: Any) -> None:
    is_large = False
    if x:
        is_large = True
    if is_large:
        np.zeros(2)


def lets_go(x: Any) -> None:
    buffer: Any = np.zeros(2)
    if x:
        buffer = None
    print(buffer)


def keeps(x: Any) -> None:
    kept, value = [], np.zeros(2)
    if x:
        kept.append(value)
    print(len(kept))


@pytest.mark.parametrize("program", [grows_a_size, waits, sets_a_switch, lets_go, keeps])
def test_a_branch_that_sets_what_decides_memory_later_may_allocate(program: Callable[[Any], Any]) -> None:
    role = role_in(program, *[True] * 3)
    assert isinstance(role, Decision)
    assert role.may_allocate


def counts_and_shows(x: Any) -> None:
    count = 0
    if x:
        count += 1
    print(count)


def lowers_a_rate(x: Any) -> None:
    rate = 0.1
    if x:
        rate *= 0.5
    np.random.default_rng(0).normal(rate)


@pytest.mark.parametrize("program", [counts_and_shows, lowers_a_rate])
def test_a_branch_that_counts_what_is_shown_does_not(program: Callable[[Any], Any]) -> None:
    role = role_in(program, True)
    assert isinstance(role, Decision)
    assert not role.may_allocate


def test_a_number_that_decides_when_a_loop_ends_is_no_size() -> None:
    def program(x: Any) -> None:
        while int(x) > 1:
            pass

    assert use_in(program) == Use("int(x) > 1", is_loop=True)

"""A value that JSON gave a field is of the type that the field declares, or is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from runners import facts
from runners.device import Device
from runners.field_types import check_fields, check_keys, check_of
from runners.point import Attempt, Point

DEEP: Any = 1
for _ in range(100):
    DEEP = [DEEP]


class Inner(NamedTuple):
    size_bytes: int | None
    name: str = ""


@dataclass(frozen=True)
class Outer:
    inner: Sequence[Inner] = ()
    limits_bytes: tuple[int, int] | None = None


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (int, [0, -5, 2**63 - 1, -(2**63)], [True, 1.0, "1", None, 2**63, -(2**63) - 1, [], {}]),
        (float, [0.5, -1.0, 3], [True, "1", None, float("inf"), float("nan"), 2**70]),
        (str, ["", "a\0b"], [None, 1, ["a"]]),
        (bool, [True, False], [0, 1, None, "true"]),
        (int | None, [None, 1], [False, "1"]),
        (str | bool | None, ["a", True, None], [1, []]),
        (
            Mapping[str, int],
            [{}, {"a": 0, "b": 2**63 - 1}],
            [[], None, {"a": -1}, {"a": True}, {"a": 1.0}, {"a": 2**63}],
        ),
        (Mapping[str, str | None], [{}, {"a": None, "b": "c"}], [{"a": 1}, {"a": []}]),
        (Mapping[str, Any], [{}, {"a": [1, {"b": None}]}], [[], {"a": float("nan")}, {"a": DEEP}, {"a": object()}]),
        (Sequence[str], [[], ["a"], ("a", "b")], ["ab", [1], {"a": 1}, None]),
        (tuple[str, ...], [(), ("a",)], [(1,), "a"]),
        (Any, [None, 1, "a", 2**80, [[]]], [float("inf"), DEEP, {1, 2}]),
        (Inner, [Inner(0), Inner(None)], [Inner(-1), Inner(True), Inner(1, 5), (1, "")]),  # type: ignore[arg-type]
    ],
)
def test_a_value_is_of_a_type_or_not(kind: Any, fitting: list[Any], others: list[Any]) -> None:
    accepts = check_of(kind)
    assert [value for value in fitting if not accepts(value)] == []
    assert [value for value in others if accepts(value)] == []


def test_the_first_field_with_a_value_of_another_type_is_named() -> None:
    check_fields(Outer([Inner(5)], (1, 2)))
    with pytest.raises(TypeError, match="inner has a value of another type"):
        check_fields(Outer([Inner(5), Inner(-5)]))
    with pytest.raises(TypeError, match="limits_bytes"):
        check_fields(Outer((), ("a", 2)))  # type: ignore[arg-type]


def test_a_key_may_be_missing_but_not_of_another_type() -> None:
    check_keys({"b": 1}, {"a": int})
    with pytest.raises(TypeError, match="a has a value of another type"):
        check_keys({"a": "1"}, {"a": int})


@pytest.mark.parametrize("kind", [*facts.KINDS, facts.Exit, facts.Counters, Attempt, Device, Point])
def test_every_type_that_is_read_from_a_file_can_be_checked(kind: Any) -> None:
    assert not check_of(kind)("text")

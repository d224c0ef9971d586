"""workload=command: the arguments of a program as typed, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from sweeper.errors import Mistake
from sweeper.plan import Plan
from sweeper.planning.command_line import read
from sweeper.planning.planner import plan_of
from sweeper.planning.probes import Probes

COMMAND = "workload=command"


def plan(*overrides: str) -> Plan:
    with Probes() as probes:
        return plan_of(read(["devices=cpu", COMMAND, *overrides]), probes, lambda message: None)


def argv(typed: str, *overrides: str) -> list[str]:
    (point, *_) = plan(f"workload.argv={typed}", *overrides).points
    words: list[str] = point["workload.argv"]
    return words


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("[python,train.py,--bs,{batch}]", ["python", "train.py", "--bs", "{batch}"]),  # as a shell leaves '{batch}'
        ("""[python,train.py,--bs,'{batch}']""", ["python", "train.py", "--bs", "{batch}"]),
        ("""[python,"--bs={batch}",'it''s']""", None),
        ("[python, --lr=1e-3, 1e-3, 007, True, null, -5]", [
            "python", "--lr=1e-3", "1e-3", "007", "True", "null", "-5",
        ]),
        ("""[python,-c,"print(1, [2])",*;$HOME]""", ["python", "-c", "print(1, [2])", "*;$HOME"]),
        ("[python,{{1: 2}}]", ["python", "{{1: 2}}"]),
        (r"[python,a\b]", ["python", r"a\b"]),
    ],
)  # fmt: skip
def test_arguments_are_kept_as_typed(typed: str, words: list[str] | None) -> None:
    if words is None:
        with pytest.raises(Mistake, match="cannot read"):
            argv(typed)
    else:
        assert argv(typed) == words


def test_a_point_has_only_the_keys_that_the_arguments_name() -> None:
    planned = plan("workload.argv=[python,{batch},{width}]", "batch=1,2", "workload.params.width=8")
    assert [point["batch"] for point in planned.points] == [1, 2]
    first = planned.points[0]
    assert (first["context"], first["dtype"], first["model"]) == (None, None, None)
    assert first["workload.params.width"] == 8


def test_a_sweep_can_compare_programs() -> None:
    words = [point["workload.argv"] for point in plan("workload.argv=[python,a.py],[python,b.py]").points]
    assert words == [["python", "a.py"], ["python", "b.py"]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "workload.argv has no value: give it one, as in workload.argv=[python,train.py,--bs,'{batch}']"),
        (["workload.argv=train.py"], "workload.argv=train.py: must be a list of words"),
        (["workload.argv=[]"], "must be a list of words"),
        (["workload.argv=[python,{btach}]"], "workload.argv: {btach} is not defined (did you mean batch?)"),
        (["workload.argv=[python,{width}]"], "{width} is not defined; workload.params.width=... would define it"),
        (["workload.argv=[python,{batch]"], "workload.argv: '{batch': braces take a name and no more"),
        (["workload.argv=[python,{batch:3}]"], "braces take a name and no more, as in {batch}; {{ and }} are braces"),
        (["workload.argv=[python,{batch}]", "context=1,2"], "context has several values, and workload.argv has no {"),
        (["workload.argv=[python]", "workload.params.width=1,2"], "params.width: workload.argv takes no width"),
        (["workload.argv=[python]", "workload.params.batch=1"], "workload.params.batch: batch is given by sweeper"),
        (["workload.argv=[python]", "model=mlp,gpt2"], "model has several values, and workload=command does not use"),
        (["workload.argv=[no-such-program]"], "no-such-program is neither an executable file nor a name on PATH"),
    ],
)
def test_arguments_that_a_program_cannot_be_given_are_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(Mistake) as mistake:
        plan(*overrides)
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)

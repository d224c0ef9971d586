"""What every command prints of awkward values (1, 0, null, true, one attempt) is as a person would type or write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.facts import ALLOCATOR, DATA_LIMIT
from runners.outcome import UNAVAILABLE, Status
from sweeper import cli
from sweeper.tables.run_tables import Tables
from sweeper.views.layout import error_text, shortened
from sweeper.views.progress import ENDINGS, outcome_text
from tests.sweeper.conftest import MIB, WrittenRun, failed, started
from tests.sweeper.views.test_progress import outcome

NEVER = {
    "a value as Python prints it": r"\b(True|False|None|nan|inf)\b",
    "a plural of one": r"(?<![\d.,])\b1 (points|attempts|runs|devices|tokens|terms|samples|cards|phases|processes)\b",
    "a class or module of ours": r"\b(runners|sweeper)\.[a-z_]+\.|<[a-z_.]+ object|Status\.",
    "a mapping or list as Python prints it": r"\{'|\['|\('",
    "an identifier of a limit": r"\b(data_limit|inherited_data_limit|address_limit)\b",
    "the end of a float": r"\d\.\d{7,}",
    "two spaces in a sentence": r"[a-z,;] {2}\b(of|and|the|in|is|to)\b",
    "an empty pair of brackets": r"\(\s*\)|\[\s*\](?!\))",
}
Fill = Callable[[WrittenRun], None]


def one_point(run: WrittenRun) -> None:
    run.passes(run.ask(batch=1, context=1))


def one_refused(run: WrittenRun) -> None:
    run.is_refused(run.ask(batch=1, context=1))


def one_error(run: WrittenRun) -> None:
    run.raises(run.ask(batch=1, context=1), message="")


def one_unavailable(run: WrittenRun) -> None:
    cause = {"type": UNAVAILABLE, "bases": ["Exception"], "message": "peft is not installed: pip install peft"}
    run.attempt(run.ask(batch=1), [*started()[:1], failed(cause)], {"code": 0, "signal": None})


def one_skipped(run: WrittenRun) -> None:
    fits = run.passes(run.ask(batch=2))
    run.skip(run.ask(batch=1), fits)


def one_flaky(run: WrittenRun) -> None:
    point = run.ask(batch=1)
    run.passes(point)
    run.is_refused(point, number=2)


def swept_switches(run: WrittenRun) -> None:
    for checkpointing in (True, False):
        for precision in (None, "bfloat16"):
            workload = {"name": "train", "checkpointing": checkpointing, "precision": precision, "lr": 0.1 + 0.2}
            run.passes(run.ask(batch=1, workload=workload, timeout=None, seed=0))


def under_a_budget(run: WrittenRun) -> None:
    for kind in (DATA_LIMIT, "inherited_data_limit", "address_limit", ALLOCATOR, "cgroup", "tensors", "guard"):
        budget = {"kind": "budget", "budget_kind": kind, "budget_bytes": 83 * MIB}
        point = run.ask(batch=1, budget=83 * MIB, env={"X": str(len(kind))})
        run.attempt(point, [*started(), budget, {"kind": "finished"}], {"code": 0, "signal": None})


def nothing(run: WrittenRun) -> None:
    run.ask(batch=1)


def every_ending(run: WrittenRun) -> None:
    for batch, ended in enumerate(({"code": 0}, {"code": 7}, {"signal": 9}, {"signal": 11}, {"timed_out": True}), 1):
        run.ends(run.ask(batch=batch), **{"code": None, "signal": None, **ended})


FILLS = (
    one_point, one_refused, one_error, one_unavailable, one_skipped, one_flaky, swept_switches, under_a_budget, nothing,
    every_ending,
)  # fmt: skip


def found_in(text: str) -> list[str]:
    return [f"{kind}: {line}" for line in text.splitlines() for kind, form in NEVER.items() if re.search(form, line)]


@pytest.mark.parametrize("command", ["frontier", "effects", "estimate"])
@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: fill.__name__)
def test_a_command_about_a_run_prints_nothing_as_the_program_holds_it(
    written: Callable[..., WrittenRun], fill: Fill, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written({"batch": [1]})
    fill(run)
    Tables(run.folder).write()
    cli.run([command, str(run.folder)])
    text = capsys.readouterr().out
    assert text.strip()
    assert found_in(text.replace(str(run.folder), "outputs/bill")) == []


def outcomes() -> Iterator[Any]:
    for status in ENDINGS:
        yield outcome(status)
        yield outcome(status, 83 * MIB, "cuda:0", failed_phase="cold_step", error_type=UNAVAILABLE, error_message="no")
        yield outcome(status, 0, error_type="runners.phases.ProgramFailed", error_message="exit code 1")
        yield outcome(status, 1, handled_refusals=1, other_processes=1, other_processes_resident_bytes=1)


@pytest.mark.parametrize("ended", list(outcomes()), ids=lambda ended: str(ended.status))
def test_the_line_of_an_attempt_prints_nothing_as_the_program_holds_it(ended: Any) -> None:
    assert found_in(outcome_text(ended)) == []


def test_the_estimate_of_one_point_has_no_plural(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["batch=1", "context=1", "model.config.num_hidden_layers=1", "devices=cpu", f"outputs={tmp_path}"]
    cli.run(["estimate", *words])
    assert found_in(capsys.readouterr().out) == []


def test_a_flaky_point_is_named(written: Callable[..., WrittenRun], capsys: pytest.CaptureFixture[str]) -> None:
    run = written({"batch": [1]})
    one_flaky(run)
    Tables(run.folder).write()
    cli.run(["frontier", str(run.folder)])
    assert (
        "flaky:               batch=1 context=64 passed and failed; not counted as fitting" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("text", "longest", "shown"),
    [
        ("one two three", 13, "one two three"),
        ("one two three", 12, "one two ..."),
        ("torch emulates (it only)", 20, "torch emulates ..."),
        ("adamw-8bit, adamw", 15, "adamw-8bit ..."),
        ("x" * 20, 10, "xxxxxxx..."),
    ],
)
def test_a_long_text_is_cut_between_words(text: str, longest: int, shown: str) -> None:
    assert shortened(text, longest) == shown
    assert len(shown) <= longest


def test_an_exception_of_ours_has_no_class_and_one_of_the_users_has_no_module() -> None:
    assert error_text(UNAVAILABLE, "no bfloat16") == "no bfloat16"
    assert error_text("mywork.models.Odd", "too wide") == "Odd: too wide"
    assert error_text("mywork.models.Odd", "") == "Odd"
    assert error_text(None, None) == ""
    assert str(Status.ERROR) == "error"

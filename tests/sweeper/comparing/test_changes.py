"""`compare`: what counts as a change between two runs, and what does not."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from sweeper import cli
from sweeper.comparing.changes import RunChanges
from sweeper.errors import Mistake
from sweeper.tables import loading
from sweeper.tables.run_tables import Tables
from sweeper.views.run_changes import Comparison, as_json, as_text, comparison, csv_of, markdown_of
from tests.sweeper import conftest
from tests.sweeper.conftest import MIB, WrittenRun, failed, phase, started

Written = Callable[..., WrittenRun]


class Pair:
    """Two runs of the same points, which end as they are told to."""

    def __init__(self, written: Written, devices: tuple[str, ...] = ("cpu",)) -> None:
        self.before = written({"batch": [1, 2, 4]}, devices=devices, name="before")
        self.after = written({"batch": [1, 2, 4]}, devices=devices, name="after")

    def compared(self, fail_above: str | None = None, counters: str | None = None) -> Comparison:
        folders = (self.before.folder, self.after.folder)
        for folder in folders:
            Tables(folder).write()
        return comparison(folders, (loading.read(folders[0]), loading.read(folders[1])), fail_above, counters)

    def found(self, fail_above: str | None = None) -> RunChanges:
        return self.compared(fail_above).found


@pytest.fixture
def pair(written: Written) -> Pair:
    return Pair(written)


def grown(found: RunChanges) -> list[tuple[str, int]]:
    return [(each.counter, each.bytes) for each in found.changed_peaks]


def test_a_peak_that_grew_beyond_the_threshold_is_a_change(pair: Pair) -> None:
    for run, peak in ((pair.before, 400 * MIB), (pair.after, 409 * MIB)):
        run.passes(run.ask(batch=1), peak)
    assert ("resident", 9 * MIB) in grown(pair.found("2%"))
    assert pair.compared("2%").exit_code == 4
    assert "resident" not in dict(grown(pair.found("3%")))


def test_a_smaller_peak_is_a_change_and_fails_no_gate(pair: Pair) -> None:
    for run, peak in ((pair.before, 400 * MIB), (pair.after, 300 * MIB)):
        run.passes(run.ask(batch=1), peak)
    compared = pair.compared("2%")
    assert ("resident", -100 * MIB) in grown(compared.found)
    assert compared.exit_code == 0


@pytest.mark.parametrize(
    ("after", "changes"), [((425,), False), ((431,), False), ((415, 460), False), ((470, 480), True)]
)
def test_a_difference_within_the_spread_of_repeats_is_no_change(
    pair: Pair, after: tuple[int, ...], changes: bool
) -> None:
    """Before, the point was measured three times, between 400 and 430 MiB."""
    for run, peaks in ((pair.before, (400, 430, 410)), (pair.after, after)):
        point = run.ask(batch=1)
        for number, peak in enumerate(peaks, 1):
            run.passes(point, peak * MIB, number=number)
    counted = {each.counter: each for each in pair.found("0.1%").peaks}
    assert counted["resident"].spread_bytes == max(30, max(after) - min(after)) * MIB
    assert counted["resident"].is_change is changes  # 431 is beyond the range of before, but by less than its spread


def test_repeats_in_another_environment_are_no_spread(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [run.ask(batch=1) for run in (pair.before, pair.after)]
    monkeypatch.setattr(conftest, "RECORD", conftest.RECORD | {"torch": "2.12.0"})
    pair.before.passes(points[0], 300 * MIB, number=1)
    monkeypatch.undo()
    pair.before.passes(points[0], 400 * MIB, number=2)
    pair.after.passes(points[1], 420 * MIB)
    (resident,) = [each for each in pair.found("1%").peaks if each.counter == "resident"]
    assert resident.spread_bytes is None


def test_a_point_that_no_longer_fits_comes_first_and_fails_the_gate(pair: Pair) -> None:
    for batch in (1, 2, 4):
        before, after = pair.before.ask(batch=batch), pair.after.ask(batch=batch)
        {1: pair.before.is_refused, 2: pair.before.raises}.get(batch, pair.before.passes)(before)
        {2: pair.after.ends}.get(batch, pair.after.passes if batch == 1 else pair.after.is_refused)(after)
    compared = pair.compared("50%")
    assert [(each.how, each.second["batch"]) for each in compared.found.statuses] == [
        ("no longer fits", 4),
        ("now fits", 1),
        ("other", 2),
    ]
    assert compared.exit_code == 4
    text = as_text(compared)
    assert text.index("NO LONGER FITS") < text.index("NOW FITS") < text.index("OTHER CHANGES OF STATUS")
    assert "batch=4: fits -> out of memory in cold_forward" in text


@pytest.mark.parametrize(("status", "code"), [("raises", 4), ("is_refused", 4), ("nothing", 3)])
def test_the_gate_tells_a_point_that_fails_from_one_that_was_not_decided(pair: Pair, status: str, code: int) -> None:
    pair.before.passes(pair.before.ask(batch=1))
    point = pair.after.ask(batch=1)
    if status != "nothing":
        getattr(pair.after, status)(point)
    compared = pair.compared("2%")
    assert compared.exit_code == code
    assert f"(exit code {code})" in as_text(compared)


def test_without_a_gate_a_change_is_no_failure(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1))
    pair.after.is_refused(pair.after.ask(batch=1))
    assert pair.compared().exit_code == 0


def test_a_partial_peak_is_compared_with_nothing(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1), 800 * MIB)
    pair.after.raises(pair.after.ask(batch=1))
    found = pair.found()
    assert list(found.peaks) == []
    assert len(found.partial) == 1


def test_a_counter_is_compared_with_the_same_counter_only(pair: Pair) -> None:
    for run in (pair.before, pair.after):
        run.passes(run.ask(batch=1), 400 * MIB)
    assert {each.counter: each.first_bytes for each in pair.found().peaks} == {
        "tensor": 400 * MIB - conftest.BASELINE,
        "resident": 400 * MIB,
    }


def test_a_point_stays_the_same_when_versions_change_and_the_versions_are_listed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.before.passes(pair.before.ask(batch=1))
    newer = {"torch": "2.14.0", "libraries": {"transformers": "5.25.0"}, "workload_code": "abc"}
    monkeypatch.setattr(conftest, "RECORD", conftest.RECORD | newer)
    pair.after.passes(pair.after.ask(batch=1))
    found = pair.found()
    assert len(found.points.pairs) == 1
    assert {each.name: (list(each.first), list(each.second)) for each in found.environment} == {
        "torch": (["2.13.0+cpu"], ["2.14.0"]),
        "library transformers": (["5.24.0"], ["5.25.0"]),
        "workload_code": ([], ["abc"]),
    }
    assert "torch                 2.13.0+cpu  ->  2.14.0" in as_text(pair.compared())


def test_points_that_differ_only_in_a_key_that_one_run_lacks_are_joined_and_it_is_named(pair: Pair) -> None:
    for batch in (1, 2):
        pair.before.passes(pair.before.ask(batch=batch))
        pair.after.passes(pair.after.ask(batch=batch, attention=None))
    compared = pair.compared()
    assert len(compared.found.points.pairs) == 2
    assert compared.found.points.lacking == {"attention": [None]}
    assert "joined without the key attention (null), which one of the runs lacks" in as_text(compared)


def test_a_key_that_one_run_lacks_and_the_other_varies_joins_nothing(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1))
    for attention in ("eager", "sdpa"):
        pair.after.passes(pair.after.ask(batch=1, attention=attention))
    with pytest.raises(Mistake, match="share no point"):
        pair.compared()


def test_a_card_that_has_another_number_is_the_same_device_where_there_is_one_only(written: Written) -> None:
    before = written({"batch": [1]}, devices=("cuda:0",), name="before")
    after = written({"batch": [1]}, devices=("cuda:1",), name="after")
    for run, device in ((before, "cuda:0"), (after, "cuda:1")):
        run.passes(run.ask(), device=device)
        Tables(run.folder).write()
    folders = (before.folder, after.folder)
    compared = comparison(folders, (loading.read(folders[0]), loading.read(folders[1])))
    assert compared.found.points.devices == {"cuda:0": "cuda:1"}
    assert "joined cuda:0 of before with cuda:1 of after" in as_text(compared)


def test_points_only_in_one_run_are_listed(pair: Pair) -> None:
    for run, batches in ((pair.before, (1, 2)), (pair.after, (1, 4))):
        for batch in batches:
            run.passes(run.ask(batch=batch))
    text = as_text(pair.compared())
    assert "1 point in both, 1 only in before, 1 only in after" in text
    assert "ONLY IN before\n  cpu  batch=2: ok" in text
    assert "ONLY IN after\n  cpu  batch=4: ok" in text


def test_two_runs_that_share_no_point_are_a_mistake_that_says_what_differs(pair: Pair) -> None:
    """Each context of one run could stand for each of the other."""
    for context in (64, 96):
        pair.before.passes(pair.before.ask(batch=1, context=context))
    for context in (128, 256):
        pair.after.passes(pair.after.ask(batch=1, context=context))
    cure = "sweep all the values in one run, and sweeper effects RUN shows what each key changes"
    with pytest.raises(Mistake, match=f"share no point: they differ in context 64, 96 and 128, 256; {cure}"):
        pair.compared()


@pytest.mark.parametrize(("peak", "code"), [(500, 4), (401, 0), (300, 0)])
def test_runs_with_one_value_each_of_a_setting_are_joined_on_the_rest_and_judged(
    pair: Pair, peak: int, code: int
) -> None:
    for batch in (1, 2, 4):
        pair.before.passes(pair.before.ask(batch=batch, quantize=None), 400 * MIB)
    for batch in (1, 2):
        pair.after.passes(pair.after.ask(batch=batch, quantize="nf4"), peak * MIB)
    pair.after.passes(pair.after.ask(batch=4, quantize="nf4"), 400 * MIB)
    compared = pair.compared("5%")
    assert as_text(compared).splitlines()[0] == (
        "before -> after: the runs differ in quantize: null, nf4; 3 points in both"
    )
    assert [(first["batch"], second["batch"]) for first, second in compared.found.points.pairs] == [
        (1, 1),
        (2, 2),
        (4, 4),
    ]
    assert compared.exit_code == code
    assert as_json(compared)["points"]["differ_in"] == {"quantize": {"before": None, "after": "nf4"}}
    assert {each["point"] for each in as_json(compared)["peaks"]} == {"batch=1", "batch=2", "batch=4"}


def test_several_settings_that_differ_between_runs_are_all_named(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1, dtype="float32", context=64))
    pair.after.passes(pair.after.ask(batch=1, dtype="bfloat16", context=128))
    compared = pair.compared()
    assert set(compared.found.points.apart.items()) == {("dtype", ("float32", "bfloat16")), ("context", (64, 128))}
    first = as_text(compared).splitlines()[0]
    assert "the runs differ in " in first
    assert "dtype: float32, bfloat16" in first
    assert "context: 64, 128" in first


def test_runs_that_share_a_point_are_not_joined_on_anything_else(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1, context=64))
    for context in (64, 128):
        pair.after.passes(pair.after.ask(batch=1, context=context))
    found = pair.found()
    assert (len(found.points.pairs), len(found.points.only_in_second)) == (1, 1)
    assert found.points.apart == {}


def test_calculated_and_measured_are_compared_apart_and_fail_no_gate(written: Written) -> None:
    pair = Pair(written, devices=("cpu", "sim:cpu"))
    for run in (pair.before, pair.after):
        point = run.ask(batch=1)
        run.passes(point, 400 * MIB)
        run.passes(point, 500 * MIB, device="sim:cpu")
    compared = pair.compared("2%")
    assert [(each.counter, each.bytes) for each in compared.found.calculated] == [
        ("tensor", 100 * MIB),
        ("resident", 100 * MIB),
    ]
    assert compared.exit_code == 0
    assert "CALCULATED AGAINST MEASURED (the same point; never part of a change)" in as_text(compared)


def test_a_calculated_run_and_a_measured_one_are_compared_although_no_device_is_in_both(written: Written) -> None:
    before = written({"batch": [1]}, devices=("sim:cpu",), name="before")
    after = written({"batch": [1]}, devices=("cpu",), name="after")
    before.passes(before.ask(), device="sim:cpu")
    after.passes(after.ask())
    for run in (before, after):
        Tables(run.folder).write()
    folders = (before.folder, after.folder)
    tables = (loading.read(folders[0]), loading.read(folders[1]))
    assert comparison(folders, tables).found.calculated[0].across
    with pytest.raises(Mistake, match="share no point"):  # a gate would have nothing to judge
        comparison(folders, tables, "2%")


def test_every_form_has_the_same_changes(pair: Pair) -> None:
    for batch in (1, 2):
        pair.before.passes(pair.before.ask(batch=batch), 400 * MIB)
        pair.after.passes(pair.after.ask(batch=batch), (400 + 20 * batch) * MIB)
    compared = pair.compared("6%")
    found: dict[str, Any] = json.loads(json.dumps(as_json(compared)))
    changed = [each for each in found["peaks"] if each["is_change"] and each["counter"] == "resident"]
    assert [(each["point"], each["difference_bytes"]) for each in changed] == [("batch=2", 40 * MIB)]
    rows = [row for row in csv.DictReader(io.StringIO(csv_of(compared))) if row["counter"] == "resident"]
    assert [(row["point"], row["after_bytes"], row["is_change"]) for row in rows] == [
        ("batch=1", str(420 * MIB), "false"),
        ("batch=2", str(440 * MIB), "true"),
    ]
    assert "| cpu | batch=2 | resident | 400.00 MiB | 440.00 MiB | +40.00 MiB | +10.00 % | - |" in markdown_of(compared)
    assert "| cpu | batch=1 | resident" not in markdown_of(compared)


def test_a_narrow_terminal_loses_no_figure(pair: Pair) -> None:
    for number in range(50):
        for run, peak in ((pair.before, 400 * MIB), (pair.after, 440 * MIB)):
            run.passes(run.ask(batch=1, seed=number, context=4096 + number), peak)
    compared = pair.compared("6%")
    text = as_text(compared, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("400.00 MiB -> 440.00 MiB  +40.00 MiB +10.00 %") + text.count("181.00 MiB -> 221.00 MiB") == 40
    assert "... and 60 more" in text
    assert as_text(compared).count("+10.00 %") + as_text(compared).count("+22.10 %") == 40


def test_the_command_ends_with_four_beyond_its_threshold(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    for run, peak in ((pair.before, 400 * MIB), (pair.after, 440 * MIB)):
        run.passes(run.ask(batch=1), peak)
        Tables(run.folder).write()
    runs = [str(pair.before.folder), str(pair.after.folder)]
    assert cli.run(["compare", *runs, "--fail-above", "5%"]) == 4
    assert cli.run(["compare", *runs, "--fail-above=60%"]) == 0
    assert cli.run(["compare", *runs]) == 0
    assert (
        "--fail-above 5 %: 1 peak of tensor grew by more than 5 %; 1 point and 1 peak of tensor were compared;"
        " 1 peak of resident grew and was not judged (--counter resident) (exit code 4)"
    ) in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [[], ["a", "b", "c"]])
def test_compare_takes_two_runs(words: list[str]) -> None:
    with pytest.raises(Mistake, match="write sweeper compare BEFORE AFTER"):
        cli.run(["compare", *words])


def test_a_run_that_is_named_twice_is_refused_as_the_same_folder(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1))
    Tables(pair.before.folder).write()
    folder = str(pair.before.folder)
    for second in (folder, f"{folder}/", f"{folder}/../before"):
        for flags in ([], ["--fail-above", "2%"]):
            with pytest.raises(Mistake, match="both are the same folder; name two runs, BEFORE and AFTER, or one run"):
                cli.run(["compare", folder, second, *flags])


def test_a_flaky_point_counts_as_one_that_does_not_fit(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1))
    point = pair.after.ask(batch=1)
    pair.after.passes(point, number=1)
    lines = [*started(), *phase("cold_forward", 300 * MIB, False), failed(conftest.OUT_OF_MEMORY)]
    pair.after.attempt(point, lines, {"code": 0, "signal": None}, number=2)
    compared = pair.compared("50%")
    assert [each.how for each in compared.found.statuses] == ["no longer fits"]
    assert compared.exit_code == 4


@pytest.mark.parametrize("command", ["list", "show", "compare"])
def test_each_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: sweeper {command}" in capsys.readouterr().out

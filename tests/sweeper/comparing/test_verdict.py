"""The verdict of `compare`: green only if something was compared and nothing that fitted is missing."""

from __future__ import annotations

import pytest

from sweeper import cli
from sweeper.comparing.verdict import counters_named
from sweeper.errors import Mistake
from sweeper.tables.run_tables import Tables
from sweeper.views.run_changes import as_json, as_text
from tests.sweeper.comparing.test_changes import Pair, Written
from tests.sweeper.conftest import MIB, phase, started


@pytest.fixture
def pair(written: Written) -> Pair:
    return Pair(written)


def last_line(pair: Pair, fail_above: str | None = "2%", counters: str | None = None) -> str:
    return as_text(pair.compared(fail_above, counters)).splitlines()[-1]


def test_a_gate_that_compared_no_peak_is_undecided(pair: Pair) -> None:
    for run in (pair.before, pair.after):
        for batch in (1, 2, 4):
            run.raises(run.ask(batch=batch))
    assert last_line(pair) == ("--fail-above 2 %: 0 points and 0 peaks were compared, 3 points were not (exit code 3)")


def test_points_that_are_refused_in_both_runs_are_compared_and_are_no_peaks(pair: Pair) -> None:
    for run in (pair.before, pair.after):
        run.is_refused(run.ask(batch=4))
    assert "1 point and 0 peaks were compared (exit code 3)" in last_line(pair)
    for run in (pair.before, pair.after):
        run.passes(run.ask(batch=1))
    assert last_line(pair) == (
        "--fail-above 2 %: no point that fitted fails, and no peak of tensor grew by more than 2 %; 2 points and"
        " 1 peak of tensor were compared (exit code 0)"
    )


@pytest.mark.parametrize(("before", "after", "code"), [((1, 2), (1,), 3), ((1,), (1, 2), 0)])
def test_a_point_that_fitted_and_is_missing_leaves_the_gate_undecided(
    pair: Pair, before: tuple[int, ...], after: tuple[int, ...], code: int
) -> None:
    for run, batches in ((pair.before, before), (pair.after, after)):
        for batch in batches:
            run.passes(run.ask(batch=batch))
    assert pair.compared("2%").exit_code == code
    line = last_line(pair)
    assert ("1 point that fitted has no counterpart; otherwise no point that fitted fails" in line) is (code == 3)
    assert ("1 point and 1 peak of tensor were compared, 1 point was not" in line) is (code == 3)


def test_a_missing_point_that_never_fitted_is_counted_and_does_not_fail_the_gate(pair: Pair) -> None:
    for run in (pair.before, pair.after):
        run.passes(run.ask(batch=1))
    pair.before.is_refused(pair.before.ask(batch=4))
    assert pair.compared("2%").exit_code == 0
    assert "were compared, 1 point was not" in last_line(pair)


def test_a_peak_that_grew_outweighs_a_missing_point(pair: Pair) -> None:
    pair.before.passes(pair.before.ask(batch=1), 300 * MIB)
    pair.before.passes(pair.before.ask(batch=2), 300 * MIB)
    pair.after.passes(pair.after.ask(batch=1), 400 * MIB)
    assert pair.compared("2%").exit_code == 4
    assert "1 peak of tensor grew by more than 2 %; 1 point that fitted has no counterpart" in last_line(pair)


def on_a_card(pair: Pair, before: dict[str, int], after: dict[str, int]) -> None:
    """One point on cuda:0 with its peaks in MiB."""
    for run, peaks in ((pair.before, before), (pair.after, after)):
        lines = phase("cold_forward", 300 * MIB, device="cuda:0")
        zeros = dict.fromkeys(peaks, 0)
        for line in lines:
            for counters in line.get("counters", {}).values():
                counters.update({name: zeros for name in counters if name in ("baseline", "end", "peak")})
        lines[-1]["counters"]["cuda:0"]["peak"] = {name: peak * MIB for name, peak in peaks.items()}
        finished = {"kind": "finished", "metrics": {}, "steps": None, "tokens": 64}
        run.attempt(run.ask(batch=1), [*started(), *lines, finished], {"code": 0, "signal": None}, device="cuda:0")


def test_a_card_is_judged_by_what_is_allocated_and_reserved_is_shown(written: Written) -> None:
    pair = Pair(written, devices=("cuda:0",))
    on_a_card(pair, {"allocated": 156, "reserved": 172}, {"allocated": 120, "reserved": 178})
    compared = pair.compared("2%")
    assert compared.exit_code == 0
    assert {(each.counter, each.bytes) for each in compared.found.changed_peaks} == {
        ("allocated", -36 * MIB),
        ("reserved", 6 * MIB),
    }
    assert last_line(pair) == (
        "--fail-above 2 %: no point that fitted fails, and no peak of allocated grew by more than 2 %; 1 point and"
        " 1 peak of allocated were compared; 1 peak of reserved grew and was not judged (--counter reserved)"
        " (exit code 0)"
    )
    judged = {each["counter"]: each["is_judged"] for each in as_json(compared)["peaks"]}
    assert judged == {"allocated": True, "reserved": False}


@pytest.mark.parametrize(("counters", "code"), [("reserved", 4), ("allocated,reserved", 4), ("allocated", 0)])
def test_other_counters_can_be_chosen(written: Written, counters: str, code: int) -> None:
    pair = Pair(written, devices=("cuda:0",))
    on_a_card(pair, {"allocated": 156, "reserved": 172}, {"allocated": 120, "reserved": 178})
    assert pair.compared("2%", counters).exit_code == code


def test_a_counter_that_no_point_has_is_not_claimed_to_have_been_compared(written: Written) -> None:
    pair = Pair(written, devices=("cuda:0",))
    on_a_card(pair, {"allocated": 156, "reserved": 172}, {"allocated": 120, "reserved": 172})
    assert last_line(pair, "2%", "reserved,tensor") == (
        "--fail-above 2 %: no point that fitted fails, and no peak of reserved grew by more than 2 %; 1 point and"
        " 1 peak of reserved were compared (exit code 0)"
    )


def test_a_counter_that_one_run_lacks_leaves_the_gate_undecided(written: Written) -> None:
    pair = Pair(written, devices=("cuda:0",))
    on_a_card(pair, {"allocated": 156, "reserved": 172}, {"reserved": 172})
    compared = pair.compared("2%")
    assert compared.exit_code == 3
    assert (
        "1 point that fits in both has no peak of allocated in both; 0 points and 0 peaks were compared"
        in last_line(pair)
    )
    assert pair.compared("2%", "reserved").exit_code == 0


def test_the_cpu_is_judged_by_its_tensors_unless_resident_is_chosen(pair: Pair) -> None:
    for run, tensors in ((pair.before, 100), (pair.after, 100)):
        lines = phase("cold_forward", 400 * MIB)
        peak = lines[-1]["counters"]["cpu"]["peak"]
        peak |= {"tensor": tensors * MIB, "resident": (400 if run is pair.before else 440) * MIB}
        finished = {"kind": "finished", "metrics": {}, "steps": None, "tokens": 64}
        run.attempt(run.ask(batch=1), [*started(), *lines, finished], {"code": 0, "signal": None})
    assert pair.compared("5%").exit_code == 0
    assert "1 peak of resident grew and was not judged (--counter resident)" in last_line(pair, "5%")
    assert pair.compared("5%", "resident").exit_code == 4


def test_a_pass_that_may_have_done_less_is_not_decided(pair: Pair) -> None:
    """The second run's workload continued after a refused allocation."""
    pair.before.passes(pair.before.ask(batch=1))
    lines = phase("cold_forward", 300 * MIB)
    lines[-1]["counters"]["cpu"] |= {"refusals": 1, "refused_bytes": 512 * MIB}
    finished = {"kind": "finished", "metrics": {}, "steps": None, "tokens": 64}
    pair.after.attempt(pair.after.ask(batch=1), [*started(), *lines, finished], {"code": 0, "signal": None})
    assert pair.compared("2%").exit_code == 3
    assert "1 point that fitted was not decided; 0 points and 0 peaks were compared" in last_line(pair)


def test_the_command_takes_counters_and_refuses_an_unknown_one(pair: Pair) -> None:
    for run in (pair.before, pair.after):
        run.passes(run.ask(batch=1))
        Tables(run.folder).write()
    runs = [str(pair.before.folder), str(pair.after.folder)]
    assert cli.run(["compare", *runs, "--fail-above", "2%", "--counter", "resident"]) == 0
    assert cli.run(["compare", *runs, "--fail-above", "2%", "--counter", "reserved"]) == 3
    with pytest.raises(Mistake, match=r"--counter reservd: no counter 'reservd' \(did you mean reserved\?\)"):
        cli.run(["compare", *runs, "--counter", "reservd"])
    assert counters_named("reserved, allocated,reserved") == ("reserved", "allocated")

"""What a terminal shows while a sweep runs, from written events. Nothing is started."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.device import Device
from runners.outcome import Outcome, Status
from runners.point import AttemptFolder, Point
from sweeper.plan import Plan
from sweeper.views import live
from sweeper.views.live import LiveShow, fitted
from tests.sweeper.views.test_progress import CARD, MIB, outcome, plan, point

GIB = 2**30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Screen:
    """A show on a terminal of a given size, and a clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.now = monkeypatch, 1000.0
        monkeypatch.setattr(live.time, "monotonic", lambda: self.now)

    def show(self, plan: Plan, width: int = 80, height: int = 24) -> LiveShow:
        self.terminal = Terminal()
        self.monkeypatch.setattr("sys.stdout", self.terminal)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": str(width), "LINES": str(height)}.items():
            self.monkeypatch.setenv(name, value)
        return LiveShow(plan)

    def text(self, show: LiveShow, after: float = 1.0) -> list[str]:
        """The redrawn part after some seconds."""
        self.now += after
        return [line.plain for line in show._lines()]

    @property
    def printed(self) -> list[str]:
        """The lines that scroll, without colours."""
        return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", self.terminal.getvalue()).splitlines()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    return Screen(monkeypatch)


def plan_on(*devices: str, **values: tuple[Any, ...]) -> Plan:
    found = tuple(Device(name=name, card=CARD if name.startswith("sim:") else None) for name in devices)
    return replace(plan(**values), devices=found)


def refused(device: str, peak: int) -> Outcome:
    return outcome(Status.OOM, MIB, device, oom_scope="device", unlimited={"allocated": peak})


def test_what_is_done_and_left_comes_first_and_what_runs_has_its_phase_and_seconds(
    screen: Screen, tmp_path: Path
) -> None:
    show = screen.show(plan_on("cpu", batch=(1, 2, 4)))
    points = [point(batch=batch) for batch in (1, 2, 4)]
    for each in (*points, points[2]):
        show.planned("cpu", each)
    show.began("cpu", points[0])
    assert screen.text(show) == ["0 of 4", "  cpu  1 s  start  batch=1"]
    folder = AttemptFolder(tmp_path)
    folder.journal.write_text(json.dumps({"kind": "began", "phase": "cold_forward", "run_index": 0}) + "\n{")
    show.follow("cpu", points[0], folder)
    assert screen.text(show, after=29)[1] == "  cpu  30 s  cold_forward  batch=1"
    show.settled("cpu", points[0], outcome(Status.OK, MIB), recalled=False)
    show.began("cpu", points[1])
    assert screen.text(show, after=10)[0] == "1 of 4 · about 80 s left   ✓ 1 fit"
    show.settled("cpu", points[1], outcome(Status.OOM, oom_scope="device"), recalled=False)
    show.settled("cpu", points[2], outcome(Status.ERROR), recalled=True)
    show.settled("cpu", points[2], outcome(Status.OK, handled_refusals=1), recalled=True)
    assert screen.text(show)[0] == "4 of 4   ✓ 1 fit   ✗ 1 too large   ? 1 error   ? 1 undecided"


def test_several_attempts_of_one_device_can_run(screen: Screen) -> None:
    show = screen.show(plan_on("cuda:0", batch=(1, 2)))
    first, second = point(batch=1), point(batch=2)
    for each in (first, second):
        show.planned("cuda:0", each)
        show.began("cuda:0", each)
    assert len(screen.text(show)) == 3
    show.settled("cuda:0", first, outcome(Status.OK, MIB, "cuda:0"), recalled=False)
    assert screen.text(show)[1:] == ["  cuda:0  2 s  start  batch=2"]


def test_an_attempt_that_waits_for_its_device_says_so(screen: Screen) -> None:
    show = screen.show(plan_on("cpu", batch=(1, 2)))
    show.planned("cpu", point(batch=1))
    show.began("cpu", point(batch=1))
    show.waiting("cpu", point(batch=1), "pid 7")
    assert screen.text(show)[1] == "  cpu  1 s  waits  batch=1"
    assert "cpu  waits: in use by pid 7" in screen.printed


def test_between_two_attempts_the_last_state_stays(screen: Screen) -> None:
    show = screen.show(plan_on("cpu", batch=(1, 2)))
    show.planned("cpu", point(batch=1))
    show.began("cpu", point(batch=1))
    drawn = show._drawn
    show.settled("cpu", point(batch=1), outcome(Status.OK), recalled=False)
    screen.now += 5
    show.tick()
    assert show._drawn == drawn


def test_the_frontier_so_far_is_a_grid_of_signs_over_two_numbers(screen: Screen) -> None:
    show = screen.show(plan_on("cpu", batch=(1, 2), context=(64, 1024), dtype=("float32", "bfloat16")))
    ends = {(1, 64): Status.OK, (2, 64): Status.OOM, (1, 1024): Status.TIMEOUT}
    for dtype in ("bfloat16", "float32"):
        for context in (64, 1024):
            for batch in (1, 2):
                show.planned("cpu", point(batch=batch, context=context, dtype=dtype))
    for (batch, context), status in ends.items():
        ended = outcome(status, oom_scope="device")
        show.settled("cpu", point(batch=batch, context=context, dtype="float32"), ended, recalled=False)
    assert screen.text(show)[1:] == [
        "what fits on cpu with dtype=float32",
        "context | batch  1  2",
        "     64          ✓  ✗",
        "   1024          ?  ·",
    ]


def test_a_grid_that_does_not_fit_the_height_is_left_out(screen: Screen) -> None:
    contexts = tuple(range(1, 30))
    show = screen.show(plan_on("cpu", batch=(1, 2), context=contexts), height=24)
    for context in contexts:
        for batch in (1, 2):
            show.planned("cpu", point(batch=batch, context=context))
    show.settled("cpu", point(batch=1, context=1), outcome(Status.OK), recalled=False)
    assert len(screen.text(show)) == 1


def test_points_of_a_few_calculated_devices_are_a_table_that_fills(screen: Screen) -> None:
    show = screen.show(plan_on("sim:a", "sim:b", batch=(1, 2)))
    for device in ("sim:a", "sim:b"):
        for batch in (1, 2):
            show.planned(device, point(batch=batch))
    show.settled("sim:a", point(batch=1), outcome(Status.OK, GIB, "sim:rtx-4090"), recalled=False)
    show.settled("sim:b", point(batch=1), refused("sim:rtx-4090", 40 * GIB), recalled=False)
    assert screen.text(show)[1:] == [
        "           sim:a       sim:b",
        "  batch=1  ✓ 1.00 GiB  ✗ 40.00 GiB",
        "  batch=2  ·           ·",
    ]
    assert screen.printed == []


def test_a_table_that_is_higher_than_the_terminal_shows_the_last_points_that_are_known(screen: Screen) -> None:
    sizes = tuple(range(1, 101))
    show = screen.show(plan_on("sim:a", batch=sizes), height=12)
    for batch in sizes:
        show.planned("sim:a", point(batch=batch))
    for batch in sizes[:50]:
        show.settled("sim:a", point(batch=batch), outcome(Status.OK, GIB, "sim:rtx-4090"), recalled=False)
    text = screen.text(show)
    assert len(text) == 11
    assert text[-2:] == ["  batch=50  ✓ 1.00 GiB", "  batch=51  ·"]


def test_many_calculated_devices_have_a_line_each_and_complete_ones_make_room(screen: Screen) -> None:
    cards = [f"sim:card-{number:02}" for number in range(42)]
    show = screen.show(plan_on(*cards, batch=(1, 2)), height=12)
    for card in cards:
        for batch in (1, 2):
            show.planned(card, point(batch=batch))
    for batch, ended in ((1, outcome(Status.OK, GIB, "sim:rtx-4090")), (2, refused("sim:rtx-4090", 40 * GIB))):
        show.settled("sim:card-00", point(batch=batch), ended, recalled=False)
    text = screen.text(show)
    assert text[1] == "  sim:card-01  ··"
    assert text[-1] == "  ... and 33 more, 1 of them complete"
    assert len(text) == 11
    show = screen.show(plan_on(*cards, batch=(1, 2)), height=60)
    show.planned("sim:card-00", point(batch=1))
    show.settled("sim:card-00", point(batch=1), outcome(Status.OK, GIB, "sim:rtx-4090"), recalled=False)
    assert screen.text(show)[1] == "  sim:card-00  ✓"


def test_the_reason_why_calculated_points_are_undecided_is_a_line_once(screen: Screen) -> None:
    show = screen.show(plan_on("sim:a", batch=(1, 2)))
    for batch in (1, 2):
        show.planned("sim:a", point(batch=batch))
        show.settled("sim:a", point(batch=batch), outcome(Status.ERROR, error_message="no rule", device="sim:a"), False)
    assert screen.text(show)[-2:] == ["  batch=1  ? error", "  batch=2  ? error"]
    assert screen.printed == ["? sim:a  batch=1  error: no rule"]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_cut(screen: Screen, width: int) -> None:
    swept = {f"workload.params.a_long_name_{at}": (1, 2) for at in range(6)}
    params = {f"a_long_name_{at}": 1 for at in range(6)}
    one = Point(values={"model": {"name": "mlp"}, "workload": {"name": "custom", "params": params}})
    show = screen.show(plan_on("cpu", "sim:a", **swept), width)
    words = {f"{key}=1" for key in swept}
    for device in ("cpu", "sim:a"):
        show.planned(device, one)
        show.began(device, one)
    text = screen.text(show)
    show.settled("cpu", one, outcome(Status.ERROR, error_type="E", error_message="some words " * 20), recalled=False)
    shown = [*text, *screen.printed]
    assert max(map(len, shown)) <= width
    assert {word for line in shown for word in line.split() if "=" in word} <= words


def test_a_text_is_cut_between_two_words() -> None:
    assert fitted("one two three", 13) == "one two three"
    assert fitted("one two three", 12) == "one two ..."
    assert fitted("one two three", 11) == "one two ..."
    assert fitted("one two three", 10) == "one ..."


def test_where_the_encoding_lacks_the_signs_there_are_letters(screen: Screen) -> None:
    show = screen.show(plan_on("cpu", batch=(1, 2)))
    screen.monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    show._found[True, "fit"] = 2
    assert screen.text(show)[0] == "0 of 0   + 2 fit"


def test_markup_and_emoji_codes_in_a_value_are_printed_as_they_are(screen: Screen) -> None:
    text = "[red]x[/] :smile:"
    show = screen.show(plan_on("cpu", **{"workload.params.text": (text,)}))
    named = point(workload={"name": "custom", "params": {"text": text}})
    show.planned("cpu", named)
    show.settled("cpu", named, outcome(Status.ERROR, error_message=text), recalled=False)
    show.began("cpu", named)
    assert f"? cpu  workload.params.text={text}  error: {text}" in screen.printed
    assert f"workload.params.text={text}" in screen.text(show)[1]


def test_control_characters_in_a_phase_reach_no_terminal(screen: Screen, tmp_path: Path) -> None:
    show = screen.show(plan_on("cpu", batch=(1, 2)))
    show.planned("cpu", point(batch=1))
    show.began("cpu", point(batch=1))
    AttemptFolder(tmp_path).journal.write_text(json.dumps({"kind": "began", "phase": "\x1b[2J"}) + "\n")
    show.follow("cpu", point(batch=1), AttemptFolder(tmp_path))
    assert "\x1b" not in "".join(screen.text(show))


def test_an_assumption_of_a_calculation_is_a_line_once(screen: Screen) -> None:
    show = screen.show(plan_on("sim:a", batch=(1, 2)))
    place = {"file": "train.py", "line": 7}
    for batch in (1, 2):
        show.planned("sim:a", point(batch=batch))
        ended = outcome(Status.OK, GIB, "sim:rtx-4090", assumed_values=3 * batch, assumed_places=[place])
        show.settled("sim:a", point(batch=batch), ended, recalled=False)
    assert screen.printed == ["sim:a  batch=1  3 assumed values, train.py:7"]


def test_the_redrawn_part_is_gone_when_the_sweep_has_ended(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.views.frontier_text.frontier_text", lambda *values: "THE FRONTIER")
    show = screen.show(plan_on("sim:a", batch=(1, 2)))
    show.planned("sim:a", point(batch=1))
    show.began("sim:a", point(batch=1))
    show.settled("sim:a", point(batch=1), outcome(Status.OK, GIB, "sim:rtx-4090"), recalled=False)
    row = {"status": "ok", "fits": True, "point_id": "a", "device": "sim:a"}
    show.ended([row], Path("outputs/run"))
    kept = "\n".join(screen.printed[-9:])
    assert "  batch=1  ✓ 1.00 GiB\n\n1 point: 1 ok; it fits\n\nTHE FRONTIER" in kept
    assert "0 of 1" not in kept


@pytest.mark.parametrize(("no_color", "sign"), [("1", "✓"), ("", "\x1b[32m✓\x1b[0m")])
def test_no_color_leaves_the_signs_without_colours(screen: Screen, no_color: str, sign: str) -> None:
    screen.monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        screen.monkeypatch.setenv("NO_COLOR", no_color)
    show = screen.show(plan_on("cpu", batch=(1, 2)))
    show.planned("cpu", point(batch=1))
    show.settled("cpu", point(batch=1), outcome(Status.OK, MIB), recalled=False)
    assert screen.terminal.getvalue() == f"{sign} cpu  batch=1  fits, 1.00 MiB resident\n"


def test_a_complete_table_is_a_line_for_each_device_while_others_are_measured(screen: Screen) -> None:
    show = screen.show(plan_on("sim:a", "cuda:0", batch=(1, 2)))
    for device in ("sim:a", "cuda:0"):
        show.planned(device, point(batch=1))
    show.settled("sim:a", point(batch=1), outcome(Status.OK, GIB, "sim:rtx-4090"), recalled=False)
    assert len(screen.text(show)) == 3
    show.settled("cuda:0", point(batch=1), outcome(Status.OK, GIB, "cuda:0"), recalled=False)
    assert screen.text(show)[1:] == ["  sim:a  ✓ 1  calculated"]

"""`sweeper report` as it is typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sweeper.errors import Mistake
from sweeper.views.page import report
from tests import command_line
from tests.sweeper.conftest import WrittenRun, started
from tests.sweeper.views.page.conftest import Page


@pytest.fixture
def small(tmp_path: Path) -> WrittenRun:
    """A run whose last attempt has not ended: its sweep was killed."""
    run = WrittenRun(tmp_path / "outputs" / "small", {"batch": [1, 2, 4, 8]})
    run.device("cpu")
    first, second, third, _ = (run.ask(batch=batch) for batch in (1, 2, 4, 8))
    run.passes(first)
    run.is_refused(second)
    run.attempt(third, started(), None)
    return run


def test_the_newest_run_has_its_page_in_its_folder_and_nothing_else_is_changed(
    small: WrittenRun, tmp_path: Path
) -> None:
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    done = command_line.run(["report"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "outputs/small/report.html\n")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - before == {small.folder / "report.html"}
    page = (small.folder / "report.html").read_text()
    assert "batch=1 is the largest that fits on cpu" in page
    assert "The sweep broke off: 2 of 4 points have no result." in page


def test_the_page_and_its_pictures_go_where_they_are_sent(small: WrittenRun, tmp_path: Path) -> None:
    words = ["report", "outputs/small", "--output", "mine.html", "--pictures", "drawn", "--json"]
    done = command_line.run(words, tmp_path)
    found = json.loads(done.stdout)
    assert found["page"] == "mine.html"
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "drawn").iterdir()}
    assert sorted(found["pictures"]) == sorted(f"drawn/{name}" for name in pictures)
    assert {"frontier-1.svg", "frontier-1.png", "phases-1.svg", "timeline.png"} <= set(pictures)
    for name, content in pictures.items():
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<svg"), name


def test_the_cost_of_a_package_follows_the_tariffs_and_their_absence_is_explained(
    small: WrittenRun, page: Page, tmp_path: Path
) -> None:
    assert "--tariffs tariffs.yaml" in page.html
    (tmp_path / "t.yaml").write_text("{currency: CHF, unit: samples, amount: 10, devices: {cpu: {price_per_hour: 1}}}")
    assert command_line.run(["report", "--tariffs", "t.yaml"], tmp_path).returncode == 0
    assert "package, CHF" in (small.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--axes", "batch,batch"],
            "--axes batch,batch: takes one key or two different ones, as in --axes batch,context",
        ),
        (["--axes", "contxt"], "--axes contxt: contxt did not vary; the run varied batch"),
        (["--output", "nowhere/x.html"], "--output nowhere/x.html: there is no folder nowhere"),
        (["--output", "outputs"], "--output outputs: is a folder; name a file in it, as in outputs/report.html"),
        (["--pictures", "outputs/small/plan.jsonl"], "--pictures outputs/small/plan.jsonl: is a file; name a folder"),
        (["--tariffs", "t.yaml"], "--tariffs t.yaml: cannot be read: No such file or directory"),
        (["nosuch"], "nosuch: no such folder"),
        (["batch=1"], "report batch=1: takes a run, the folder of a sweep"),
        (["run=outputs/small"], "run=outputs/small: no such key; write sweeper report outputs/small"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    words: list[str], message: str, small: WrittenRun, tmp_path: Path
) -> None:
    done = command_line.run(["report", *words], tmp_path)
    lines = [line for line in done.stderr.splitlines() if "newest run" not in line and "rebuilt" not in line]
    assert done.returncode == 2
    assert len(lines) == 1
    assert message in lines[0]
    assert not (small.folder / "report.html").exists()


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "is_installed", lambda name: name != "vl_convert")
    with pytest.raises(Mistake, match=r"^report: vl_convert is not installed; .*sweeper\[report\]|vl-convert-python"):
        report.check(None, None)


def test_the_page_takes_the_place_of_a_link_and_appears_as_a_whole(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(page.folder, folder)
    (tmp_path / "victim").write_text("mine")
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(tmp_path / "victim")
    done = command_line.run(["report", str(folder)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (folder / "report.html").is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"
    assert not list(folder.glob(".*.tmp"))


def test_a_run_without_a_point_has_a_page_too(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "outputs" / "none", {"batch": [1]}).device("cpu")
    done = command_line.run(["report", "--pictures", "drawn"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "This run has no points." in (tmp_path / "outputs" / "none" / "report.html").read_text()
    assert list((tmp_path / "drawn").iterdir()) == []

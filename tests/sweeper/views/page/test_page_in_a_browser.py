"""The page as a person meets it: opened from a file in a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeper import cards
from sweeper.tables import loading
from sweeper.views.decision_sheet import decision_sheet
from sweeper.views.page.content import page_content
from sweeper.views.page.html import page_html
from tests.sweeper.views.page.conftest import Page


class Opened:
    """A page in a window, with all that it logged and requested."""

    def __init__(self, browser: Any, file: Path, width: int = 1200, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.logged: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("dialog", lambda dialog: self.logged.append(dialog.message))
        self.seconds = self.open(file)

    def open(self, file: Path) -> float:
        """The seconds until the page is loaded."""
        began = time.monotonic()
        self.page.goto(file.as_uri())
        return time.monotonic() - began

    def rows(self) -> list[list[str]]:
        found: list[list[str]] = self.page.eval_on_selector_all(
            "#table tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
        )
        return found

    def column(self, label: str) -> list[str]:
        labels = [each.strip() for each in self.page.locator("#table thead th").all_text_contents()]
        return [row[labels.index(label)] for row in self.rows()]


@pytest.fixture
def opened(browser: Any, page: Page) -> Iterator[Opened]:
    found = Opened(browser, page.file)
    yield found
    found.context.close()


def test_the_page_opens_within_a_second_without_an_error_or_a_request(opened: Opened, page: Page) -> None:
    again = [opened.open(page.file) for _ in range(2)]
    assert min(opened.seconds, *again) < 1  # a busy machine can be slow once
    assert opened.logged == []
    assert set(opened.requested) == {page.file.as_uri()}
    assert opened.page.locator("h1").inner_text().startswith("2 of 2 settings fit on cpu")


def test_what_a_workload_raised_and_a_folder_is_called_is_text_on_the_page(opened: Opened, page: Page) -> None:
    assert opened.page.title() == f"{page.folder.name}: does it fit?"
    assert opened.page.locator("img").count() == 0
    assert "<script>" in opened.page.locator("#failures").text_content()


def test_the_table_filters_by_a_word_by_a_value_and_by_a_result(opened: Opened) -> None:
    assert len(opened.rows()) == 72
    words = opened.page.get_by_label("Filter", exact=True)
    words.fill("batch=2")
    assert len(opened.rows()) == 12
    assert set(opened.column("batch")) == {"2"}
    words.fill("batch=2 context=512")
    assert set(opened.column("status")) == {"error"}
    assert "2 points, 70 filtered out" in opened.page.locator("#shown").inner_text()
    words.fill("")
    opened.page.get_by_label("fails", exact=True).uncheck()
    assert "fails" not in opened.column("result")
    words.fill("there is no such word")
    assert opened.rows() == []


def test_a_column_sorts_by_its_values_and_what_is_not_known_comes_last(opened: Opened) -> None:
    head = opened.page.get_by_role("button", name="peak resident")
    head.click()
    assert opened.page.locator("#table th[aria-sort=ascending]").inner_text().startswith("peak resident")
    ascending = [each for each in opened.column("peak resident") if each != "–"]
    assert ascending == sorted(ascending, key=lambda each: float(each.removeprefix("≥ ").split()[0]))
    assert opened.column("peak resident")[-1] == "–"
    head.click()
    descending = opened.column("peak resident")
    assert descending[: len(ascending)] != ascending
    assert descending[-1] == "–"


@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_never_scrolls_sideways(browser: Any, page: Page, width: int) -> None:
    opened = Opened(browser, page.file, width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.context.close()


def test_on_a_telephone_every_value_of_the_answer_and_of_a_point_is_in_sight(browser: Any, page: Page) -> None:
    opened = Opened(browser, page.file, 400)
    for cells in (".answers tbody td", "#table tbody td:not(.none)"):
        ends = opened.page.eval_on_selector_all(cells, "all => all.map(each => each.getBoundingClientRect().right)")
        assert len(ends) > 5
        assert max(ends) < 400
    charts = opened.page.locator("figure svg[role=img]:visible")
    widths = charts.evaluate_all("all => all.map(each => each.getBoundingClientRect().right)")
    assert widths
    assert max(widths) <= 400
    assert opened.page.locator(".wide:visible").count() == 0
    opened.page.get_by_label("Filter", exact=True).fill("batch=2")
    first = opened.page.locator("#table tbody td[data-label='peak resident']").first
    assert first.evaluate("each => getComputedStyle(each, '::before').content") == '"peak resident"'
    opened.context.close()


def test_everything_is_reached_and_done_with_the_keyboard_alone(opened: Opened) -> None:
    keys, focused = opened.page.keyboard, "document.activeElement"
    keys.press("Tab")
    assert opened.page.evaluate(f"{focused}.className") == "skip"
    keys.press("Enter")
    reached = set()
    for _ in range(400):
        keys.press("Tab")
        text = f"{focused}.tagName + ' ' + {focused}.textContent.trim().slice(0, 20)"
        where = opened.page.evaluate(f"{focused}.id || {focused}.className || {text}")
        reached.add(where)
        if where == "copy":
            break
    assert {"words", "copy"} <= reached
    assert any("BUTTON status" in each for each in reached)
    keys.press("Enter")
    opened.page.wait_for_function("document.getElementById('said').textContent !== ''")
    assert opened.page.locator("#said").inner_text() == "Copied."
    assert opened.page.locator("#command").inner_text().startswith("sweeper 'devices=[cpu]' model=mlp")
    opened.page.locator("#words").focus()
    keys.type("context=64 ok")
    assert set(opened.column("context")) == {"64"}


def test_the_page_prints_with_its_failures_open_and_without_what_only_a_screen_needs(
    opened: Opened, tmp_path: Path
) -> None:
    opened.page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("nav").is_visible()
    assert not opened.page.locator("#words").is_visible()
    assert opened.page.locator("h1").is_visible()
    assert opened.page.eval_on_selector_all(".failure", "all => all.length > 1 && all.every(each => each.open)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, page: Page, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    opened = Opened(browser, page.file, scheme=scheme)
    opened.page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    # Rows of a table are alike, and axe looks at each cell: with all of them it took twenty seconds.
    opened.page.evaluate(
        "document.querySelectorAll('tbody').forEach(body => [...body.rows].slice(8).forEach(row => row.remove()))"
    )
    # Shadows show where there is more to scroll to; axe judges no contrast on a ground with a gradient.
    opened.page.add_style_tag(content=".scroll { background: none !important; }")
    # In the dark only colours differ.
    options = {"resultTypes": ["violations"], "preload": False}
    options |= {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    inside = {"exclude": [["figure svg *"]]}  # each is one picture to a screen reader
    found = axe.Axe().run(opened.page, context=inside, options=options).response["violations"]
    assert [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found if each["impact"] != "minor"] == []
    opened.context.close()


def test_the_page_in_the_dark_has_another_ground(browser: Any, page: Page) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        opened = Opened(browser, page.file, scheme=scheme)
        grounds.add(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        opened.context.close()
    assert len(grounds) == 2


@pytest.mark.slow
def test_the_page_of_20000_attempts_opens_within_5_seconds_and_is_smaller_than_15_mb(
    browser: Any, page: Page, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text(page_of_many(page, 20_000))
    assert (tmp_path / "report.html").stat().st_size < 15_000_000
    opened = Opened(browser, tmp_path / "report.html")
    assert opened.seconds < 5
    assert opened.logged == []
    assert len(opened.rows()) == 100
    began = time.monotonic()
    opened.page.get_by_label("Filter", exact=True).fill("batch=2 context=512")
    assert set(opened.column("status")) == {"error"}
    opened.page.get_by_role("button", name="peak resident").click()
    assert opened.column("peak resident")[0] != "–"
    assert time.monotonic() - began < 2
    opened.page.get_by_label("Filter", exact=True).fill("")
    opened.page.get_by_role("button", name="Next").click()
    assert opened.page.locator("#shown").inner_text().startswith("101–200 of 21,")
    opened.context.close()


def page_of_many(page: Page, attempts: int) -> str:
    """The page of a run that repeats this one with other seeds."""
    tables = loading.read(page.folder)
    rows = {name: tables[name].to_pylist() for name in ("points", "attempts", "phases")}
    many: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for seed in range(1 + attempts // len(rows["attempts"])):
        for name, found in rows.items():
            many[name] += [_with_seed(row, seed) for row in found]
    content = page_content(
        run="many",
        environment=[],
        plan=[],
        cards=dict(cards.of_sweeper()),
        **many,  # type: ignore[arg-type]
    )
    return page_html(content, decision_sheet(page.folder, tables), [])


def _with_seed(row: dict[str, Any], seed: int) -> dict[str, Any]:
    of_seed = {**row, "point_id": f"{row['point_id'][:10]}{seed:06d}"}
    if "config" in row:
        config = json.dumps({**json.loads(row["config"]), "seed": seed})
        of_seed |= {"config": config, "settings": json.dumps({"seed": seed}), "seed": seed, "changed": "seed"}
    return of_seed

"""The pages of docs/ make a site that needs no network; their links, anchors, commands and recipes are right."""

from __future__ import annotations

import csv
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from runners.outcome import Status
from sweeper.planning import planner
from sweeper.planning.command_line import read
from sweeper.planning.composer import Composer
from sweeper.planning.hydra_sweeper import composer_of
from sweeper.planning.probes import Probes
from tests import command_line
from tests.test_readme import PAGES, ROOT, blocks, named, run

DOCS = ROOT / "docs"
SITE = sorted(DOCS.glob("*.md"))
PLAN = re.compile(
    r"^\s*(?:\{ \"[^\"]*\" = )?\"([\w-]+\.md)\"", re.MULTILINE
)  # pages in zensical.toml, not in a comment
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
OF_THE_PROJECT = re.compile(r"`((?:conf|runners|sweeper|tests|benchmarks|examples|docs|notebooks)/[a-z0-9_./-]+)`")
# What a reader has and this folder has not: code, data, a checkpoint, a run.
OF_THE_READER = re.compile(r"mywork|my_rules|mymetric|denoiser|options|=fill|FOLDER|KEY=|train\.py|program\.py|\.\.\.")


def text_of(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as both the site and a view of the repository name them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@functools.cache
def composer(words: tuple[str, ...]) -> Composer:
    return composer_of(words)


def writer(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_one_place_in_the_site() -> None:
    assert sorted(PLAN.findall((ROOT / "zensical.toml").read_text())) == [page.name for page in SITE]


class Loaded(HTMLParser):
    """The addresses that a browser loads to show a page, and those of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [given[name] or "" for name in ("src", "srcset", "data") if name in given]
        if tag == "link":
            self.addresses.append(given.get("href") or "")


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="pip install 'sweeper[docs]', with Python 3.11 or newer")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    nowhere = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    assert {page.stem for page in site.glob("*.html")} == {page.stem for page in SITE} | {"404"}
    for page in site.glob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text())
        remote = [address for address in loaded.addresses if "//" in address]
        assert loaded.addresses, page.name
        assert not remote, page.name
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"(?:url\(|@import )[\"']?https?:", styles)
    assert all(f'"{page.stem}.html"' in (site / "search.js").read_text() for page in SITE)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_an_anchor_of_a_link_is_a_heading_of_its_page(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        target, mark, anchor = link.partition("#")
        if mark and "://" not in link and anchor not in anchors(page.parent / target if target else page):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", SITE, ids=named)
def test_a_page_of_the_site_links_to_pages_of_the_site_and_names_files_that_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    outside = [link for link in LINK.findall(text) if "://" not in link and "/" in link]
    shown = re.findall(r"<!-- file: (\S+) -->", text)
    missing = [name for name in OF_THE_PROJECT.findall(text) if name not in shown and not (ROOT / name).exists()]
    assert (outside, missing) == ([], [])


@pytest.mark.parametrize("page", SITE, ids=named)
def test_every_sweep_of_a_page_can_be_planned(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that would run for too long or need a GPU."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(planner, "composer_of", lambda words: composer(tuple(words)))
    lines = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    commands = re.sub(r"\\\n\s*", "", "".join(lines)).splitlines()
    for command in commands:
        own = OF_THE_READER.search(command.replace("examples/train.py", ""))
        if command.startswith("python -m sweeper ") and "=" in command.split()[3] and not own:
            with Probes() as probes:
                assert planner.plan_of(read(shlex.split(command)[3:]), probes, str).points


def test_the_page_of_keys_is_what_the_configuration_declares() -> None:
    assert writer("write_keys").page() == text_of("keys")


def test_every_key_says_what_it_means() -> None:
    rows = [line for line in text_of("keys").splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert not [row for row in rows if row.endswith("|  |")]


def test_every_status_has_a_row_in_the_order_of_their_declaration() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", text_of("statuses"), re.MULTILINE)
    assert rows[: len(Status)] == [status.value for status in Status]


def test_the_accuracy_that_is_claimed_is_what_the_benchmark_printed() -> None:
    printed = (ROOT / "benchmarks" / "README.md").read_text()
    rows = re.findall(r"^\| ([a-z, ]+) \| (\w+) \| (high|medium) \| (.*) \|$", text_of("accuracy"), re.MULTILINE)
    assert len(rows) >= 8
    for workload, counter, confidence, figures in rows:
        words = [*map(re.escape, [workload, counter, confidence]), *map(re.escape, figures.split(" | "))]
        assert re.search(r"^" + r" +".join(words) + r"\s", printed, re.MULTILINE), workload


@pytest.mark.parametrize("page", ["docs/accuracy.md", "docs/calculated.md", "benchmarks/README.md"])
def test_the_published_peaks_are_as_many_as_a_page_says(page: str) -> None:
    with (ROOT / "benchmarks" / "published" / "peaks.csv").open(newline="") as file:
        rows = sum(1 for _ in csv.DictReader(file))
    text = " ".join((ROOT / page).read_text().split())
    assert re.findall(r"(\d+) (?:figures from|published peaks|rows of `published)", text) == [str(rows)]


def test_the_french_page_of_the_method_follows_the_english_one() -> None:
    english, french = text_of("method"), text_of("methode")
    assert set(re.findall(r"https?://[^)\s]+", french)) == set(re.findall(r"https?://[^)\s]+", english))
    parts = [re.split(r"^## ", text, flags=re.MULTILINE) for text in (english, french)]
    shared = list(zip(*parts, strict=False))
    assert len(shared) == len(parts[0]) > 5
    for here, there in shared:
        assert here.count("**") == there.count("**"), here[:60]
        numbers = [re.findall(r"\d+", re.sub(r"\]\(.*?\)", "", text)) for text in (here, there)]
        assert sorted(numbers[0]) == sorted(numbers[1]), here[:60]


def written(page: str, folder: Path) -> None:
    """Writes the files that a page shows into a folder, under the names that the page gives them."""
    for name, content in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text_of(page), re.DOTALL):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def denoiser(folder: Path) -> None:
    (content,) = re.findall(r"```python\n(# denoiser.py.*?)```", text_of("own-workload"), re.DOTALL)
    (folder / "denoiser.py").write_text(content)


def test_a_model_a_card_and_a_workload_are_added_by_the_files_of_the_page(tmp_path: Path) -> None:
    written("extending", tmp_path)
    denoiser(tmp_path)
    first, second = blocks(text_of("extending"), "tested with these files")
    assert "sim:my-card  batch=2  fits" in run(first, tmp_path)
    assert "1 point: 1 ok" in run(second, tmp_path)


def test_a_workload_and_a_counter_of_sweepers_own_are_added_by_the_files_of_the_page(tmp_path: Path) -> None:
    for package in ("conf", "runners", "sweeper"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    written("extending", tmp_path)
    (patch,) = re.findall(r"<!-- patch -->\n```diff\n(.*?)```", text_of("extending"), re.DOTALL)
    subprocess.run(["git", "apply", "-"], input=patch, text=True, check=True, cwd=tmp_path)
    (block,) = blocks(text_of("extending"), "tested in a copy of sweeper")
    done = subprocess.run(
        [sys.executable, *block.split()[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "2 points: 2 ok" in done.stdout, done.stdout + done.stderr
    phases = pd.read_parquet(tmp_path / "outputs/fill/phases.parquet")
    assert set(phases["phase"]) == {"fill", "read", "between"}
    assert phases["end_swap_bytes"].notna().all()
    assert phases["peak_swap_bytes"].isna().all()


def test_the_function_of_the_page_is_calculated_for_a_card(tmp_path: Path) -> None:
    denoiser(tmp_path)
    _, calculated, _ = blocks(text_of("own-workload"), "tested with denoiser.py")
    output = run(calculated, tmp_path)
    (shown,) = re.findall(r"```\n(note 1: .*?)```", text_of("own-workload"), re.DOTALL)
    assert shown in output


@pytest.mark.slow
def test_the_function_of_the_page_is_measured_and_its_edge_is_found(tmp_path: Path) -> None:
    denoiser(tmp_path)
    measured, _, edge = blocks(text_of("own-workload"), "tested with denoiser.py")
    assert "4 points: 4 ok" in run(measured, tmp_path)
    assert "largest that fits" in run(edge, tmp_path)
    assert command_line.run(["frontier", "outputs/denoiser-edge"], tmp_path).returncode == 0


def test_the_measured_sweep_of_the_first_five_minutes_finds_an_edge(tmp_path: Path) -> None:
    sweep, questions = blocks(text_of("five-minutes"), "tested")
    assert "6 points: 5 ok, 1 oom" in run(sweep, tmp_path)
    frontier, effects = (run(question, tmp_path) for question in questions.splitlines())
    assert "smallest that fails: batch=4 context=256" in frontier
    assert "WHICH LEVER FIRST" in effects


@pytest.mark.slow
def test_the_search_of_the_first_five_minutes_confirms_its_edge(tmp_path: Path) -> None:
    (block,) = blocks(text_of("five-minutes"), "tested slowly")
    assert "smallest that fails" in run(block, tmp_path)

"""A sweep of 6 batches x 6 contexts x 2 dtypes whose attempts ended in every way, written as facts, and its page."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runners.point import Attempt, Point
from sweeper.tables import loading
from sweeper.views.page import report
from tests.sweeper.conftest import BASELINE, MIB, WrittenRun

BATCHES, CONTEXTS, DTYPES = (1, 2, 4, 8, 16, 32), (64, 128, 256, 512, 1024, 2048), ("float32", "bfloat16")
MOST_TOKENS = 4096  # that fit
SCRIPT = "<script>document.title = 'taken over'</script>"
NAME = "<img src=x onerror=alert(1)>"  # of a run's folder, which a person can rename
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without what a browser would look up on its own account.
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class TimedRun(WrittenRun):
    """Its attempts run one after another."""

    seconds = 0.0

    def attempt(
        self,
        point: Point,
        journal: list[dict[str, Any]],
        ended: Mapping[str, Any] | None,
        device: str = "cpu",
        number: int = 1,
    ) -> Attempt:
        began = datetime(2026, 11, 29, 12, tzinfo=timezone.utc) + timedelta(seconds=self.seconds)
        self.seconds += 1.5
        when = None if ended is None else {"started_at": began.isoformat(), **ended}
        return super().attempt(point, journal, when, device, number)


def write_run(folder: Path) -> TimedRun:
    run = TimedRun(folder, {"batch": list(BATCHES), "context": list(CONTEXTS), "dtype": list(DTYPES)})
    run.device("cpu")
    refused: dict[str, Attempt] = {}
    for dtype, batch, context in itertools.product(DTYPES, BATCHES, CONTEXTS):
        point = run.ask(batch=batch, context=context, dtype=dtype)
        tokens = batch * context
        if (batch, context) == (2, 512):
            run.raises(point, message=f"no kernel for {SCRIPT}")
        elif (batch, context) == (8, 64):
            run.ends(point, code=None, signal=9, timed_out=True)
        elif tokens <= MOST_TOKENS:
            run.passes(point, peak=BASELINE + tokens * 4096 * (2 if dtype == "float32" else 1) + 8 * MIB)
        elif tokens <= 4 * MOST_TOKENS:
            refused[dtype] = run.is_refused(point)
        elif (batch, context) == (32, 2048) and dtype == "bfloat16":
            pass  # the sweep broke off before it
        else:
            run.skip(point, refused[dtype])
    return run


class Page(NamedTuple):
    folder: Path
    file: Path
    html: str


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of the sweep, which has no tables on the disk."""
    folder = tmp_path_factory.mktemp("outputs") / NAME
    write_run(folder)
    written = report.write_report(folder, loading.read(folder))
    return Page(folder, written.page, written.page.read_text())


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield found
        found.close()

"""sweeper.run, as scripts and notebooks call it. Each sweep here is calculated, so that it takes a second."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweeper
from sweeper.from_python import words_of
from sweeper.planning.overrides import parse

ROOT = Path(__file__).resolve().parents[2]
CARD = "sim:h100-80gb"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "fixed", "several"),
    [
        ({"batch": [1, 2], "context": 512}, {"context": 512}, {"batch": (1, 2)}),
        ({"batch": range(1, 4)}, {}, {"batch": (1, 2, 3)}),
        ({"batch": "1,2", "context": "4k"}, {"context": 4096}, {"batch": (1, 2)}),
        ({"batch": np.int64(3)}, {"batch": 3}, {}),
        ({"timeout": [None, 0.5]}, {}, {"timeout": (None, 0.5)}),
        ({"devices": ["cpu", CARD]}, {"devices": ["cpu", CARD]}, {}),
        ({"workload": {"checkpointing": [False, True]}}, {}, {"workload.checkpointing": (False, True)}),
        ({"env": {"NAME": ["a b", 'say "so"', "c:\\"]}}, {}, {"env.NAME": ("a b", 'say "so"', "c:\\")}),
        ({"workload.argv": ["python", "x y.py", "{batch}"]}, {"workload.argv": ["python", "x y.py", "{batch}"]}, {}),
        ({"workload.params.sizes": [[1, 2], [3]]}, {}, {"workload.params.sizes": ([1, 2], [3])}),
        ({"outputs": Path("/a folder/it's")}, {"outputs": "/a folder/it's"}, {}),
        ({"workload.target": os.path.join}, {"workload.target": "posixpath:join"}, {}),
    ],
)
def test_values_from_python_are_those_of_a_command_line(
    keys: dict[str, Any], fixed: dict[str, Any], several: dict[str, Any]
) -> None:
    found = parse(words_of(**keys))
    assert found.fixed == fixed
    assert {key: tuple(values) for key, values in found.several.items()} == several


def test_words_lists_mappings_and_keywords_are_taken_together() -> None:
    words = words_of("batch=1,2", ["context=64"], {"workload": {"method": "lora"}}, seed=3)
    assert words == ["batch=1,2", "context=64", "workload.method=lora", "seed=3"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": []}, "batch=[]: there is no value"),
        ({"batch": float("nan")}, "batch=nan: must be a number"),
        ({"workload.target": lambda: None}, "is not a function of a file that can be imported"),
    ],
)
def test_a_value_that_no_command_line_has_is_refused_by_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(sweeper.Mistake, match=r"^(batch|workload\.target)") as raised:
        words_of(values)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (None, "None: must be a text such as"),
        (5, "5: must be a text such as"),
        ("a\0b", "holds a null character"),
        ("\ud800", "surrogates not allowed"),
        ("x" * 200_000, r"'x{60}'...: has 200,000 letters"),
    ],
)
def test_a_word_that_no_command_line_can_have_is_a_mistake(word: Any, message: str) -> None:
    for command in (sweeper.run, sweeper.fit):
        with pytest.raises(sweeper.Mistake, match=message) as found:
            command(word, "rtx-4090")
        assert len(str(found.value)) < 200


@pytest.mark.parametrize("word", ["a\0b", "x" * 5000])
def test_a_run_that_no_folder_can_be_named_like_is_a_mistake(word: str) -> None:
    with pytest.raises(sweeper.Mistake) as found:
        sweeper.load(word)
    assert len(str(found.value)) < 200


def test_a_sweep_from_a_thread_shows_its_lines_returns_its_tables_and_leaves_the_signals_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    found: list[sweeper.Run] = []
    calls = {"batch": [1, 2], "model": "mlp", "context": 64, "devices": [CARD], "name": "mine"}
    thread = threading.Thread(target=lambda: found.append(sweeper.run(**calls)))
    thread.start()
    thread.join()
    assert found == [sweeper.Run(here / "outputs/mine", decided=True)]
    assert list(found[0].points["status"]) == ["ok", "ok"]
    assert found[0].frontier["largest"].any()
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{CARD}  batch=1  fits, ")
    assert "tables: outputs/mine/points.parquet" in shown.out
    assert f"sweeper: {CARD}: assumes" in shown.err
    assert "\x1b" not in shown.out + shown.err
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_a_mistake_is_an_exception_with_the_line_of_the_command_and_is_not_printed_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(sweeper.Mistake, match=r"^no such key: btach \(did you mean batch\?\)$"):
        sweeper.run("btach=1,2")
    assert capsys.readouterr() == ("", "")
    assert not list(here.iterdir())


def test_a_device_that_is_missing_raises_and_names_the_folder_with_the_reasons(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(sweeper.NothingMeasured, match="outputs/none"):
        sweeper.run(model="mlp", devices=["cuda:7"], name="none", quiet=True)
    assert capsys.readouterr() == ("", "")
    assert list(sweeper.load(here / "outputs/none").points["status"]) == ["unavailable"]


def test_fit_returns_its_cells_as_a_table_and_as_rows_in_bytes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = sweeper.fit("tiny-llama", card="rtx-4090", workload="forward", context=[64, 128], name="fitted", quiet=True)
    assert capsys.readouterr() == ("", "")
    assert found.folder == here / "outputs/fitted"
    assert list(found.table.columns) == [64, 128]
    (text,) = found.table[64]
    assert re.fullmatch(r"\d\.\d\d (x|>=)\d+", text)
    assert list(found.cells["fits"]) == [True, True]
    assert found.cells["peak_bytes"].dtype == "Int64"
    assert set(found.cells.loc[0, "point_ids"]) <= set(found.frames.points["point_id"])
    with pytest.raises(sweeper.Mistake, match="rtx-4091"):
        sweeper.fit("tiny-llama", "rtx-4091")


@pytest.mark.parametrize("name", sweeper.__all__)
def test_no_module_hides_a_public_name(name: str) -> None:
    """The import of a module `sweeper.fit` would put it in the place of the function `sweeper.fit`."""
    assert hasattr(sweeper, name)
    assert importlib.util.find_spec(f"sweeper.{name}") is None


TYPED = """\
import sweeper
run = sweeper.run("batch=1,2", ["context=64"], {"seed": 1}, devices=["cpu"], quiet=True)
reveal_type(run.points)
reveal_type(sweeper.fit("tiny-llama", "rtx-4090").folder)
sweeper.run(3)
"""


@pytest.mark.slow
def test_the_types_of_the_functions_reach_a_users_type_checker(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TYPED)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    points, folder, wrong, _ = checked.stdout.splitlines()
    assert points.endswith('Revealed type is "pandas.core.frame.DataFrame"')
    assert folder.endswith('Revealed type is "pathlib.Path"')
    assert wrong.startswith('script.py:5: error: Argument 1 to "run" has incompatible type "int"')


HANGS = "import time\ndef run(): time.sleep(600)\n"
CALL = """\
import sweeper
try:
    sweeper.run(workload="custom", devices="cpu", name="stopped", **{"workload.target": "hangs:run"})
except KeyboardInterrupt:
    print("INTERRUPTED", list(sweeper.load("outputs/stopped").points["status"]), flush=True)
"""


@pytest.fixture
def hanging(here: Path) -> Iterator[subprocess.Popen[str]]:
    """A script in whose sweep a workload hangs."""
    (here / "hangs.py").write_text(HANGS)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = subprocess.Popen([sys.executable, "-c", CALL], cwd=here, env=env, stdout=subprocess.PIPE, text=True)
    journal = "outputs/stopped/points/*/*/journal.jsonl"
    pause = threading.Event()
    while not any('"began"' in path.read_text() for path in here.glob(journal)):
        assert script.poll() is None
        pause.wait(0.05)
    yield script
    script.kill()
    script.communicate()


def test_ctrl_c_ends_the_sweep_in_order_and_reaches_the_caller(hanging: subprocess.Popen[str]) -> None:
    hanging.send_signal(signal.SIGINT)
    out, _ = hanging.communicate(timeout=60)
    assert out.endswith("INTERRUPTED ['interrupted']\n")


def test_nothing_goes_on_when_the_caller_is_killed(hanging: subprocess.Popen[str], here: Path) -> None:
    assert len(processes_in(here)) > 2
    hanging.kill()
    hanging.wait()
    pause = threading.Event()
    for _ in range(500):
        if not processes_in(here):
            break
        pause.wait(0.02)
    assert not processes_in(here)


def processes_in(folder: Path) -> list[int]:
    """The other processes whose current folder it is."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.joinpath("cwd").readlink() == folder:
                found.add(int(process.name))
    return sorted(found - {os.getpid()})

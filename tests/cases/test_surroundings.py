"""The surroundings of a command: locale, search path, limits and files of the user's in the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from tests import command_line

MODULE = """\
def run(batch=1, text="", value=0):
    return {"text": text, "file": __file__}
"""
WORDS = ("workload=custom", "workload.target=mywork:run", "devices=cpu", "name=mine")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def mywork(tmp_path: Path) -> Path:
    (tmp_path / "mywork.py").write_text(MODULE)
    return tmp_path


def typed(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command line without any PYTHONPATH, as a copy of a process that has the imports already."""
    return command_line.run(words, folder, {**_without("PYTHONPATH", "PYTHONSAFEPATH"), **variables})


def started(
    folder: Path, *words: str, python: Sequence[str] = (), before: Callable[[], None] | None = None, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """The same in a process of its own. `before` runs in it before the interpreter, to limit it."""
    return subprocess.run(
        [sys.executable, *python, "-m", "sweeper", *words],
        cwd=folder,
        env={**_without("PYTHONPATH", "PYTHONSAFEPATH"), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=before,
        timeout=100,
        check=False,
    )


def _without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


def points(folder: Path, name: str = "mine") -> pd.DataFrame:
    return pd.read_parquet(folder / "outputs" / name / "points.parquet")


# --- where a user's module is -----------------------------------------------------------------------------------------

UNSEARCHED = (
    "sweeper: workload.target=mywork:run: mywork cannot be imported: ModuleNotFoundError: No module named 'mywork'; "
    "PYTHONSAFEPATH is set, so the current folder is not searched: add it to PYTHONPATH\n"
)


def test_a_safe_path_keeps_the_current_folder_out_of_planning_and_measuring(mywork: Path) -> None:
    refused = typed(mywork, *WORDS, PYTHONSAFEPATH="1")
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", UNSEARCHED)
    assert not (mywork / "outputs").exists()
    (mywork / "lib").mkdir()
    (mywork / "mywork.py").rename(mywork / "lib" / "mywork.py")
    assert typed(mywork, *WORDS, PYTHONSAFEPATH="1", PYTHONPATH=f"lib{os.pathsep}").returncode == 0
    (row,) = points(mywork).to_dict("records")
    assert (row["status"], str(mywork / "lib" / "mywork.py") in row["metrics"]) == ("ok", True)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P is newer")
def test_the_flags_of_the_interpreter_hold_for_a_users_module_too(mywork: Path) -> None:
    estimate = ("estimate", *WORDS)
    assert started(mywork, *estimate, python=["-P"]).stderr.decode() == UNSEARCHED
    assert started(mywork, *estimate, python=["-I"], PYTHONPATH=str(mywork)).stderr.decode() == UNSEARCHED
    assert started(mywork, *estimate, python=["-P"], PYTHONPATH=str(mywork)).returncode == 0


def test_files_in_the_current_folder_hide_no_module_that_sweeper_imports(mywork: Path) -> None:
    for name in ("json", "random", "queue", "yaml", "runners", "hydra", "pandas", "torch", "re", "signal", "difflib"):
        (mywork / f"{name}.py").write_text("raise SystemExit('a file of the user')\n")
    (mywork / "omegaconf").mkdir()
    (mywork / "omegaconf" / "__init__.py").write_text("raise SystemExit('a file of the user')\n")
    done = started(mywork, "estimate", *WORDS)
    assert (done.returncode, done.stderr) == (0, b"")


# --- the locale -------------------------------------------------------------------------------------------------------


def test_letters_beyond_ascii_need_no_quotes_and_reach_the_workload(mywork: Path) -> None:
    done = typed(mywork, *WORDS, "workload.params.text=é,grüße,a b ü,'{ß}'", "env.GREETING=grüße")
    assert done.returncode == 0, done.stderr
    texts = [row["workload.params.text"] for _, row in points(mywork).iterrows()]
    assert texts == ["é", "grüße", "a b ü", "{ß}"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_letter_that_the_output_cannot_show_is_escaped(mywork: Path, encoding: str) -> None:
    words = ("estimate", *WORDS, "workload.params.text=é,→")
    done = started(mywork, *words, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    shown = {"ascii": b"\\xe9", "latin-1": b"\xe9"}[encoding]
    assert shown in done.stdout
    assert b"\\u2192" in done.stdout


def test_bytes_that_are_no_text_in_the_locale_are_one_line(mywork: Path) -> None:
    done = started(mywork, *WORDS, "workload.params.text=é", **ASCII)
    expected = r"sweeper: workload.params.text=\udcc3\udca9: is not text in this locale's encoding, ascii; set LC_ALL=C"
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(expected)
    assert done.stderr.count(b"\n") == 1


def test_a_file_in_utf_8_is_read_in_any_locale(tmp_path: Path) -> None:
    (tmp_path / "mywork.py").write_text("import os\n\ndef run():\n    return {'bytes': os.environb[b'A'].hex()}\n")
    (tmp_path / "c" / "experiment").mkdir(parents=True)
    text = "# @package _global_\n# grüße\nenv: {A: grüße}\nworkload: {target: mywork:run}\n"
    file = "defaults: [override /workload: custom]\n"
    (tmp_path / "c" / "experiment" / "x.yaml").write_text(text + file, encoding="utf-8")
    done = started(tmp_path, "-cd", "c", "experiment=x", "devices=cpu", "name=mine", **ASCII)
    assert done.returncode == 0, done.stderr
    assert "grüße".encode().hex() in points(tmp_path)["metrics"][0]


def test_a_path_that_the_locale_cannot_write_is_one_line(mywork: Path) -> None:
    (mywork / "c" / "experiment").mkdir(parents=True)
    (mywork / "c" / "experiment" / "x.yaml").write_text("# @package _global_\noutputs: größe\n", encoding="utf-8")
    done = started(mywork, "-cd", "c", "experiment=x", *WORDS, **ASCII)
    expected = rb"sweeper: '\xf6\xdf' cannot be written in this locale's encoding, ascii; set LC_ALL=C.UTF-8"
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, b"", expected)

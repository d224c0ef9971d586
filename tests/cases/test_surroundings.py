"""The surroundings of a command: locale, search path, limits and files of the user's in the current folder."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
from pyarrow import ArrowException

from sweeper import cli
from sweeper.tables.run_tables import Tables
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


@pytest.mark.slow
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


# --- limits and streams -----------------------------------------------------------------------------------------------

SWEEP = ("model=mlp", "model.width=8", "context=4", "batch=1,2", "devices=cpu", "name=mine")


INSTEAD = "and limit the workload with budget=SIZE"


def limit(kind: int, size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (size, size))


@pytest.mark.parametrize(
    ("flag", "kind", "kib", "needs"),
    [
        (
            "-v",
            resource.RLIMIT_AS,
            400_000,
            "524288 KiB of addresses; raise it, and limit the workload with budget=SIZE",
        ),
        ("-d", resource.RLIMIT_DATA, 20_000, f"196608 KiB of memory; raise it, {INSTEAD}"),
        ("-s", resource.RLIMIT_STACK, 200, "256 KiB for its stack; raise it"),
        ("-f", resource.RLIMIT_FSIZE, 8, "1024 KiB in a file; raise it"),
    ],
)
def test_a_limit_under_which_sweeper_cannot_run_is_one_line_for_every_command(
    tmp_path: Path, flag: str, kind: int, kib: int, needs: str
) -> None:
    for words in (SWEEP, ("frontier", "outputs/mine")):
        done = started(tmp_path, *words, before=limit(kind, kib * 1024))
        expected = f"sweeper: ulimit {flag} is {kib}: sweeper itself needs {needs}\n"
        assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", expected)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_under_a_limit_of_memory_has_its_tables(tmp_path: Path) -> None:
    done = started(tmp_path, *SWEEP, before=limit(resource.RLIMIT_DATA, 300_000 * 1024))
    assert (done.returncode, done.stderr) == (0, b"")
    rows = points(tmp_path)
    assert set(rows["status"]) <= {"ok", "oom"}
    assert set(rows["budget_kind"]) == {"inherited_data_limit"}


@pytest.mark.parametrize("error", [MemoryError(), ArrowException("Unknown error: Failed to launch worker thread")])
def test_tables_for_which_there_is_no_memory_are_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sweeper", *SWEEP])
    with mock.patch.object(Tables, "write", side_effect=error):
        assert cli.main() == 3
    first, second, *go_on = capsys.readouterr().err.splitlines()
    assert go_on[0].startswith("sweeper: to go on: ")
    assert first.startswith("sweeper: the sweep stopped: ")
    assert second.endswith("on the disk, and this command with name=mine makes the tables from them")
    assert not (tmp_path / "outputs" / "mine" / "points.parquet").exists()
    assert cli.main() == 0
    assert list(points(tmp_path)["status"]) == ["ok", "ok"]
    assert list(points(tmp_path)["attempts"]) == [1, 1]


def test_a_sweep_whose_output_and_messages_cannot_be_written_has_its_tables(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "sweeper", *SWEEP], cwd=tmp_path, stdout=full, stderr=full)
    assert done.returncode == 0
    assert list(points(tmp_path)["status"]) == ["ok", "ok"]


def test_a_current_folder_that_was_removed_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    done = started(folder, "environment", before=folder.rmdir)
    expected = b"sweeper: the current folder was removed; change to another one\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", expected)


def test_without_a_reset_of_the_high_water_mark_the_resident_peaks_are_null_and_a_line_says_so(tmp_path: Path) -> None:
    read_only = "mount --bind /proc /proc && mount -o remount,bind,ro /proc"
    mounts = ["unshare", "-m", "sh", "-c", read_only]
    if shutil.which("unshare") is None or subprocess.run(mounts, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount")
    command = ["unshare", "-m", "sh", "-c", f'{read_only}; exec "$@"', "sh", sys.executable, "-m", "sweeper", *SWEEP]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        "sweeper: cpu: the resident peak of a phase cannot be measured, since /proc/self/clear_"
    )
    rows = points(tmp_path)
    assert rows["peak_resident_bytes"].isna().all()
    assert rows["peak_tensor_bytes"].notna().all()

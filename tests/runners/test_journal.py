"""The facts of an attempt survive whatever its workload does to the process: real files, real descriptors."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from runners import facts, journal
from runners.facts import Began, Cause, Ended, Failed, Finished
from runners.journal import HIGH, Journal

BEGAN = Began("forward", None, {})
ENDED = Ended("forward", None, 0.1, None, True, {}, {}, {})
FINISHED = Finished({}, None, None)
FAILED = Failed([Cause("ValueError")], None)


def kinds(path: Path) -> list[str]:
    return [facts.KINDS[type(fact)] for fact in journal.read(path)]


def descriptors_of(path: Path) -> list[int]:
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            if os.path.samestat(os.stat(entry.path), path.stat()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attempt" / "journal.jsonl"


@pytest.fixture
def written(path: Path) -> Journal:
    path.parent.mkdir()
    return Journal(path)


def test_what_is_written_is_read_back_in_order_with_the_time(written: Journal, path: Path) -> None:
    written.write(BEGAN._replace(baseline={"cpu": {"resident": 2**53 + 1}}))
    written.write(ENDED, FINISHED._replace(metrics={"loss": 0.1}))
    began, ended, finished = journal.read(path)
    assert began == Began("forward", None, {"cpu": {"resident": 2**53 + 1}}, began.t)
    assert finished == Finished({"loss": 0.1}, None, None, finished.t)
    assert 0 < (began.t or 0) <= (ended.t or 0) == finished.t


def test_a_journal_that_was_never_begun_is_empty(tmp_path: Path) -> None:
    assert journal.read(tmp_path / "no" / "journal.jsonl") == []


def test_a_torn_last_line_is_skipped_and_costs_no_other(written: Journal, path: Path) -> None:
    written.write(BEGAN, ENDED)
    with path.open("a") as file:
        file.write('{"t": 3.0, "kind": "fini')
    assert kinds(path) == ["began", "ended"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[1, 2]",
        "7",
        '{"t": 1.0}',
        '"kind"',
        "\x00\x00",
        '{"kind": "of another version"}',
        '{"kind": []}',
    ],
)
def test_a_line_without_a_known_kind_is_skipped(written: Journal, path: Path, line: str) -> None:
    written.write(BEGAN)
    with path.open("a") as file:
        file.write(line + "\n")
    written.write(ENDED)
    assert kinds(path) == ["began", "ended"]


def test_a_journal_can_be_read_at_every_length_it_ever_had(written: Journal, path: Path) -> None:
    for number in range(5):
        written.write(BEGAN._replace(phase="é" * number))
    whole = path.read_bytes()
    cut = path.with_name("cut.jsonl")
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        # without its newline the last line can already be whole
        assert len(journal.read(cut)) in (whole[:length].count(b"\n"), whole[:length].count(b"\n") + 1)


def test_a_second_writer_of_the_same_file_appends(written: Journal, path: Path) -> None:
    written.write(BEGAN)
    Journal(path).write(ENDED)
    assert kinds(path) == ["began", "ended"]


def test_the_descriptor_has_a_high_number_and_is_not_inherited(written: Journal, path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= HIGH:
        pytest.skip(f"at most {soft} files can be open here")
    (descriptor,) = descriptors_of(path)
    assert descriptor >= HIGH
    assert not os.get_inheritable(descriptor)


def test_a_descriptor_that_the_workload_closed_is_opened_again(written: Journal, path: Path) -> None:
    written.write(BEGAN)
    for descriptor in descriptors_of(path):
        os.close(descriptor)
    written.write(ENDED)
    written.write(FINISHED)
    assert kinds(path) == ["began", "ended", "finished"]


def test_a_descriptor_that_the_workload_reused_is_left_alone(written: Journal, path: Path, tmp_path: Path) -> None:
    written.write(BEGAN)
    (descriptor,) = descriptors_of(path)
    theirs = tmp_path / "theirs"
    with theirs.open("wb") as file:
        os.dup2(file.fileno(), descriptor)
    written.write(ENDED)
    os.write(descriptor, b"their own")
    os.close(descriptor)
    assert kinds(path) == ["began", "ended"]
    assert theirs.read_bytes() == b"their own"


def test_a_workload_that_changes_folder_and_closes_everything_loses_no_line(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(path.parent)
    written = Journal(Path("journal.jsonl"))
    os.chdir(elsewhere)
    (descriptor,) = descriptors_of(path)
    os.close(descriptor)
    written.write(BEGAN)
    assert kinds(path) == ["began"]
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_the_workload_removed_is_made_again_when_the_file_has_to_be(written: Journal, path: Path) -> None:
    written.write(BEGAN)
    (descriptor,) = descriptors_of(path)
    shutil.rmtree(path.parent)
    os.close(descriptor)
    written.write(FAILED)
    assert kinds(path) == ["failed"]


def test_a_removed_file_that_is_still_open_takes_its_lines(written: Journal, path: Path) -> None:
    """The supervisor has it open too, and puts it back (tests of the supervisor)."""
    kept = os.open(path, os.O_RDONLY)
    shutil.rmtree(path.parent)
    written.write(FAILED)
    assert json.loads(os.read(kept, 1000))["kind"] == "failed"
    os.close(kept)


def test_a_process_with_few_files_left_can_still_write(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from runners.facts import Began\n"
        "from runners.journal import Journal\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))\n"
        "Journal(Path(sys.argv[1])).write(Began('forward', None, {}))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert kinds(path) == ["began"]


def test_a_fork_of_the_writer_writes_nothing(written: Journal, path: Path) -> None:
    written.write(BEGAN)
    pid = os.fork()
    if pid == 0:
        try:
            written.write(ENDED)
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert kinds(path) == ["began"]


def test_threads_never_mix_their_lines(written: Journal, path: Path) -> None:
    def write(name: str) -> None:
        for _ in range(200):
            written.write(BEGAN._replace(phase=name * 300), ENDED._replace(phase=name * 300))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = journal.read_lines(path)
    assert len(lines) == 1600
    assert all(
        (one["kind"], two["kind"]) == ("began", "ended") for one, two in zip(lines[::2], lines[1::2], strict=True)
    )
    assert all(one["phase"] == two["phase"] for one, two in zip(lines[::2], lines[1::2], strict=True))


class Awkward:
    def __str__(self) -> str:
        raise RuntimeError("not printable")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        ({1: {2.5: None}}, {"1": {"2.5": None}}),
        ((1, [True, {2}]), [1, [True, [2]]]),
        (2**80, 2**80),
        ("\ud800", "?"),  # what Parquet cannot hold
        ({"\udcff": ValueError("\udcff")}, {"?": "?"}),
        ({Awkward(): 1}, {"<tests.runners.test_journal.Awkward, whose str() raised RuntimeError: not printable>": 1}),
        ("line\nbreak", "line\nbreak"),
        (Path("/x"), "/x"),
        (Awkward(), "<tests.runners.test_journal.Awkward, whose str() raised RuntimeError: not printable>"),
    ],
)
def test_whatever_a_workload_reports_is_one_line_of_json(written: Journal, path: Path, value: Any, kept: Any) -> None:
    written.write(FINISHED._replace(metrics=value))
    (line,) = journal.read_lines(path)
    assert line["metrics"] == kept
    assert path.read_bytes().count(b"\n") == 1
    json.dumps(line, ensure_ascii=False).encode()


def test_a_list_that_contains_itself_ends(written: Journal, path: Path) -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    written.write(ENDED._replace(metrics=endless))
    assert journal.read_lines(path)[0]["metrics"][0] == 1


def test_the_phase_under_way_is_read_from_the_end_of_the_journal(written: Journal, path: Path) -> None:
    assert journal.phase_under_way(path.with_name("missing")) is None
    assert journal.phase_under_way(path) is None
    written.write(BEGAN)
    assert journal.phase_under_way(path) == "forward"
    written.write(ENDED)
    assert journal.phase_under_way(path) == "between"
    written.write(BEGAN._replace(phase="backward"))
    for _ in range(2000):
        written.write(facts.Heartbeat("backward", None, {"cpu": {"resident": 1}}))
    assert path.stat().st_size > 2 * journal.END_BYTES
    assert journal.phase_under_way(path) == "backward"


@pytest.mark.parametrize(
    "line", [b"\xff\n", b"[1]\n", b'{"kind": "began"}\n', b'{"kind": "began", "phase": 7}\n', b"[" * 9000 + b"\n"]
)
def test_a_line_that_no_attempt_writes_names_no_phase(path: Path, line: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(line)
    assert journal.phase_under_way(path) is None


def test_a_pipe_in_place_of_a_journal_is_not_waited_for(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    assert journal.phase_under_way(path) is None

"""A sweep that is stopped, killed or cannot write: what it keeps, and that nothing is left running."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from runners import processes
from sweeper.tables.overview import overview
from tests import command_line

HERE = Path(__file__).parent
COMMON = ["devices=[cpu]", "parallel=true", "start=warm", "heartbeat=0.1", "timeout=60"]


def custom(target: str, *words: str) -> list[str]:
    return ["workload=custom", f"workload.target={target}", *words]


def program(script: str, *words: str) -> list[str]:
    """A shell script as the workload, with the batch as $1: what needs no torch starts five times as fast."""
    return ["workload=command", f"workload.argv=[sh,-c,'{script}',sh,'{{batch}}']", *words]


DOES_NOTHING = "true $1"
# With children in sessions of their own.
HANGS_FROM_3 = "if [ $1 -ge 3 ]; then for each in 1 2 3; do setsid sleep 3600 & done; touch hanging; sleep 3600; fi"
HANGS_AT_2_UNTIL_GO = "if [ $1 = 2 ]; then touch hanging; until [ -e go ]; do sleep 0.01; done; fi"
FAILS_AT_2_UNTIL_GO = "[ $1 != 2 ] || [ -e go ]"


class Sweep:
    """A sweep under way, in a process that a test can signal and kill."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.run = folder, folder / "outputs" / "run"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeper", *COMMON, "name=run", *words],
            cwd=folder,
            env=environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self, containing: str) -> str:
        """Wait for a printed line that contains this text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if containing in line:
                return line
        raise AssertionError(f"the sweep ended without printing {containing!r}: {self.process.communicate()}")

    def wait_until_it_hangs(self) -> None:
        """Wait for the script's own file, or for the phase of a function: an event and not a clock."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            journals = self.run.glob("points/*/*/journal.jsonl")
            if (self.folder / "hanging").exists() or any('"phase": "hanging"' in each.read_text() for each in journals):
                return
            time.sleep(0.01)
        raise AssertionError("nothing hangs")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def points(self) -> pd.DataFrame:
        return pd.read_parquet(self.run / "points.parquet")

    def everything_below(self) -> list[int]:
        return processes.descendants_of(self.process.pid)

    def pids(self) -> dict[str, int]:
        """The pids of the sweep's own processes."""
        ours = [pid for pid in self.everything_below() if b"supervise" in command_of(pid)]
        return dict(zip(("orchestrator", "watcher", "supervisor", "measured"), [self.process.pid, *ours], strict=True))


def command_of(pid: int) -> bytes:
    """The arguments of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """`sweep(*words)` starts one in the test's own folder; it is killed at the end of the test."""
    started: list[Sweep] = []

    def start(*words: str) -> Sweep:
        started.append(Sweep(tmp_path, *words))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.process.kill()
        each.process.communicate()


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE)}


def swept(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A sweep that nothing disturbs, when it has ended."""
    return command_line.run([*COMMON, "name=run", *words], folder, environ())


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / "outputs" / "run" / f"{name}.parquet")


def gone_within(seconds: float, pids: list[int]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    return processes._state(pid) not in (None, "Z")


def counts(points: pd.DataFrame) -> dict[str, int]:
    return {str(status): int(count) for status, count in points["status"].value_counts().items()}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_what_runs_and_keeps_what_is_finished(
    sweep: Callable[..., Sweep], number: int, code: int
) -> None:
    run = sweep(*custom("faulty:hangs_from", "workload.params.at=3", "batch=1,2,3,4,5"))
    run.wait_until_it_hangs()
    below = run.everything_below()
    began = time.monotonic()
    run.process.send_signal(number)
    ended, _, err = run.end()
    assert ended == code
    assert time.monotonic() - began < 5
    assert err.splitlines()[0] == "sweeper: stopping: 1 attempt may end in order; a second signal kills"
    assert err.endswith(" batch=1,2,3,4,5 name=run\n")
    assert counts(run.points()) == {"ok": 2, "interrupted": 1, "not_run": 2}
    assert gone_within(1, below)
    interrupted = run.points().query("status == 'interrupted'").iloc[0]
    assert interrupted["failed_phase"] == "hanging"
    assert bool(interrupted["peak_is_partial"])
    found = overview(run.run)
    assert (found.ended, found.why) == ("interrupted", signal.Signals(number).name)


def test_a_signal_to_the_whole_process_group_has_the_same_effect(sweep: Callable[..., Sweep]) -> None:
    run = sweep(*program(HANGS_FROM_3, "batch=1,2,3,4,5"))
    run.wait_until_it_hangs()
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end()[0] == 130
    assert counts(run.points()) == {"ok": 2, "interrupted": 1, "not_run": 2}


def test_a_second_signal_ends_the_sweep_at_once(sweep: Callable[..., Sweep]) -> None:
    run = sweep(*program(HANGS_FROM_3, "batch=1,2,3,4,5"))
    run.wait_until_it_hangs()
    below = run.everything_below()
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert gone_within(1, below)
    assert counts(run.points())["ok"] == 2


class OnTerminal:
    """A sweep on a terminal of 80 columns, with the keys that a person presses."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.text = ""
        command = [sys.executable, "-m", "sweeper", *COMMON, *words]
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            os.chdir(folder)
            os.execve(sys.executable, command, {**environ(), "TERM": "xterm-256color"})

    def read_until(self, shown: Callable[[str], bool]) -> None:
        until = time.monotonic() + 60
        while not shown(self.text):
            assert time.monotonic() < until, self.text
            if select.select([self.terminal], [], [], 0.02)[0]:
                try:
                    self.text += os.read(self.terminal, 2**16).decode()
                except OSError:  # the sweep has ended
                    assert shown(self.text), self.text

    def press(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def end(self) -> int:
        """The exit code, once everything is read."""
        with contextlib.suppress(OSError):
            while data := os.read(self.terminal, 2**16):
                self.text += data.decode()
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def plain(text: str) -> list[str]:
    """The lines of a terminal's output without its codes."""
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "").splitlines()


def test_ctrl_c_is_acknowledged_and_the_sweep_ends_with_the_command_that_goes_on(tmp_path: Path) -> None:
    outputs = tmp_path / "a folder"
    words = [f"outputs={outputs}", *program(HANGS_AT_2_UNTIL_GO, "batch=1,2,3")]
    run = OnTerminal(tmp_path, *words)
    run.read_until(lambda text: any(re.match("  cpu +[0-9]+ s  run  batch=2", line) for line in plain(text)))
    assert any("1 of 3" in line for line in plain(run.text))
    run.press(b"\x03")
    run.read_until(lambda text: "stopping: 1 attempt may end in order; a second signal kills" in text)
    assert "to go on" not in run.text
    assert run.end() == 130
    lines = plain(run.text)
    assert any("cpu  batch=1  fits" in line for line in lines)
    assert "3 points: 1 ok, 1 interrupted, 1 not_run; 1 fits, 2 undecided" in lines
    command = shlex.split(" ".join(line.removesuffix("\\") for line in lines[lines.index("sweeper: to go on:") + 1 :]))
    (folder,) = outputs.iterdir()
    assert command == [sys.executable, "-m", "sweeper", *COMMON, *words, f"name={folder.name}"]
    (tmp_path / "go").touch()
    done = command_line.run(command[3:], tmp_path, environ())
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("cpu  batch=1  fits")
    assert first.endswith("(measured before)")
    assert counts(pd.read_parquet(folder / "points.parquet")) == {"ok": 3}
    assert list(outputs.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("stopped", "killed"),
    [
        (None, ("orchestrator",)),
        (None, ("orchestrator", "supervisor")),
        (None, ("orchestrator", "watcher")),
        (None, ("orchestrator", "measured")),
        ("supervisor", ("orchestrator",)),
        ("watcher", ("orchestrator",)),
        ("measured", ("orchestrator",)),
    ],
)
def test_after_a_kill_nothing_is_left_running(
    sweep: Callable[..., Sweep], stopped: str | None, killed: tuple[str, ...]
) -> None:
    run = sweep(*program(HANGS_FROM_3, "batch=1,2,3,4,5"))
    run.wait_until_it_hangs()
    below, pids = run.everything_below(), run.pids()
    assert len(below) >= 7  # the watcher, the supervisor, the attempt, its program, and three in their own sessions
    if stopped is not None:
        os.kill(pids[stopped], signal.SIGSTOP)
    for victim in killed:
        os.kill(pids[victim], signal.SIGKILL)
    run.end()
    assert gone_within(5, below)
    assert len(list(run.run.glob("points/*/*/exit.json"))) >= 2  # finished attempts are kept
    assert overview(run.run).ended == "broke off"


@pytest.mark.parametrize("killed", [("supervisor",), ("watcher", "supervisor")])
def test_a_supervisor_that_is_killed_leaves_nothing_running_and_its_attempt_is_lost(
    sweep: Callable[..., Sweep], killed: tuple[str, ...]
) -> None:
    run = sweep(*program(HANGS_FROM_3, "batch=1,2,3,4,5"))
    run.wait_until_it_hangs()
    below, pids = run.everything_below(), run.pids()
    for victim in killed:
        os.kill(pids[victim], signal.SIGKILL)
    run.line("lost")
    assert gone_within(5, below)
    run.process.send_signal(signal.SIGINT)
    run.end()
    assert counts(run.points())["lost"] == 1


def test_a_sweep_measures_on_without_its_watcher(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    run = sweep(*program(HANGS_AT_2_UNTIL_GO, "batch=1,2,3,4"))
    run.wait_until_it_hangs()
    os.kill(run.pids()["watcher"], signal.SIGKILL)
    (tmp_path / "go").touch()
    assert run.end()[0] == 0
    assert counts(run.points()) == {"ok": 4}


def test_a_supervisor_that_was_stopped_when_its_sweep_was_killed_settles_nothing_after_the_run_is_resumed(
    sweep: Callable[..., Sweep], tmp_path: Path
) -> None:
    run = sweep(*program(HANGS_AT_2_UNTIL_GO, "batch=1,2,3,4"))
    run.wait_until_it_hangs()
    supervisor = run.pids()["supervisor"]
    os.kill(supervisor, signal.SIGSTOP)
    run.process.kill()
    run.end()
    (tmp_path / "go").touch()
    again = swept(tmp_path, *program(HANGS_AT_2_UNTIL_GO, "batch=1,2,3,4"))
    assert again.returncode == 0, again.stderr
    assert gone_within(5, [supervisor])
    attempts = table(tmp_path, "attempts")
    assert sorted(attempts.query("status == 'ok'")["batch"]) == [1, 2, 3, 4]


def test_a_finished_attempt_is_recalled_and_the_rest_is_measured(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    run = sweep(*program(HANGS_AT_2_UNTIL_GO, "batch=1,2,3,4"))
    run.wait_until_it_hangs()
    run.process.kill()
    run.end()
    (tmp_path / "go").touch()
    again = swept(tmp_path, *program(HANGS_AT_2_UNTIL_GO, "batch=4,2,3,1"))
    assert again.returncode == 0, again.stderr
    points, attempts = table(tmp_path, "points"), table(tmp_path, "attempts")
    assert counts(points) == {"ok": 4}
    assert points["point_id"].is_unique
    assert sorted(attempts["status"]) == ["interrupted", "ok", "ok", "ok", "ok"]
    assert again.stdout.count("measured before") == 1
    third = swept(tmp_path, *program(HANGS_AT_2_UNTIL_GO, "batch=1,2,3,4"))
    assert third.stdout.count("measured before") == 4
    assert len(table(tmp_path, "attempts")) == 5


def test_a_half_made_attempt_folder_counts_as_no_attempt_and_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "run"
    swept(tmp_path, *program(DOES_NOTHING))
    (whole,) = run.glob("points/*/*")
    half = whole.with_name(whole.name[:-1] + "2")
    half.mkdir()
    (half / "point.json.123.tmp").write_text("{")
    again = swept(tmp_path, *program(DOES_NOTHING))
    assert again.returncode == 0, again.stderr
    assert list(run.glob("points/*/*")) == [whole]


@pytest.mark.slow
def test_edited_code_and_changed_settings_are_refused_with_both_values_or_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = custom("mine:run", "batch=1,2")
    module = tmp_path / "mine.py"
    module.write_text("def run(batch):\n    return {'version': 1}\n")
    assert swept(tmp_path, *words).returncode == 0
    module.write_text("def run(batch):\n    return {'version': 2}\n")
    refused = swept(tmp_path, *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("sweeper: name=run: the code of mine:run was ")
    assert "resume=anew" in refused.stderr
    assert len(table(tmp_path, "attempts")) == 2
    assert swept(tmp_path, *words, "resume=anew").returncode == 0
    points, attempts = table(tmp_path, "points"), table(tmp_path, "attempts")
    assert list(points["metrics"]) == ['{"version": 2}'] * 2
    assert attempts.groupby("environment_id").size().tolist() == [2, 2]
    assert attempts.query("counts")["environment_id"].nunique() == 1
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    refused = swept(tmp_path, *words)
    assert refused.returncode == 2
    assert "MALLOC_ARENA_MAX was absent when it was measured, and is 1 now" in refused.stderr


def test_the_same_points_typed_differently_or_from_another_folder_are_recalled(tmp_path: Path) -> None:
    words = ["workload=command", "workload.argv=[sh,-c,'true',sh,'{batch}','{dtype}']"]
    assert swept(tmp_path, *words, "batch=1,2", "dtype=float16").returncode == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = swept(elsewhere, *words, "dtype=half", "batch=2,1", f"outputs={tmp_path / 'outputs'}")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("measured before") == 2


def test_retry_measures_a_status_again_and_keeps_both_attempts(tmp_path: Path) -> None:
    words = program(FAILS_AT_2_UNTIL_GO, "batch=1,2")
    assert swept(tmp_path, *words).returncode == 3
    (tmp_path / "go").touch()
    assert swept(tmp_path, *words).stdout.count("measured before") == 2
    retried = swept(tmp_path, *words, "retry=error")
    assert retried.returncode == 0
    assert retried.stdout.count("measured before") == 1
    assert counts(table(tmp_path, "points")) == {"ok": 2}
    attempts = table(tmp_path, "attempts")
    assert sorted(attempts["status"]) == ["error", "ok", "ok"]
    assert attempts.query("counts")["status"].tolist() == ["ok", "ok"]


def test_a_device_is_left_alone_after_the_same_error_as_often_as_stop_after_same_error_says(tmp_path: Path) -> None:
    ended = swept(tmp_path, *custom("faulty:raises", "batch=1,2,3,4,5", "stop_after_same_error=2"))
    assert ended.returncode == 3
    assert "stops here: the first 2 attempts ended with ValueError" in ended.stdout
    assert counts(table(tmp_path, "points")) == {"not_run": 3, "error": 2}


def test_running_out_of_memory_never_stops_a_sweep_early(tmp_path: Path) -> None:
    words = ("workload.params.mib=1", "batch=1,2,3", "stop_after_same_error=1")
    assert swept(tmp_path, *custom("faulty:asks_for_too_much", *words)).returncode == 0
    assert counts(table(tmp_path, "points")) == {"oom": 3}


def test_a_second_sweep_into_the_same_folder_is_refused_with_the_pid_that_holds_it(
    sweep: Callable[..., Sweep], tmp_path: Path
) -> None:
    first = sweep(*program(HANGS_FROM_3, "batch=3"))
    first.wait_until_it_hangs()
    second = swept(tmp_path, *program(DOES_NOTHING))
    assert second.returncode == 2
    assert f"pid {first.process.pid}" in second.stderr
    assert second.stderr.count("\n") == 1
    first.process.kill()  # leaves a lock file, and no lock
    first.end()
    assert swept(tmp_path, *program(DOES_NOTHING)).returncode == 0


def test_two_sweeps_without_a_name_get_two_folders(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sweeper", *COMMON, *program(DOES_NOTHING)]
    both = [subprocess.Popen(words, cwd=tmp_path, env=environ(), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert len(list((tmp_path / "outputs").iterdir())) == 2


def test_a_folder_that_is_removed_during_a_sweep_ends_it_in_one_line(
    sweep: Callable[..., Sweep], tmp_path: Path
) -> None:
    run = sweep(*custom("faulty:hangs_until", f"workload.params.file={tmp_path / 'go'}", "batch=1,2,3"))
    run.wait_until_it_hangs()
    shutil.rmtree(run.run)
    (tmp_path / "go").touch()
    code, _, err = run.end()
    assert code == 3
    assert err.startswith("sweeper: ")
    assert err.count("\n") == 1
    assert "removed" in err


def test_a_full_disk_ends_the_sweep_in_one_line_and_keeps_what_is_finished(tmp_path: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        ended = swept(tmp_path, *custom("faulty:good", f"outputs={disk}", "batch=range(1,60)"))
        assert ended.returncode == 3, ended.stdout + ended.stderr
        message, continuation = ended.stderr.splitlines()
        assert message.startswith("sweeper: ")
        assert "No space left" in message
        assert continuation.startswith("sweeper: to go on: python -m sweeper ")
        assert continuation.endswith(f" outputs={disk} 'batch=range(1,60)' name=run")
        assert list(disk.glob("run/points/*/*/exit.json"))
        shutil.copytree(disk / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("*.parquet"))
        shown = command_line.run(["frontier", str(tmp_path / "copy")], tmp_path)
        assert shown.returncode == 0, shown.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def limited(folder: Path, limit: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A sweep under a limit of the shell."""
    command = shlex.join([sys.executable, "-m", "sweeper", *COMMON, "name=run", *words])
    shell = ["bash", "-c", f"{limit}; exec {command}"]
    return subprocess.run(shell, cwd=folder, env=environ(), capture_output=True, text=True)


def test_a_limit_of_open_files_that_is_too_low_is_refused_with_its_value(tmp_path: Path) -> None:
    refused = limited(tmp_path, "ulimit -n 20", *program(DOES_NOTHING))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("sweeper: ulimit -n is 20: a sweep on a device opens up to 32 files")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "outputs").exists()


def test_a_sweep_measures_with_few_open_files(tmp_path: Path) -> None:
    done = limited(tmp_path, "ulimit -n 40", *program(DOES_NOTHING, "batch=1,2"))
    assert done.returncode == 0, done.stderr
    assert counts(table(tmp_path, "points")) == {"ok": 2}


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = swept(tmp_path, *program(DOES_NOTHING), "outputs=file/below")
    assert refused.returncode == 2
    assert refused.stderr.startswith("sweeper: outputs=")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("redirected", "message"),
    [(">&-", ""), ("<&- >&- 2>&-", ""), ("| head -1", ""), (">/dev/full", "continues without it")],
)
def test_a_sweep_measures_on_when_its_output_cannot_be_written(tmp_path: Path, redirected: str, message: str) -> None:
    words = [*COMMON, *program(DOES_NOTHING, "batch=1,2"), "name=run"]
    command = f"{shlex.join([sys.executable, '-m', 'sweeper', *words])} {redirected}"
    shell = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=tmp_path, env=environ(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == bool(message)
    assert counts(table(tmp_path, "points")) == {"ok": 2}


@pytest.mark.parametrize(
    ("hangup", "code", "statuses"),
    [(signal.SIG_DFL, 129, {"ok": 1, "interrupted": 1, "not_run": 1}), (signal.SIG_IGN, 0, {"ok": 3})],
)
def test_a_terminal_that_is_closed_stops_a_sweep_with_its_tables_unless_it_ignores_hangups(
    tmp_path: Path, hangup: signal.Handlers, code: int, statuses: dict[str, int]
) -> None:
    words = [sys.executable, "-m", "sweeper", *COMMON, "name=run", *program(HANGS_AT_2_UNTIL_GO, "batch=1,2,3")]
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, hangup)
        os.chdir(tmp_path)
        os.execve(sys.executable, words, environ())
    while not (tmp_path / "hanging").exists():  # a terminal that nobody reads would block the sweep
        if select.select([terminal], [], [], 0.02)[0]:
            os.read(terminal, 2**16)
    os.close(terminal)
    if hangup == signal.SIG_IGN:
        (tmp_path / "go").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    assert counts(table(tmp_path, "points")) == statuses


def test_a_mistake_ends_with_its_code_when_nobody_reads_the_message(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as nobody:
        refused = subprocess.run([sys.executable, "-m", "sweeper", "batch=x"], cwd=tmp_path, stderr=nobody)
    assert refused.returncode == 2


def test_a_sweep_ends_no_process_that_it_did_not_start(tmp_path: Path) -> None:
    """A shell starts two processes, one in a session of its own, and becomes the sweep: they are its children."""
    words = shlex.join([sys.executable, "-m", "sweeper", *COMMON, "name=run", *program(DOES_NOTHING, "batch=1,2")])
    script = "sleep 3600 > /dev/null 2>&1 & echo $! > first; setsid sleep 3600 > /dev/null 2>&1 & echo $! > second"
    done = subprocess.run(
        ["bash", "-c", f"{script}; exec {words}"], cwd=tmp_path, env=environ(), capture_output=True, text=True
    )
    others = [int((tmp_path / name).read_text()) for name in ("first", "second")]
    left = [pid for pid in others if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert left == others

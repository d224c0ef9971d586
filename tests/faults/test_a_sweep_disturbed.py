"""What a sweep keeps, and what it leaves running, when it is stopped, killed, or has no room to write."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from runners import processes

HERE = Path(__file__).parent
COMMON = ["devices=[cpu]", "parallel=true", "start=warm", "heartbeat=0.1", "timeout=60"]


class Sweep:
    """A sweep of faulty.py's workloads under way, in a folder of its own."""

    def __init__(self, folder: Path, target: str, *words: str, name: str = "run") -> None:
        self.folder, self.run = folder, folder / "outputs" / name
        target_words = ["workload=custom", f"workload.target={target}", f"name={name}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeper", *COMMON, *target_words, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(HERE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self, containing: str) -> str:
        """Wait until a line is printed that contains this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if containing in line:
                return line
        raise AssertionError(f"the sweep ended without saying {containing!r}: {self.process.communicate()}")

    def wait_for_phase(self, phase: str, count: int = 1) -> None:
        """Wait until that many journals say that the phase began: events, not clocks."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            journals = self.run.glob("points/*/*/journal.jsonl")
            if sum(f'"began", "phase": "{phase}"' in journal.read_text() for journal in journals) >= count:
                return
            time.sleep(0.01)
        raise AssertionError(f"phase {phase} did not begin {count} times")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def points(self) -> pd.DataFrame:
        return pd.read_parquet(self.run / "points.parquet")

    def everything_below(self) -> list[int]:
        return processes.descendants_of(self.process.pid)


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[type[Sweep]]:
    started: list[Sweep] = []

    class Started(Sweep):
        def __init__(self, target: str, *words: str, name: str = "run") -> None:
            super().__init__(tmp_path, target, *words, name=name)
            started.append(self)

    yield Started  # type: ignore[misc]
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.process.kill()
        each.process.communicate()


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


HANGS_AT_THREE = ("faulty:hangs_from", "workload.params.at=3", "batch=1,2,3,4,5")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_what_runs_and_keeps_what_is_finished(sweep: type[Sweep], number: int, code: int) -> None:
    run = sweep(*HANGS_AT_THREE)
    run.wait_for_phase("hanging")
    below = run.everything_below()
    began = time.monotonic()
    run.process.send_signal(number)
    assert run.end()[0] == code
    assert time.monotonic() - began < 5
    assert counts(run.points()) == {"ok": 2, "interrupted": 1, "not_run": 2}
    assert gone_within(1, below)
    interrupted = run.points().query("status == 'interrupted'").iloc[0]
    assert interrupted["failed_phase"] == "hanging"
    assert bool(interrupted["peak_is_partial"])


def test_a_signal_to_the_whole_group_is_no_different(sweep: type[Sweep]) -> None:
    run = sweep(*HANGS_AT_THREE)
    run.wait_for_phase("hanging")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end()[0] == 130
    assert counts(run.points()) == {"ok": 2, "interrupted": 1, "not_run": 2}


def test_a_second_signal_ends_it_at_once(sweep: type[Sweep]) -> None:
    run = sweep(*HANGS_AT_THREE)
    run.wait_for_phase("hanging")
    below = run.everything_below()
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert gone_within(1, below)
    assert counts(run.points())["ok"] == 2


@pytest.mark.parametrize("victim", ["orchestrator", "supervisor"])
def test_after_a_kill_nothing_is_left_running(sweep: type[Sweep], victim: str) -> None:
    run = sweep(*HANGS_AT_THREE, "workload.params.children=3")
    run.wait_for_phase("hanging")
    below = run.everything_below()
    supervisors = [pid for pid in below if b"supervise" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(below) >= 4  # the supervisor, the attempt, and what the attempt started in sessions of their own
    if victim == "orchestrator":
        run.process.kill()
        run.end()
        assert gone_within(1, below)
    else:
        os.kill(min(supervisors), signal.SIGKILL)
        run.line("lost")
        assert gone_within(5, below)
        run.process.send_signal(signal.SIGINT)
        run.end()
        assert counts(run.points())["lost"] == 1
    assert len(list(run.run.glob("points/*/*/exit.json"))) >= 2  # what was finished is kept


def test_a_finished_attempt_is_recalled_and_the_rest_is_measured(sweep: type[Sweep], tmp_path: Path) -> None:
    run = sweep("faulty:hangs_until", f"workload.params.file={tmp_path / 'go'}", "batch=1,2,3,4")
    run.wait_for_phase("hanging")
    run.process.kill()
    run.end()
    (tmp_path / "go").touch()
    again = sweep("faulty:hangs_until", f"workload.params.file={tmp_path / 'go'}", "batch=4,2,3,1")
    code, out, err = again.end()
    assert code == 0, err
    points, attempts = again.points(), pd.read_parquet(again.run / "attempts.parquet")
    assert counts(points) == {"ok": 4}
    assert points["point_id"].is_unique
    assert sorted(attempts["status"]) == ["interrupted", "ok", "ok", "ok", "ok"]
    assert out.count("measured before") == 1
    third = sweep("faulty:hangs_until", f"workload.params.file={tmp_path / 'go'}", "batch=1,2,3,4")
    assert third.end()[1].count("measured before") == 4
    assert len(pd.read_parquet(again.run / "attempts.parquet")) == 5


def test_an_attempt_whose_folder_was_half_made_has_not_been_one_and_nothing_of_it_is_left(sweep: type[Sweep]) -> None:
    first = sweep("faulty:good", "batch=1")
    first.end()
    (asked,) = first.run.glob("points/*/*")
    half = asked.with_name(asked.name[:-1] + "2")
    half.mkdir()
    (half / "point.json.123.tmp").write_text("{")
    code, _, err = sweep("faulty:good", "batch=1").end()
    assert code == 0, err
    assert list(first.run.glob("points/*/*")) == [asked]


def test_edited_code_and_changed_settings_are_refused_with_both_values_or_kept_apart(
    sweep: type[Sweep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "mine.py"
    module.write_text("def run(batch):\n    return {'version': 1}\n")
    assert sweep("mine:run", "batch=1,2").end()[0] == 0
    module.write_text("def run(batch):\n    return {'version': 2}\n")
    code, out, err = sweep("mine:run", "batch=1,2").end()
    assert (code, out) == (2, "")
    assert err.startswith("sweeper: name=run: the code of mine:run was ")
    assert "resume=anew" in err
    assert len(pd.read_parquet(tmp_path / "outputs/run/attempts.parquet")) == 2
    assert sweep("mine:run", "batch=1,2", "resume=anew").end()[0] == 0
    points = pd.read_parquet(tmp_path / "outputs/run/points.parquet")
    attempts = pd.read_parquet(tmp_path / "outputs/run/attempts.parquet")
    assert list(points["metrics"]) == ['{"version": 2}'] * 2
    assert attempts.groupby("environment_id").size().tolist() == [2, 2]
    assert attempts.query("counts")["environment_id"].nunique() == 1
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    code, _, err = sweep("mine:run", "batch=1,2").end()
    assert code == 2
    assert "MALLOC_ARENA_MAX was not there when it was measured, and is 1 now" in err


def test_the_same_points_typed_differently_or_from_another_folder_start_nothing(
    sweep: type[Sweep], tmp_path: Path
) -> None:
    assert sweep("faulty:good", "batch=1,2", "dtype=float16").end()[0] == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = Sweep(elsewhere, "faulty:good", "dtype=half", "batch=2,1", f"outputs={tmp_path / 'outputs'}")
    code, out, err = again.end()
    assert code == 0, err
    assert out.count("measured before") == 2


def test_retry_measures_a_class_of_failures_again_and_keeps_both(sweep: type[Sweep], tmp_path: Path) -> None:
    words = ("faulty:fails_until", f"workload.params.file={tmp_path / 'there'}", "batch=1,2")
    assert sweep(*words).end()[0] == 3
    (tmp_path / "there").touch()
    assert sweep(*words).end()[1].count("measured before") == 2
    run = sweep(*words, "retry=error")
    code, out, _ = run.end()
    assert code == 0
    assert out.count("measured before") == 1
    assert counts(run.points()) == {"ok": 2}
    attempts = pd.read_parquet(run.run / "attempts.parquet")
    assert sorted(attempts["status"]) == ["error", "ok", "ok"]
    assert attempts.query("counts")["status"].tolist() == ["ok", "ok"]


def test_a_device_whose_first_attempts_all_end_with_the_same_error_is_left_alone_if_asked(sweep: type[Sweep]) -> None:
    run = sweep("faulty:raises", "batch=1,2,3,4,5", "stop_after_same_error=2")
    code, out, _ = run.end()
    assert code == 3
    assert "stops here: the first 2 ended with ValueError" in out
    assert counts(run.points()) == {"not_run": 3, "error": 2}


def test_running_out_of_memory_never_stops_a_sweep_early(sweep: type[Sweep]) -> None:
    run = sweep("faulty:asks_for_too_much", "workload.params.mib=1", "batch=1,2,3", "stop_after_same_error=1")
    assert run.end()[0] == 0
    assert counts(run.points()) == {"oom": 3}


def test_a_second_sweep_into_the_same_folder_is_refused_and_told_who_holds_it(sweep: type[Sweep]) -> None:
    first = sweep("faulty:hangs_from", "workload.params.at=1", "batch=1")
    first.wait_for_phase("hanging")
    code, _, err = sweep("faulty:good", "batch=1").end()
    assert code == 2
    assert f"pid {first.process.pid}" in err
    assert err.count("\n") == 1
    first.process.kill()  # leaves a lock file, and no lock
    first.end()
    assert sweep("faulty:good", "batch=7").end()[0] == 0


def test_two_sweeps_without_a_name_get_two_folders(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sweeper", *COMMON, "workload=custom", "workload.target=faulty:good"]
    environ = {**os.environ, "PYTHONPATH": str(HERE)}
    both = [subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert len(list((tmp_path / "outputs").iterdir())) == 2


def test_a_folder_that_is_removed_meanwhile_ends_the_sweep_in_one_line(sweep: type[Sweep], tmp_path: Path) -> None:
    run = sweep("faulty:hangs_until", f"workload.params.file={tmp_path / 'go'}", "batch=1,2,3")
    run.wait_for_phase("hanging")
    shutil.rmtree(run.run)
    (tmp_path / "go").touch()
    code, _, err = run.end()
    assert code == 3
    assert err.startswith("sweeper: ")
    assert err.count("\n") == 1
    assert "removed" in err


def test_a_full_disk_ends_the_sweep_in_one_line_and_keeps_what_is_finished(tmp_path: Path, sweep: type[Sweep]) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        run = sweep("faulty:good", f"outputs={disk}", "batch=range(1,60)")
        code, out, err = run.end()
        assert code == 3, out + err
        assert err.startswith("sweeper: ")
        assert err.count("\n") == 1, err
        assert "No space left" in err
        settled = list(disk.glob("run/points/*/*/exit.json"))
        assert settled
        shutil.copytree(disk / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("*.parquet"))
        shown = subprocess.run(
            [sys.executable, "-m", "sweeper", "frontier", str(tmp_path / "copy")], capture_output=True, text=True
        )
        assert shown.returncode == 0, shown.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path, sweep: type[Sweep]) -> None:
    (tmp_path / "file").touch()
    code, _, err = sweep("faulty:good", "outputs=file/below").end()
    assert code == 2
    assert err.startswith("sweeper: outputs=")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("redirected", "said"),
    [(">&-", ""), ("<&- >&- 2>&-", ""), ("| head -1", ""), (">/dev/full", "goes on without it")],
)
def test_a_sweep_measures_on_where_nobody_can_read_what_it_says(tmp_path: Path, redirected: str, said: str) -> None:
    words = [*COMMON, "workload=custom", "workload.target=faulty:good", "batch=1,2", "name=run"]
    command = f"{shlex.join([sys.executable, '-m', 'sweeper', *words])} {redirected}"
    environ = {**os.environ, "PYTHONPATH": str(HERE)}
    shell = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said)
    assert counts(pd.read_parquet(tmp_path / "outputs/run/points.parquet")) == {"ok": 2}

"""The supervisor of a lane: the parent of its measured processes, which starts, watches and ends each of them.

It reads commands from stdin and writes answers to stdout, one JSON line each:

    {"run": FOLDER, "digest": TEXT}     # Attempt.digest of the request in the folder
                        ->  {"began": FOLDER, "pid": N}, optionally {"waiting": FOLDER, "for": TEXT} before or after,
                            then {"settled": FOLDER} once exit.json is in its place,
                            or {"unkept": FOLDER, "error": TEXT} if the workload left no place to write it to,
                            or {"failed": FOLDER, "error": TEXT} if it could not be read, or the disk not be written
    {"cancel": REASON}  ->  the attempt under way ends as interrupted, and is reported as settled
    {"expect": ATTEMPT}  # a request as in point.json, of which some values may be missing
                        ->  no answer: it imports the libraries of such attempts, before the first of them comes

When stdin closes, the orchestrator has died or is done, and the supervisor ends every process below it. With
`start=warm` it is the template: it imports the libraries, touches neither a device nor a tensor, and forks. If a
library initialises a GPU's driver as it is imported, attempts on a GPU start cold.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import re
import resource
import select
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from runners import (
    cgroups,
    child,
    contamination,
    files,
    gpu_driver,
    launch_command,
    locks,
    processes,
    ready_copy,
    stored_json,
    watcher,
)
from runners.facts import Exit, OutsideReading
from runners.meters import cpu
from runners.point import Attempt, AttemptFolder, write_aside
from runners.stored_json import LARGEST_OF_AN_ATTEMPT, Damaged

LONGEST_OUTPUT = 2**20  # bytes kept from the start of a workload's output
LAST_OUTPUT = 2**16  # bytes kept from its end
OUTSIDE_EVERY = 0.2  # seconds between readings from outside
READINGS_KEPT = 5  # from outside
LOCK_EVERY = 0.2  # seconds between attempts to lock a device that another sweep holds
MOST_REFUSALS = 10  # of a process by the system, before the attempt is unavailable: other processes may end meanwhile
REFUSED_EVERY = 0.5  # seconds between them
# After these no attempt can be kept. Any other error is about the folder of one attempt, whose workload changed it.
DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENFILE, errno.EMFILE, errno.ENOMEM)
# For a process to end after it was killed: longer in an uninterruptible sleep, or traced by another.
GRACE_SECONDS = 3.0
STOPPED_WITHIN = 1.0  # seconds between a SIGTERM to a supervisor and the command of a sweep that is stopped too
MOST_REAPED = 500  # processes between two looks at the deadline: a workload can fork them as fast as they are reaped
KILL_EVERY = 0.02  # seconds meanwhile between kills of what it started


def main(arguments: list[str]) -> None:
    """Serve one lane until stdin closes. The argument is the number of lanes that run at once (default 1)."""
    if sys.platform == "linux":
        watcher.fork_supervisor()
    try:
        Supervisor(lanes=int(arguments[0]) if arguments else 1).serve()
    except Exception as error:  # its attempt is then lost; a traceback would be among the lines of the sweep
        with contextlib.suppress(OSError):
            os.write(2, f"sweeper: a supervisor ended: {type(error).__name__}: {error}\n".encode())
        os._exit(1)


@dataclass
class Running:
    """The attempt under way."""

    folder: AttemptFolder
    attempt: Attempt
    pid: int | None = None  # None while it waits for its device
    process: subprocess.Popen[bytes] | None = None  # with start=cold
    output: Output | None = None
    journal: int | None = None  # a descriptor that is kept open: the workload may remove its folder
    began: float = 0.0
    started_at: str | None = None
    started_cold_because: str | None = None  # although a warm start was requested
    locks: list[IO[str]] = field(default_factory=list)
    reported_lock: bool = False  # whether the orchestrator knows that it waits for a lock
    watch: contamination.Watch | None = None  # of other processes on its devices
    next_watch: float = 0.0
    waits_for: str | None = None  # the processes or the memory that it waits for, as reported last
    machine: dict[str, Any] = field(default_factory=dict)
    refusals: int = 0  # how often the system refused a process
    ended: Exit | None = None  # set while it waits for its devices' memory to be freed
    timed_out: bool = False
    cancelled: str | None = None  # by the orchestrator, or because it died
    lost: str | None = None  # why it ends with its supervisor, which something else has ended
    killed_at: float | None = None  # by us
    killed: set[int] = field(default_factory=set)  # processes below us that were killed with it
    own_resident: int | None = None
    oom_kills: int | None = None
    kernel_log: int | None = None
    outside: list[OutsideReading] = field(default_factory=list)
    others: int = 0  # the most processes of the workload at once
    others_resident: int = 0  # the sum of their resident bytes: pages that they share count in each

    def close_files(self) -> None:
        for descriptor in (self.journal, self.kernel_log):
            if descriptor is not None:
                os.close(descriptor)
        self.journal = self.kernel_log = None

    def release_locks(self) -> None:
        for lock in self.locks:
            lock.close()
        self.locks = []


class Supervisor:
    def __init__(self, lanes: int = 1) -> None:
        self._lanes = lanes  # attempts that can run at once in our memory cgroup
        self._queue: list[tuple[AttemptFolder, str]] = []  # with the digest of its request
        self._running: Running | None = None
        self._devices = contamination.Lane()
        self._ready: ready_copy.ReadyCopy | None = None  # where attempts of a user's program can begin
        self._selector = selectors.DefaultSelector()
        self._next_look = 0.0
        self._unread = b""

    def serve(self) -> None:
        self._be_a_supervisor()
        while True:
            for key, _ in self._selector.select(self._seconds_to_wait()):
                if key.data == "commands" and not self._read_commands():
                    self._leave("the orchestrator ended")
                elif key.data == "signals":
                    self._read_signals()
                elif key.data == "output" and self._running and self._running.output:
                    self._read_output(self._running.output)
            self._check_time()

    def _be_a_supervisor(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the wake-up descriptor reports it, and SIGCHLD
        signal.signal(signal.SIGCHLD, lambda *_: None)
        processes.inherit_orphans()
        # Only answers go to the pipe: the output of a library that the template imports must not mix with them.
        self._answers = os.fdopen(processes.duplicate(1, 100), "w", buffering=1)
        os.dup2(2, 1)
        self._commands = processes.duplicate(0, 100)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.set_blocking(self._commands, False)
        self._signals, self._wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._selector.register(self._commands, selectors.EVENT_READ, "commands")
        self._selector.register(self._signals, selectors.EVENT_READ, "signals")

    # -- events -------------------------------------------------------------------------------------------------------

    def _read_commands(self) -> bool:
        """Handle the commands that have arrived. Returns False once the orchestrator has closed its end."""
        try:
            data = os.read(self._commands, 2**16)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            try:
                command = json.loads(line)
            except ValueError:  # a workload can write to this pipe, as every process of its user can
                with contextlib.suppress(OSError):
                    os.write(2, b"sweeper: a supervisor was sent something that is no command, and ends\n")
                os._exit(1)
            if "expect" in command:
                self._import_libraries(Attempt.from_json(command["expect"]))
            elif "run" in command:
                self._queue.append((AttemptFolder(Path(command["run"])), command["digest"]))
            elif self._running is not None:
                self._running.cancelled = command["cancel"]
                self._kill(self._running)
        self._start_next()
        return bool(data)

    def _read_output(self, output: Output) -> None:
        if not output.drain():
            self._selector.unregister(output.descriptor)  # else each wait would end at once

    def _read_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if signal.SIGTERM in os.read(self._signals, 2**10):
                self._end_on_request()
        for _ in range(MOST_REAPED):
            try:
                reaped = processes.reap()
            except ChildProcessError:
                return
            if reaped is None:
                return
            if self._running is not None and self._running.ended is None and reaped.pid == self._running.pid:
                self._settle(self._running, reaped)
        os.write(self._wakeup, bytes(1))  # the others next, after a look at the deadline

    def _seconds_to_wait(self) -> float | None:
        running = self._running
        if running is None:
            return None
        now = time.monotonic()
        wake = self._next_look
        runs = running.pid is not None and running.ended is None
        if runs and running.attempt.timeout is not None and running.killed_at is None:
            wake = min(wake, running.began + running.attempt.timeout)
        return max(0.0, wake - now)

    def _check_time(self) -> None:
        """Do what is due: try a device again, read from outside, end an attempt at its deadline."""
        running, now = self._running, time.monotonic()
        if running is None:
            return
        if running.pid is None:
            if now >= self._next_look:
                self._next_look = now + LOCK_EVERY
                self._begin(running)
            return
        if running.ended is not None:
            if now >= self._next_look:
                self._await_memory(running)
            return
        timeout = running.attempt.timeout
        if running.killed_at is not None:
            if now >= self._next_look:
                self._next_look = now + KILL_EVERY
                self._see_it_end(running)
        elif timeout is not None and now >= running.began + timeout:
            running.timed_out = True
            self._kill(running)
        elif now >= self._next_look:
            self._next_look = now + OUTSIDE_EVERY
            self._read_outside(running)

    # -- one attempt --------------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        while self._running is None and self._queue:
            folder, digest = self._queue.pop(0)
            try:
                self._running = Running(folder=folder, attempt=folder.attempt(digest))
            except Damaged as damaged:
                self._answer({"failed": str(folder.path), "error": str(damaged)})
                continue
            self._next_look = 0.0
            self._begin(self._running)

    def _begin(self, running: Running) -> None:
        if (why := child.refused(running.attempt)) is not None:
            self._write_end(running, Exit(unavailable=why))
            return
        if not self._take_device(running) or not self._device_is_free(running):
            return
        attempt = running.attempt
        if attempt.warm:
            self._import_libraries(attempt)
            running.started_cold_because = _why_not_forked(attempt)
        try:
            self._start(running)
        except OSError as error:
            self._is_refused(running, error)
            return
        assert running.output is not None
        self._selector.register(running.output.descriptor, selectors.EVENT_READ, "output")
        self._next_look = running.began + OUTSIDE_EVERY
        running.next_watch = running.began + contamination.LOOK_EVERY
        self._answer({"began": str(running.folder.path), "pid": running.pid})

    def _start(self, running: Running) -> None:
        """Start the measured process. Raises OSError."""
        attempt = running.attempt
        running.journal = files.open_to_write(running.folder.journal, os.O_RDONLY | os.O_CREAT)
        running.oom_kills, running.kernel_log = cgroups.oom_kills(), _open_kernel_log()
        running.machine = contamination.machine("start")
        running.own_resident = max(cpu.status_lines().get("VmHWM", 0), _own_maxrss())
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        running.output = Output(read_end, running.folder.output)
        running.started_at = datetime.now(timezone.utc).isoformat()
        running.began = time.monotonic()
        try:
            if attempt.warm and running.started_cold_because is None:
                running.pid = self._fork(running, write_end)
            else:
                running.process = _spawn(running, write_end)
                running.pid = running.process.pid
        finally:
            os.close(write_end)

    def _is_refused(self, running: Running, error: OSError) -> None:
        """Try again soon if the system has too many processes now, else settle as unavailable."""
        if running.output is not None:
            running.output.close()
            running.output = None
        why = f"no process could be started: {processes.why_refused(error)}"
        running.refusals += 1
        if error.errno != errno.EAGAIN or running.refusals >= MOST_REFUSALS:
            self._write_end(running, Exit(unavailable=why))
            return
        running.close_files()
        self._waits_for(running, why)
        self._next_look = time.monotonic() + REFUSED_EVERY

    def _take_device(self, running: Running) -> bool:
        """Lock every device until the attempt has settled, or none, and report once who holds one."""
        if running.locks:
            return True
        for path in running.attempt.locks:
            try:
                running.locks.append(locks.take(Path(path)))
            except locks.Held as held:
                running.release_locks()  # holding one while waiting for another could be a deadlock
                if not running.reported_lock:
                    running.reported_lock = True
                    self._answer({"waiting": str(running.folder.path), "for": held.holder or "another sweep"})
                return False
            except OSError as error:
                self._write_end(running, Exit(unavailable=f"{path} cannot be locked: {error.strerror}"))
                return False
        for lock in running.locks:
            locks.sign(lock, f"{running.folder.path} (pid {os.getpid()})")
        return True

    def _device_is_free(self, running: Running) -> bool:
        """Whether the attempt may start: its devices have no other process, or it has waited long enough."""
        if running.watch is None:
            running.watch = contamination.Watch(running.attempt.device.uuids, self._devices)
        return not self._waits_for(running, running.watch.before(time.monotonic()))

    def _await_memory(self, running: Running) -> None:
        """Settle once the devices' memory is freed, or after waiting long enough."""
        assert running.watch is not None
        assert running.ended is not None
        if not self._waits_for(running, running.watch.after(time.monotonic())):
            self._write_end(running, running.ended._replace(**running.watch.facts()))

    def _waits_for(self, running: Running, what: str | None) -> bool:
        if what is None:
            return False
        self._next_look = time.monotonic() + contamination.WAIT_EVERY
        if what != running.waits_for:
            running.waits_for = what
            self._answer({"waiting": str(running.folder.path), "for": what})
        return True

    def _import_libraries(self, attempt: Attempt) -> None:
        """Become the template. Until that is done, only the watcher notices that the orchestrator died."""
        ask_nvml = os.environ.get(gpu_driver.ASK_NVML)
        os.environ.setdefault(gpu_driver.ASK_NVML, "1")  # libraries that count devices leave the driver as it is
        collecting = garbage_collected_once() if attempt.device.is_calculated else contextlib.nullcontext()
        # The measured process reports libraries that cannot be imported.
        with contextlib.suppress(Exception), quiet_stderr(), collecting:
            child.import_libraries(attempt)
            child.import_meters(attempt)
        if ask_nvml is None:
            os.environ.pop(gpu_driver.ASK_NVML, None)  # the workload decides for itself

    def _fork(self, running: Running, output: int) -> int:
        supervisor = os.getpid()
        if (begun := self._begin_in_a_copy(running, output)) is not None:
            return begun
        pid = os.fork()
        if pid:
            if self._ready is not None:
                self._ready.forked()
            return pid
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(output, 2)
            # If the child kept the pipe of answers open, the orchestrator would not notice that the supervisor died.
            kept = [self._answers.fileno(), self._commands, self._signals, self._wakeup, output]
            kept += [fd for fd in (running.journal, running.kernel_log) if fd is not None]
            kept += [lock.fileno() for lock in running.locks]
            kept += [] if self._ready is None else [self._ready.fileno()]
            self._selector.close()
            for descriptor in kept:
                os.close(descriptor)
            os.chdir(running.attempt.cwd)
            keeper = None if self._ready is None else ready_copy.CopyKeeper(self._ready.theirs, supervisor)
            child.run(running.folder, running.attempt, parent=supervisor, keeper=keeper)
        except BaseException:
            traceback.print_exc()  # a bug of ours: its last line becomes the row's message
        finally:
            processes.leave(70)  # EX_SOFTWARE: child.run never returns

    def _begin_in_a_copy(self, running: Running, output: int) -> int | None:
        """The pid of the attempt's process, if an earlier attempt has left a copy for it; else a new one may."""
        key = ready_copy.key_of(running.attempt)
        if self._ready is not None and self._ready.key == key:
            pid = self._ready.begin(running.folder, running.attempt, output)
            if pid is not None:
                return pid
        if self._ready is not None:
            self._ready.close()
        self._ready = None if key is None else ready_copy.ReadyCopy(running.attempt)
        return None

    def _spared(self) -> list[int]:
        return [] if self._ready is None else self._ready.pids

    def _kill(self, running: Running) -> None:
        """Kill the attempt's whole session: a workload can ignore or delay any other signal."""
        if running.pid is None:  # still waiting for its device
            self._write_end(running, Exit(interrupted=True, reason=running.cancelled))
            return
        if running.ended is not None:  # it ended before it was cancelled, and only waits for its memory
            assert running.watch is not None
            self._write_end(running, running.ended._replace(**running.watch.facts()))
            return
        if running.killed_at is None:
            running.killed_at = time.monotonic()
            self._next_look = 0.0
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.pid, signal.SIGKILL)
            processes.kill(running.pid)  # it may not have its own session yet
            running.killed |= processes.kill_descendants(self._spared())

    def _see_it_end(self, running: Running) -> None:
        """Kill what the process started again, and settle without its end if that does not come.

        A process that was killed stays a zombie for as long as another traces it. Those below us are killed too; a
        debugger elsewhere is not ours to end.
        """
        assert running.killed_at is not None
        running.killed |= processes.kill_descendants(self._spared())
        if time.monotonic() >= running.killed_at + GRACE_SECONDS:
            self._settle(running, None)

    def _read_outside(self, running: Running) -> None:
        assert running.pid is not None
        now = time.monotonic()  # before the reading, so that one across the start of a phase does not count for it
        peak = cpu.read_status(running.pid).peak.get("resident")
        if peak is not None:
            reading = OutsideReading(now, peak, time.monotonic())
            running.outside = [*running.outside[1 - READINGS_KEPT :], reading]
        # A calculated attempt's row has no memory of processes: neither its own nor what it starts.
        others = [] if running.attempt.device.is_calculated else processes.family_of(running.pid)
        if others:
            resident = sum(cpu.read_status(pid).now.get("resident", 0) for pid in others)
            running.others = max(running.others, len(others))
            running.others_resident = max(running.others_resident, resident)
        if running.watch is not None and running.watch.measures and now >= running.next_watch:
            running.next_watch = now + contamination.LOOK_EVERY
            running.watch.during(now - running.began, lambda: processes.descendants_of(os.getpid()))

    def _settle(self, running: Running, reaped: processes.Reaped | None) -> None:
        """Collect the facts about an attempt whose process has ended, or (None) does not end although it was killed."""
        ended = time.monotonic()
        assert running.output is not None
        code = None if reaped is None else os.waitstatus_to_exitcode(reaped.status)
        if running.process is not None:
            running.process.returncode = code  # we reaped it ourselves, for its resource usage
        running.killed |= processes.end_descendants(self._spared())
        if running.output.descriptor in self._selector.get_map():
            self._selector.unregister(running.output.descriptor)
        running.output.close()
        exit = Exit(
            pid=running.pid,
            code=None if code is None or code < 0 else code,
            signal=None if code is None or code >= 0 else -code,
            timed_out=running.timed_out,
            duration_s=ended - running.began,
            maxrss_bytes=None if reaped is None else reaped.maxrss_bytes,
            supervisor_resident_bytes=running.own_resident,
            outside=running.outside,
            other_processes=running.others or None,
            other_processes_resident_bytes=running.others_resident or None,
            leftover_processes=len(running.killed - {running.pid}),
            output_truncated=running.output.truncated,
            last_output=running.output.last_line,
            **running.machine,
            **contamination.machine("end"),
        )
        if running.timed_out:
            exit = exit._replace(reason=f"not done after timeout={running.attempt.timeout:g} seconds")
        if running.cancelled is not None:
            exit = exit._replace(interrupted=True, reason=running.cancelled)
        elif running.lost is not None and not running.timed_out:
            exit = exit._replace(lost=True, reason=running.lost)
        if reaped is None:
            why = f"process {running.pid} did not end within {GRACE_SECONDS:g} seconds after it was killed"
            exit = exit._replace(reason=f"{exit.reason}; {why}")
        if code == -signal.SIGKILL and running.killed_at is None:
            exit = exit._replace(oom_kill_proof=self._proof_of_oom_kill(running))
        assert running.watch is not None
        if running.cancelled is not None or running.lost is not None:
            # Ends now: the facts include no wait that did not take place.
            self._write_end(running, exit._replace(**running.watch.facts()))
            return
        running.ended = exit
        self._await_memory(running)

    def _proof_of_oom_kill(self, running: Running) -> str | None:
        """The evidence that a SIGKILL came from the kernel's OOM killer; None where there is none.

        Lanes can share a cgroup: its count proves something only if it rose by as many as could have been killed.
        """
        if running.kernel_log is not None and _kernel_log_names(running.kernel_log, running.pid):
            return f"the kernel's log names process {running.pid} as killed because memory ran out"
        kills = cgroups.oom_kills()
        if kills is not None and running.oom_kills is not None and kills - running.oom_kills >= self._lanes:
            return f"the memory cgroup's oom_kill count rose by {kills - running.oom_kills}"
        return None

    def _write_end(self, running: Running, exit: Exit) -> None:
        """Write exit.json, and what the workload removed of its folder; then start the next attempt."""
        answer = {"settled": str(running.folder.path)}
        if self._is_repeated(running):
            os._exit(0)
        exit = exit._replace(started_at=running.started_at, started_cold_because=running.started_cold_because)
        try:
            _keep(running, exit)
        except OSError as error:
            why = f"{error.filename or running.folder.path} cannot be written: {error.strerror}"
            how = "failed" if error.errno in DISK_FAILURES else "unkept"
            answer = {how: str(running.folder.path), "error": why}
        except MemoryError:
            why = f"{running.folder.path} cannot be written: the supervisor has no memory left"
            answer = {"failed": str(running.folder.path), "error": why}
        running.close_files()
        running.release_locks()
        self._running = None
        self._answer(answer)
        self._start_next()

    def _is_repeated(self, running: Running) -> bool:
        """Whether the orchestrator died and another one has begun the point's next attempt: this one must not settle.

        The other one counted this attempt as never settled. If both settled, the point would be measured twice.
        """
        later = replace(running.attempt, number=running.attempt.number + 1)
        return (running.folder.path.parent / Path(later.name).name).exists()

    def _end_on_request(self) -> None:
        """Leave, since this process was sent SIGTERM. The attempt under way is interrupted if the sweep is stopped too.

        A batch system sends SIGTERM to every process of a job, and the orchestrator's command comes a moment later. If
        none comes, somebody else has ended this process, as the workload can: the attempt is lost, and is not repeated
        by each sweep that resumes the run.
        """
        running = self._running
        if running is not None and running.pid is not None and running.ended is None:
            self._kill(running)
            arrived = running.cancelled is None and select.select([self._commands], [], [], STOPPED_WITHIN)[0]
            if arrived and not self._read_commands():
                self._leave("the orchestrator ended")
            if running.cancelled is None:
                running.lost = "its supervisor was ended by SIGTERM"
        self._leave("the supervisor was ended by SIGTERM")

    def _leave(self, reason: str) -> None:
        """End the attempt under way, write its exit.json, and exit. One that has not begun is left to a successor."""
        self._queue.clear()
        running = self._running
        if running is not None and running.pid is not None:
            if running.lost is None and running.cancelled is None:
                running.cancelled = reason
            self._kill(running)
            while self._running is running:
                with contextlib.suppress(ChildProcessError):
                    reaped = processes.reap(running.pid)
                    if reaped is not None:
                        self._settle(running, reaped)
                        break
                self._see_it_end(running)
                time.sleep(0.002)
        processes.end_descendants()
        os._exit(0)

    def _answer(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the orchestrator is gone: stdin is closed too
            print(json.dumps(answer), file=self._answers, flush=True)


class Output:
    """The start and the end of a workload's output. Reading it never blocks the supervisor or the workload."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self._path = path
        self._start = bytearray()
        self._end = bytearray()
        self._dropped = 0

    @property
    def truncated(self) -> bool:
        return self._dropped > 0

    @property
    def last_line(self) -> str | None:
        """Where the process crashed according to faulthandler, or the last line it printed."""
        text = bytes((self._end or self._start)[-(2**14) :]).decode("utf-8", "replace")
        crash = re.search(r"(Fatal Python error: [^\n]*)\n", text)  # faulthandler's
        where = re.search(r"Current thread [^\n]*\n  (File [^\n]*)", text)
        if crash:
            return f"{crash[1]}{', ' + where[1] if where else ''}"[:500]
        return next((line.strip()[:500] for line in reversed(text.splitlines()) if line.strip()), None)

    def drain(self, most: int = 2**22) -> bool:
        """Read what is there, at most `most` bytes, so that the deadline is checked during a flood.

        Returns False once every writer has closed its end: a process that ends, or a workload that closes its output.
        """
        while most > 0:
            try:
                data = os.read(self.descriptor, 2**16)
            except BlockingIOError:
                return True
            if not data:
                return False
            most -= len(data)
            room = LONGEST_OUTPUT - len(self._start)
            self._start += data[:room]
            self._end += data[room:]
            if len(self._end) > 2 * LAST_OUTPUT:
                self._dropped += len(self._end) - LAST_OUTPUT
                del self._end[:-LAST_OUTPUT]
        return True

    def close(self) -> None:
        self.drain()
        os.close(self.descriptor)
        if not self._start:
            return
        with contextlib.suppress(OSError):  # a full disk costs the log, not the attempt
            note = f"\n[... {self._dropped} bytes left out ...]\n".encode() if self._dropped else b""
            files.write(self._path, bytes(self._start + note + self._end))


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discard what libraries write to stderr as they are imported: it would appear between the lines of the sweep."""
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextlib.contextmanager
def garbage_collected_once() -> Iterator[None]:
    """Around imports: collect garbage once, at the end, and let no later collection look at what is alive then.

    Collections during the imports of torch and transformers took 0.6 of 3.3 s, and one in a fork copies every page of
    the heap. Only for processes whose memory does not count: it moves that of the process. A fork starts with the
    collector's counts of a whole collection, so that it collects as rarely as a process that has imported the same.
    """
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.collect()
            gc.freeze()
        gc.enable()


def _why_not_forked(attempt: Attempt) -> str | None:
    """Why a fork of this template could not use the attempt's GPU; None if it can, or has none."""
    if attempt.device.is_cpu or attempt.device.is_calculated:
        return None
    found = gpu_driver.initialised()
    return None if found is None else f"a library initialised the driver as it was imported: {found}"


def _spawn(running: Running, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        launch_command.command(
            sys.executable, "child", str(running.folder.path), str(os.getpid()), running.attempt.digest
        ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=running.attempt.cwd,
        env=launch_command.environ(running.attempt.environ or {}),
        start_new_session=True,
    )


def _keep(running: Running, exit: Exit) -> None:
    """Write how an attempt ended, after what its workload removed or changed in its folder. Raises OSError."""
    folder, size = running.folder, None
    _restore_folder(folder.path)
    if not _holds(folder.request, running.attempt):
        write_aside(folder.request, running.attempt.to_json())
    if running.journal is not None:
        size = _restore(folder.journal, running.journal)
    shutil.rmtree(folder.reports, ignore_errors=True)  # left by a program that was killed
    folder.settle(exit._replace(journal_bytes=size))


def _restore_folder(path: Path) -> None:
    """Make an attempt's folder again if its workload removed it. Raises OSError if something else has its name.

    A folder above it is not made again: somebody has removed the run.
    """
    kind = files.kind_of(path)
    if kind is None:
        path.mkdir()
    elif kind != files.FOLDER:
        raise OSError(errno.ENOTDIR, f"the workload replaced this folder by {kind}", str(path))
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        path.chmod(0o755)


def _holds(request: Path, attempt: Attempt) -> bool:
    try:
        return files.read(request, LARGEST_OF_AN_ATTEMPT) == stored_json.sealed(attempt.to_json())
    except (OSError, MemoryError):
        return False


def _restore(path: Path, descriptor: int) -> int:
    """Write the lines of a journal that has lost its name again; its writer is dead. Returns its size. Raises OSError.

    If the workload also closed its descriptor, the lines since then are in the file that has the name now.
    """
    was = os.fstat(descriptor)
    try:
        now = os.lstat(path)
        if os.path.samestat(was, now):
            return now.st_size
        since = files.read(path, LARGEST_OF_AN_ATTEMPT) if stat.S_ISREG(now.st_mode) else b""
    except FileNotFoundError:
        since = b""
    if was.st_size > LARGEST_OF_AN_ATTEMPT:
        raise OSError(errno.EFBIG, f"it has {was.st_size} bytes", str(path))
    lines = os.pread(descriptor, was.st_size, 0) + since
    files.write(path, lines)
    return len(lines)


def _own_maxrss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _open_kernel_log() -> int | None:
    """A descriptor of the kernel's log from now on; None where it may not be read."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        return None
    return descriptor


def _kernel_log_names(descriptor: int, pid: int | None) -> bool:
    while True:
        try:
            record = os.read(descriptor, 2**13)
        except BlockingIOError:
            return False
        except OSError:  # EPIPE: a record was overwritten before it was read
            continue
        if f"Killed process {pid} ".encode() in record:
            return True

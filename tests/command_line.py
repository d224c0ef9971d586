"""Runs `python -m sweeper` without waiting for its imports: each command is a copy of a process that has them already.

A command line spends 0.6 s of processor time on Hydra, pandas and pyarrow before it reads its first word, and the tests
run hundreds. `run` is for tests of what a command does. Tests of how the command starts, of signals and of closed
streams start `sys.executable` themselves.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import other_user

ROOT = Path(__file__).resolve().parents[1]


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 120, user: int | None = None
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, "-m", "sweeper", *words])` returns, with the output captured as text.

    `user`: the id of another user, whom only root can become.
    """
    template = _template()
    if template.poll() is not None:  # an engine that a test closes ends every process below the test's
        _template.cache_clear()
        template = _template()
    assert template.stdin is not None
    assert template.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"words": list(words), "cwd": str(cwd), "env": dict(os.environ if env is None else env), "user": user}
        template.stdin.write(json.dumps(request | {"out": str(out), "err": str(err)}) + "\n")
        template.stdin.flush()
        if not select.select([template.stdout], [], [], timeout)[0]:
            os.killpg(template.pid, signal.SIGKILL)  # the command too; its supervisors end with it
            _template.cache_clear()
            raise subprocess.TimeoutExpired(list(words), timeout, out.read_text(), err.read_text())
        code = json.loads(template.stdout.readline())
        return subprocess.CompletedProcess(list(words), code, out.read_text(), err.read_text())


@functools.cache
def _template() -> subprocess.Popen[str]:
    template = subprocess.Popen(
        [sys.executable, "-c", "from tests.command_line import serve; serve()"],
        cwd=ROOT,
        # numpy starts threads when it is imported, and threads do not fork.
        env={**os.environ, "PYTHONPATH": "", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(template.communicate)  # closes its stdin, and it leaves
    return template


def serve() -> None:
    """The template: one JSON line per command on stdin, its exit code on stdout once it has ended."""
    import_everything()
    while line := os.read(0, 2**20):  # a request is one write of a test that then waits
        while not line.endswith(b"\n"):
            line += os.read(0, 2**20)
        pid = os.fork()
        if pid == 0:
            return become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def import_everything() -> None:
    import sweeper

    for module in pkgutil.walk_packages(sweeper.__path__, "sweeper."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("zoneinfo")  # pyarrow needs it later; another user may not read the interpreter's files


def become(command: dict[str, Any]) -> None:
    """Be what the interpreter is for `python -m sweeper` when its start is over; return or raise as that would."""
    for path, flags, descriptor in (
        (os.devnull, os.O_RDONLY, 0),
        (command["out"], os.O_WRONLY | os.O_CREAT, 1),
        (command["err"], os.O_WRONLY | os.O_CREAT, 2),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    if command.get("user") is not None:
        other_user.become(command["user"])
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    tempfile.tempdir = None  # follows TMPDIR
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [command["cwd"], *added, *sys.path[1:]]  # the template itself was started without PYTHONPATH
    sys.argv = ["sweeper", *command["words"]]
    runpy.run_module("sweeper", run_name="__main__", alter_sys=True)

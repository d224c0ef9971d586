"""Trees of real processes: found, ended, and dying with their parent or of a given signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runners import processes

ROOT = Path(__file__).parents[2]
# A program with a child and, below it, a grandchild; it prints their pids and waits until it is ended.
TREE = """
import subprocess, sys
below = sys.argv[1:]
if below:
    child = subprocess.Popen([sys.executable, "-S", "-c", below[0], *below[1:]], stdout=subprocess.PIPE, text=True)
    print(child.pid, child.stdout.readline().strip(), flush=True)
else:
    print(flush=True)
sys.stdin.read()
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", code, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True)


@contextmanager
def tree() -> Iterator[tuple[int, int, int]]:
    """The pids of a process, its child and its grandchild."""
    with python(TREE, TREE, TREE) as root:
        assert root.stdout is not None
        child, grandchild = map(int, root.stdout.readline().split())
        try:
            yield root.pid, child, grandchild
        finally:
            os.killpg(root.pid, signal.SIGKILL)


def test_the_processes_below_one_are_found_by_either_list() -> None:
    with tree() as (root, child, grandchild):
        assert processes.descendants_of(root) == [child, grandchild]
        assert processes.family_of(root) == [child, grandchild]
        assert processes.family_of(grandchild) == []
        assert {root, child, grandchild} <= set(processes.descendants_of(os.getpid()))


ENDS = """
import os, subprocess, sys
from runners import processes
processes.inherit_orphans()
start = lambda *below: subprocess.Popen(
    [sys.executable, "-S", "-c", sys.argv[1], *below], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    start_new_session=True,
)
ended, spared = start(sys.argv[1]), start(sys.argv[1])
below_ended, below_spared = (int(each.stdout.readline()) for each in (ended, spared))
print(len(processes.end_descendants(spare=[spared.pid])))
print(processes.descendants_of(os.getpid()) == [spared.pid, below_spared])
print(len(processes.end_descendants()))
print(processes.descendants_of(os.getpid()))
"""


def test_everything_below_is_ended_in_whichever_session_and_what_is_spared_lives() -> None:
    with python(ENDS, TREE) as ends:
        printed, _ = ends.communicate(timeout=30)
    assert printed.splitlines() == ["2", "True", "2", "[]"]


DIES_WITH = """
import os, subprocess, sys, time
child = "import sys; from runners import processes; processes.die_with(int(sys.argv[1])); print('there', flush=True); sys.stdin.read()"
subprocess.Popen([sys.executable, "-S", "-c", child, str(os.getpid())])
time.sleep(600)
"""  # noqa: E501


def test_a_child_dies_with_its_parent() -> None:
    with python(DIES_WITH) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "there\n"
        parent.kill()
        assert parent.stdout.read() == "", "no process holds the pipe"


def test_a_child_whose_parent_is_dead_already_dies_at_once() -> None:
    with python("from runners import processes; processes.die_with(1); print('alive')") as child:
        printed, _ = child.communicate(timeout=30)
    assert (printed, child.returncode) == ("", -signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_process_ends_by_the_signal_that_ended_its_own(number: signal.Signals) -> None:
    code = (
        "import signal, sys; from runners import processes\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "processes.die_of(int(sys.argv[1]))"
    )
    with python(code, str(int(number))) as child:
        child.communicate(timeout=30)
    assert child.returncode == -number


def test_a_process_that_became_a_program_or_is_gone_borrows_no_memory() -> None:
    with python("import sys; sys.stdin.read()") as child:
        assert processes.borrows_memory(child.pid) is False
        child.communicate(timeout=30)
    assert processes.borrows_memory(child.pid) is False


def test_a_process_between_vfork_and_exec_borrows_its_parents_memory() -> None:
    """As vfork does, clone with CLONE_VM lets the child run in its parent's memory, here without an exec to come."""
    code = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "pid = os.getpid()\n"
        "CLONE_VM, SIGCHLD = 0x100, 17\n"
        "stack = ctypes.create_string_buffer(2**16)\n"
        "entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(('pause', libc))\n"
        "top = ctypes.c_void_p(ctypes.addressof(stack) + 2**16 - 64)\n"
        "child = libc.clone(entry, top, CLONE_VM | SIGCHLD, None)\n"
        "from runners import processes\n"
        "print(processes.borrows_memory(child))\n"
        "os.kill(child, 9)\n"
        "os.waitpid(child, 0)\n"
    )
    with python(code) as parent:
        printed, _ = parent.communicate(timeout=30)
    assert printed == "True\n"


HAS_OTHERS = """
import os, subprocess, sys, time
from runners import processes
processes.inherit_orphans()
nested = "import subprocess; print(subprocess.Popen(['sleep', '3600'], stdout=-3).pid, flush=True)"
before = subprocess.Popen([sys.executable, "-S", "-c", nested + "; input()"], stdin=-1, stdout=-1, text=True)
first = int(before.stdout.readline())
others = processes.Present()
before.communicate("\\n")  # it ends, and its child becomes ours
late = subprocess.Popen(["sleep", "3600"])  # in our session
ours = subprocess.Popen(["sleep", "3600"], start_new_session=True)
print(sorted(others.now()) == sorted([first, late.pid]))
print(processes.end_descendants(spare=others.now()) == {ours.pid})
print(sorted(processes.descendants_of(os.getpid())) == sorted([first, late.pid]))
print(processes.end_descendants() == {first, late.pid}, processes.descendants_of(os.getpid()))
"""


def test_descendants_that_were_there_before_are_known_by_their_session_when_they_are_orphans() -> None:
    with python(HAS_OTHERS) as root:
        printed, _ = root.communicate(timeout=30)
    assert printed.splitlines() == ["True", "True", "True", "True []"]


def test_a_killed_group_takes_with_it_who_replaces_itself_all_the_time() -> None:
    hops = "import os, sys; sys.stdout.write('.'); sys.stdout.flush()\nwhile not os.fork(): pass"
    code = (
        "import os, subprocess, sys\nfrom runners import processes\nprocesses.inherit_orphans()\n"
        "hops = subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]], stdout=-1, start_new_session=True)\n"
        "hops.stdout.read(1)\nprocesses.end_descendants()\nprint(processes.descendants_of(os.getpid()))"
    )
    with python(code, hops) as root:
        printed, _ = root.communicate(timeout=30)
    assert printed == "[]\n"

"""Workloads that end badly, each in its own way. Those that touch memory first touch `mib` MiB."""

import os
import resource
import sys
import time

MIB = 2**20


def touch(mib):
    import torch

    return torch.ones(mib * MIB // 4)


def good(*, phase, mib=64, **_):
    with phase("work"):
        kept = touch(mib)
    return {"bytes": kept.numel() * 4}


def raises(*, phase, mib=128, **_):
    with phase("work"):
        kept = touch(mib)
        raise ValueError(f"a bug after {kept.numel()} numbers")


class Shy(Exception):
    """Cannot be pickled, printed or compared."""

    def __init__(self, *, secret):
        self.secret = secret

    def __str__(self):
        raise RuntimeError("not even this")

    __repr__ = __str__

    def __reduce__(self):
        raise TypeError("no")


def raises_shyly(*, phase, mib=128, **_):
    with phase("work"):
        kept = touch(mib)
        raise Shy(secret=(kept, lambda: 0))


def raises_undecodable(*, phase, mib=128, **_):
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        raise ValueError("half a pair \ud800, a null \0, " + b"\xff\xfe".decode("latin-1"))


def raises_hugely(*, phase, mib=128, **_):
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        raise ValueError("x" * 50_000_000)


def exits(*, phase, code=0, mib=128, **_):
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        sys.exit(code)


def raises_base_exception(*, phase, mib=128, **_):
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        raise BaseException("the root of all")


def interrupts_itself(*, phase, mib=128, **_):
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        raise KeyboardInterrupt


def leaves(*, phase, code=0, mib=128, **_):
    """Ends without reporting a result."""
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        wait_for_a_reading()
        os._exit(code)


def signals_itself(*, phase, number=9, mib=512, **_):
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        os.kill(os.getpid(), number)


def segfaults(*, phase, mib=512, **_):
    import ctypes

    with phase("work"):
        kept = touch(mib)  # noqa: F841
        ctypes.string_at(0)


def hangs_ignoring_sigterm(*, phase, mib=128, **_):
    import signal
    import time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        time.sleep(3600)


def hangs_in_c(*, phase, mib=128, **_):
    """Never returns to the interpreter: no Python thread and no signal handler runs."""
    import ctypes

    with phase("work"):
        kept = touch(mib)  # noqa: F841
        wait_for_a_reading()
        ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the interpreter's lock


def leaves_grandchildren(*, phase, mib=64, **_):
    """Leaves two processes: one in a session of its own, and one that keeps its output open."""
    import subprocess

    with phase("work"):
        kept = touch(mib)
        subprocess.Popen(["sleep", "3600"], start_new_session=True, stdout=subprocess.DEVNULL)
        subprocess.Popen(["sleep", "3600"])
    return {"bytes": kept.numel() * 4}


def has_fifty_children(*, phase, mib=64, **_):
    import subprocess
    import time

    with phase("work"):
        kept = touch(mib)  # noqa: F841
        for _ in range(50):
            subprocess.Popen(["sleep", "3600"], start_new_session=True)
        time.sleep(3600)


def works_in_a_child(*, phase, mib=256, **_):
    """Takes its memory in another process."""
    import subprocess

    code = f"import time; kept = bytearray({mib} * 2**20); print('there', flush=True); time.sleep(1)"
    with phase("work"), subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"there\n"
        child.wait()


def floods(*, phase, mib=64, **_):
    with phase("work"):
        kept = touch(mib)
        for _ in range(40):
            sys.stdout.write("x" * 1_000_000 + "\n")
            sys.stderr.write("y" * 1_000_000 + "\n")
    return {"bytes": kept.numel() * 4}


def closes_descriptors(*, phase, mib=64, **_):
    with phase("work"):
        kept = touch(mib)
        os.closerange(3, 4096)
        keep_open = [open(os.devnull) for _ in range(20)]  # noqa: F841, SIM115 (takes the numbers that were closed)
    with phase("after"):
        pass
    return {"bytes": kept.numel() * 4}


def closes_its_output(*, phase, seconds=0.3, **_):
    """Returns the seconds of a core that its supervisor takes meanwhile."""

    def taken():
        with open(f"/proc/{os.getppid()}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with phase("run"):
        os.close(1)
        os.close(2)
        before = taken()
        time.sleep(seconds)
        return {"supervisor": taken() - before}


def closes_everything(*, phase, mib=64, **_):
    with phase("work"):
        kept = touch(mib)
        os.closerange(0, 4096)
    return {"bytes": kept.numel() * 4}


def changes_folder(*, phase, mib=64, **_):
    with phase("work"):
        kept = touch(mib)
        os.chdir("/")
    return {"bytes": kept.numel() * 4}


def reads_stdin(*, phase, mib=64, **_):
    with phase("work"):
        kept = touch(mib)
        read = sys.stdin.read()
    return {"bytes": kept.numel() * 4, "read": read}


def removes_folder(*, phase, mib=64, **_):
    import shutil

    from hostile import own_folder

    with phase("before"):
        kept = touch(mib)
    shutil.rmtree(own_folder())
    with phase("after"):
        pass
    return {"bytes": kept.numel() * 4}


def asks_for_too_much(*, phase, mib=512, **_):
    import torch

    with phase("work"):
        kept = touch(mib)  # noqa: F841
        torch.empty(10**15)


def frees_and_allocates(*, phase, mib=64, **_):
    """Less than the threshold from which malloc gives memory back at once: what is freed stays resident."""
    with phase("work"):
        for _ in range(3):
            kept = [touch(1) for _ in range(mib)]
            del kept
        kept = touch(mib)  # noqa: F841


def shares(*, phase, mib=64, how="mmap", after=0, **_):
    """Memory that is shared, with `after` MiB of its own in the next phase."""
    import mmap

    with phase("shared"):
        if how == "mmap":
            kept = mmap.mmap(-1, mib * MIB)
            for _ in range(mib):
                kept.write(bytes(MIB))
        else:
            kept = [touch(16).share_memory_() for _ in range(mib // 16)]  # each was its own before
    del kept
    with phase("after"):
        own = touch(after)  # noqa: F841


def runs_a_thread(*, phase, how="works", **_):
    """A thread that works, that is refused memory and dies of it or catches that, or works before the workload is
    refused."""
    import contextlib
    import threading

    import torch

    def work():
        with contextlib.suppress(RuntimeError) if how == "catches" else contextlib.nullcontext():
            torch.empty(10**15 if how in ("dies", "catches") else 1)

    with phase("thread"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    with phase("after"):
        if how == "works before a refusal":
            with contextlib.suppress(RuntimeError):
                torch.empty(10**15)


def holds_tensors_of_threads(*, phase, **_):
    """As a library that reads a checkpoint in a pool: the workload keeps what the threads make."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    with phase("loading"), ThreadPoolExecutor(4) as pool:
        held = list(pool.map(lambda _: torch.ones(2**18), range(8)))
    with phase("work"):
        held.append(torch.ones(2**18))


def catches_its_refusal(*, phase, mib=64, **_):
    """As a batch-size finder does: tries, is refused, and continues with less."""
    import torch

    try:
        with phase("too much"):
            torch.empty(10**15)
    except RuntimeError:
        pass
    with phase("less"):
        kept = touch(mib)
    return {"bytes": kept.numel() * 4}


def halves_its_batch(*, batch, phase, least=0, **_):
    """As accelerate's find_executable_batch_size: tries `batch` MiB (at least `least`), then half, until it fits."""
    while batch:
        try:
            with phase("step"):
                touch(max(batch, least))
            return {"used": batch}
        except RuntimeError as error:
            if "DefaultCPUAllocator: can't allocate memory" not in str(error):
                raise
            batch //= 2
    raise RuntimeError("No executable batch size found, reached zero.")


def touches_in_steps(*, phase, mib=4096, **_):
    """Fills the memory it is allowed, 16 MiB at a time."""
    with phase("work"):
        kept = []
        for _ in range(mib // 16):
            kept.append(touch(16))


def nests(*, phase, **_):
    with phase("outer"), phase("inner"):
        pass


def works_between_phases(*, phase, mib=256, **_):
    with phase("before"):
        pass
    touch(mib)
    with phase("after"):
        pass


def starts_threads(*, phase, **_):
    """Starts many threads after the budget was imposed."""
    import torch

    with phase("work"):
        kept = torch.ones(2**22)
        torch.set_num_threads(64)
        kept.add_(1)


def uses_phase_in_a_fork(*, phase, **_):
    pid = os.fork()
    if pid == 0:
        try:
            with phase("elsewhere"):
                pass
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


def forks(*, phase, how="returns", where="inside", mib=128, **_):
    """Touches and frees memory, and forks. The child takes more, and leaves by the code that the parent runs too."""
    import contextlib

    outside = contextlib.nullcontext()
    with phase("work") if where == "inside" else outside:
        touch(mib)
        pid = os.fork()
        if pid == 0:
            kept = bytearray(os.urandom(1) * (2 * mib * MIB))
            if how == "raises":
                raise ValueError("of the child")
            if how == "interrupts":
                raise KeyboardInterrupt
            if how.startswith("exits"):
                sys.exit({"exits": None, "exits with 3": 3, "exits with a text": "of the child"}[how])
            return {"bytes": len(kept)}
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code}


def reports_a_model_in_a_fork(*, phase, **_):
    phase.model(parameters=1)
    pid = os.fork()
    if pid == 0:
        phase.model(parameters=2)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


def dies_after_a_larger_child(*, phase, mib=64, number=11, **_):
    with phase("work"):
        kept = touch(mib)  # noqa: F841
        pid = os.fork()
        if pid == 0:
            bytearray(os.urandom(1) * (4 * mib * MIB))
            os._exit(0)
        os.waitpid(pid, 0)
        wait_for_a_reading()
        os.kill(os.getpid(), number)


def is_an_orphan(*, phase, **_):
    """The measured process leaves, and a copy of it goes on."""
    with phase("work"):
        if os.fork():
            os._exit(0)
    return {"bytes": 0}


def reports_facts_as_a_model(*, phase, **_):
    phase.model(kind="finished", t=-1.0, phase="work", event=0, parameters=5)
    raise ValueError("a bug")


def calls_its_phase_between(*, phase, **_):
    with phase("between"), phase("inner"):
        pass


def fills_its_disk(*, phase, mib=64, **_):
    """Cannot write to a file any more, as on a full disk, and handles the error."""
    import contextlib
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.suppress(OSError), phase("work"):
        touch(mib)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return {"bytes": 0}


def wait_for_a_reading():
    """Waits for a heartbeat and a reading of the supervisor, of which no event reaches this process."""
    import time

    time.sleep(0.6)


def hangs_from(*, phase, batch=1, at=3, hang=True, children=0, mib=64, **_):
    """Works for small batches, and hangs from `at` on, with children in sessions of their own."""
    import subprocess
    import time

    with phase("work"):
        kept = touch(mib)
    if batch >= at and hang:
        for _ in range(children):
            subprocess.Popen(["sleep", "3600"], start_new_session=True)
        with phase("hanging"):
            time.sleep(3600)
    return {"bytes": kept.numel() * 4}


def hangs_until(*, phase, batch=1, file, **_):
    """Hangs at its second batch until the file exists."""
    import time

    with phase("work"):
        pass
    if batch == 2 and not os.path.exists(file):
        with phase("hanging"):
            while not os.path.exists(file):
                time.sleep(0.01)


def fails_until(*, phase, batch=1, file, **_):
    """Fails at its second batch until the file exists."""
    with phase("work"):
        if batch == 2 and not os.path.exists(file):
            raise ValueError("not yet")


def reserves(*, phase, mib, **_):
    """Allocates more than the machine has, and touches none of it."""
    import torch

    with phase("work"):
        torch.empty(mib * MIB // 4)


def withstands(*, phase, how, folder=None, mib=64, **_):
    """Does not end by itself, and makes it hard to end it."""
    import subprocess
    import time

    with phase("work"):
        kept = touch(mib)  # noqa: F841
        if how == "is traced by its child":
            tracer = [sys.executable, "-S", "-c", TRACER, str(os.getpid())]
            allow_tracers()
            with subprocess.Popen(tracer, stdout=subprocess.PIPE, start_new_session=True) as process:
                assert process.stdout.read(1) == b"."
                time.sleep(3600)
        elif how == "allows tracers":
            allow_tracers()
            with open(os.path.join(folder, "pid.tmp"), "w") as file:
                file.write(str(os.getpid()))
            os.rename(file.name, os.path.join(folder, "pid"))
            time.sleep(3600)
        elif how == "is stopped":
            os.kill(os.getpid(), 19)
        elif how == "waits for a vfork":
            waits_for_a_vfork()
        elif how == "hops":
            subprocess.Popen([sys.executable, "-S", "-c", HOPPER], start_new_session=True)
            time.sleep(3600)
        elif how == "multiplies":
            subprocess.Popen([sys.executable, "-S", "-c", MULTIPLIER], start_new_session=True)
            time.sleep(3600)
        elif how == "stops its supervisor":
            os.kill(os.getppid(), 19)
            time.sleep(3600)
        elif how == "stops its supervisor and the watcher":
            with open(f"/proc/{os.getppid()}/stat") as file:
                watcher = int(file.read().rpartition(")")[2].split()[1])
            os.kill(watcher, 19)
            os.kill(os.getppid(), 19)
            time.sleep(3600)


TRACER = """
import ctypes, os, signal, sys, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
PTRACE_SEIZE = 0x4206
assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0
os.write(1, b".")
time.sleep(3600)
"""

# Always one process, which ends as soon as it has forked the next one, in a session of its own.
HOPPER = """
import os
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""

# Twenty processes that replace each other.
MULTIPLIER = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            time.sleep(0.02)
"""


def allow_tracers():
    import ctypes

    PR_SET_PTRACER = 0x59616D61
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


def waits_for_a_vfork():
    """The child runs in this process's memory and never calls exec, so this process waits in the kernel."""
    import ctypes

    libc = ctypes.PyDLL(None)
    CLONE_VM, CLONE_VFORK, SIGCHLD = 0x100, 0x4000, 17
    stack = ctypes.create_string_buffer(2**16)
    entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(("pause", libc))
    libc.clone(entry, ctypes.c_void_p(ctypes.addressof(stack) + 2**16 - 64), CLONE_VM | CLONE_VFORK | SIGCHLD, None)


def _fill(mib):
    return bytearray(b"x") * (mib * MIB)


def takes_away(*, phase, how, **_):
    """Take away what is needed to open a file, in the last phase."""
    with phase("small"):
        _fill(50)
    with phase("large"):
        _fill(300)
        if how == "descriptors":
            try:
                while True:
                    os.open(os.devnull, os.O_RDONLY)
            except OSError:
                pass
        elif how == "root":
            os.chroot(os.path.dirname(__file__))
        else:
            if how == "counters":
                for name in os.listdir("/proc/self/fd"):
                    place = f"/proc/self/fd/{name}"
                    if os.path.exists(place) and os.readlink(place).endswith(("/status", "/clear_refs")):
                        os.close(int(name))
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def resets_the_mark(*, phase, how, **_):
    with phase("large"):
        kept = _fill(200)
        time.sleep(0.5)  # several heartbeats
        del kept
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        if how == "inside":
            _fill(20)
    with phase("small"):
        pass


def lowers_its_limit(*, phase, then, **_):
    resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31))
    with phase("work"):
        _fill(20)
    if then == "raises":
        raise KeyError("mine")
    if then == "allocates":
        bytearray(2**32)

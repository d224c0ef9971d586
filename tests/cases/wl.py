"""The workloads named in cases.md. Sizes are in MiB, and their pages are written to."""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

MIB = 2**20
# Address space of alloc64 beyond the process's own at the call: enough for seven pieces of 64 MiB and torch's threads.
ALLOWANCE_MIB = 512
HOURS = 3600


def written(mib):
    import torch

    return torch.full((mib, MIB // 4), 1.0)


# -- successful --------------------------------------------------------------------------------------------------------


def grows(batch=1, **_):
    kept = written(64 * batch)  # noqa: F841


def spike(mib=1024, **_):
    """Freed at once: a sampler would usually miss it."""
    written(mib)
    time.sleep(0.5)


def untouched(mib=2048, **_):
    """Address space only: no page becomes resident."""
    import torch

    kept = torch.empty(mib, MIB // 4)  # noqa: F841
    time.sleep(0.3)


def state_leak(**_):
    """Succeeds once per process; processes that inherit its environment fail."""
    if "A_POINT_RAN_HERE" in os.environ:
        raise AssertionError("another point ran in this process before")
    os.environ["A_POINT_RAN_HERE"] = "yes"


def flood(n=4_000_000, **_):
    for stream, letter in ((sys.stdout, "o"), (sys.stderr, "e")):
        print(letter * n, file=stream)


def answers(batch=1, **_):
    """A user metric that is a number in one point, text in the next, and missing in others."""
    return {1: {"answer": 1}, 2: {"answer": "1"}}.get(batch, {})


def echo(value, **_):
    return {"value": value}


# -- out of memory -----------------------------------------------------------------------------------------------------


def threshold(batch=1, context=1, limit=8192, **_):
    """Fails if batch * context exceeds the limit."""
    import torch

    if batch * context > limit:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def hole(batch=1, low=5, high=7, **_):
    """Fails for batches from low to high and fits above."""
    import torch

    if low <= batch <= high:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def alloc64(batch=1, **_):
    """A real allocation failure: `batch` pieces of 64 MiB under a limit of the address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ALLOWANCE_MIB * MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return {"pieces": len([written(64) for _ in range(batch)])}


def always_oom(**_):
    raise MemoryError


def partial_then_oom(mib=512, **_):
    import torch

    kept = written(mib)  # noqa: F841
    torch.empty(10**15)


# -- failing -----------------------------------------------------------------------------------------------------------


def partial_then_raise(mib=512, **_):
    kept = written(mib)  # noqa: F841
    raise RuntimeError("CUDA error: device-side assert triggered")


class Awkward(Exception):
    """Cannot be pickled: neither its arguments nor its attributes allow it."""

    def __init__(self, first, second, *, third):
        super().__init__("awkward")
        self.values = (first, second, third)


def unpicklable(**_):
    raise Awkward(1, 2, third=lambda: None)


def exit0(**_):
    sys.exit(0)


def exit_str(**_):
    sys.exit("bad config")


def hard_exit0(**_):
    os._exit(0)


def hard_exit137(**_):
    os._exit(137)


def segv(mib=256, **_):
    kept = written(mib)  # noqa: F841
    ctypes.string_at(0)


def abort(**_):
    os.abort()


# -- endless -----------------------------------------------------------------------------------------------------------


def hang(mib=256, **_):
    kept = written(mib)  # noqa: F841
    time.sleep(HOURS)


def hang_ignores_term(**_):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(HOURS)


def hang_in_c(**_):
    """Holds the interpreter lock: no Python code runs in this process any more."""
    ctypes.PyDLL(None).sleep(HOURS)


def hang_until(gate, **_):
    """Hangs unless the file `gate` exists; with the file, the same point succeeds."""
    if not Path(gate).exists():
        time.sleep(HOURS)

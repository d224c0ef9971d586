"""The workloads that cases.md speaks of, under its names; `mib` and `64 * batch` are MiB that are written to."""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

MIB = 2**20
# Of alloc64, over what the process has when it is called: room for seven times 64 and torch's threads, or for eight.
ALLOWANCE_MIB = 512
HOURS = 3600


def written(mib):
    import torch

    return torch.full((mib, MIB // 4), 1.0)


# -- that end well -----------------------------------------------------------------------------------------------------


def grows(batch=1, **_):
    kept = written(64 * batch)  # noqa: F841


def spike(mib=1024, **_):
    """Held for no time at all: a sampler would have to be lucky."""
    written(mib)
    time.sleep(0.5)


def untouched(mib=2048, **_):
    """Address space alone: no page of it becomes resident."""
    import torch

    kept = torch.empty(mib, MIB // 4)  # noqa: F841
    time.sleep(0.3)


def state_leak(**_):
    """Passes once in a process and in all that inherit its environment."""
    if "A_POINT_RAN_HERE" in os.environ:
        raise AssertionError("a point has run in this process before")
    os.environ["A_POINT_RAN_HERE"] = "yes"


def flood(n=4_000_000, **_):
    for stream, letter in ((sys.stdout, "o"), (sys.stderr, "e")):
        print(letter * n, file=stream)


def answers(batch=1, **_):
    """A figure of the user's own that is a number at one point, text at the next, and at a third nothing at all."""
    return {1: {"answer": 1}, 2: {"answer": "1"}}.get(batch, {})


def echo(value, **_):
    return {"value": value}


# -- for which memory is too small -------------------------------------------------------------------------------------


def threshold(batch=1, context=1, limit=8192, **_):
    """A device on which batch * context may reach the limit, and not one more."""
    import torch

    if batch * context > limit:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def hole(batch=1, low=5, high=7, **_):
    """Fails from low to high, and fits with more."""
    import torch

    if low <= batch <= high:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def alloc64(batch=1, **_):
    """Really refused: `batch` pieces of 64 MiB where the kernel gives the process so much more of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ALLOWANCE_MIB * MIB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return {"pieces": len([written(64) for _ in range(batch)])}


def always_oom(**_):
    raise MemoryError


def partial_then_oom(mib=512, **_):
    import torch

    kept = written(mib)  # noqa: F841
    torch.empty(10**15)


# -- that end badly ----------------------------------------------------------------------------------------------------


def partial_then_raise(mib=512, **_):
    kept = written(mib)  # noqa: F841
    raise RuntimeError("CUDA error: device-side assert triggered")


class Awkward(Exception):
    """Cannot be made again from its arguments, nor pickled for what it holds."""

    def __init__(self, first, second, *, third):
        super().__init__("awkward")
        self.held = (first, second, third)


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


# -- that do not end ---------------------------------------------------------------------------------------------------


def hang(mib=256, **_):
    kept = written(mib)  # noqa: F841
    time.sleep(HOURS)


def hang_ignores_term(**_):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(HOURS)


def hang_in_c(**_):
    """Keeps the interpreter's lock: nothing written in Python runs in this process any more."""
    ctypes.PyDLL(None).sleep(HOURS)


def hang_until(gate, **_):
    """Hangs if the file is not there when it is called: with the file, the same point passes."""
    if not Path(gate).exists():
        time.sleep(HOURS)

"""Limits of the shell (`ulimit`) below which sweeper itself cannot run.

It is read before anything else is imported, so that it says so where Python cannot import argparse, and imports
nothing that Python has not loaded by then, apart from one small module.
"""

import os
import resource

KIB, MIB = 2**10, 2**20
# The flag of `ulimit`, the limit, the bytes that a sweep of a few points needs, and what they are. With one thread and
# malloc as Arrow's pool a sweep held 132 MiB of data and 376 MiB of addresses (Python 3.11, pyarrow 26, pandas 3); the
# larger part of the rest is for larger tables. Python itself crashed with a stack of 64 KiB.
LEAST = (
    ("-v", resource.RLIMIT_AS, 512 * MIB, "of addresses"),
    ("-d", resource.RLIMIT_DATA, 192 * MIB, "of memory"),
    ("-s", resource.RLIMIT_STACK, 256 * KIB, "for its stack"),
    ("-f", resource.RLIMIT_FSIZE, MIB, "in a file"),
)
FEW_THREADS = 512  # of a user: OpenBLAS, which cannot start a thread for each core, ends the process with SIGINT
MEMORY = (resource.RLIMIT_AS, resource.RLIMIT_DATA)


def refusal() -> "str | None":
    """Which limit is too low, in one line, or None."""
    for flag, limit, least, what in LEAST:
        allowed = resource.getrlimit(limit)[0]
        if allowed != resource.RLIM_INFINITY and allowed < least:
            needs = f"sweeper itself needs {least // KIB} KiB {what}"
            instead = ", and limit the workload with budget=SIZE" if limit in MEMORY else ""
            return f"ulimit {flag} is {allowed // KIB}: {needs}; raise it{instead}"
    return None


def is_limited() -> bool:
    """Whether the memory of this process has a limit, or its threads a low one."""
    threads = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limited = any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in MEMORY)
    return limited or 0 <= threads < FEW_THREADS


def use_little_memory() -> None:
    """Load the libraries for tables with one thread each and without address space in reserve.

    Arrow and OpenBLAS start a thread for each core, with its own arena of memory, and Arrow's allocator reserves a GiB
    of addresses. They fail by an abort, which nobody can catch. Processes that measure are not affected.
    """
    ours = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        import numpy  # noqa: F401
        import pyarrow as pa

        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        pa.default_memory_pool()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value

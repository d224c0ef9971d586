"""Runs at the start of every Python process of a measured program and writes a report when the process ends.

The report holds the counters of PyTorch's allocators, if torch used a device, and the exception that ended the process,
if any. Each process writes its own file in the folder named by the environment. The hook does not change the program:
it imports neither sweeper nor torch, is written for Python 3.7, and raises nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from typing import Any

REPORTS = "SWEEPER_PROGRAM_REPORTS"  # the folder, made by the process that watches the program
MOST_CAUSES = 20
LONGEST_MESSAGE = 10_000
LONGEST_TRACEBACK = 30_000
COUNTERS = ("allocated", "reserved", "requested", "active")


def begin(folder: str) -> None:
    import atexit

    # Registered first, so it runs last: peaks are final.
    atexit.register(report, folder)
    if "--multiprocessing-fork" in getattr(sys, "orig_argv", ()):  # such a process skips atexit handlers
        from multiprocessing import util

        util.Finalize(None, report, args=(folder,), exitpriority=-1)


def report(folder: str) -> None:
    try:
        import json
        import time

        line: dict[str, Any] = {"pid": os.getpid(), "t": time.monotonic(), "failure": failure(), "devices": []}
        torch = sys.modules.get("torch")
        if torch is not None:
            line["torch"] = str(getattr(torch, "__version__", None))
            line["devices"] = devices(torch)
        if torch is not None or line["failure"] is not None:
            with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as file:
                file.write(json.dumps(line))
    except BaseException:
        pass


def devices(torch: Any) -> list[dict[str, Any]]:
    """Counters of each device's allocator since the process began; empty if CUDA was never used."""
    try:
        if not torch.cuda.is_initialized():
            return []
        return [device(torch, index) for index in range(torch.cuda.device_count())]
    except BaseException:
        return []


def device(torch: Any, index: int) -> dict[str, Any]:
    stats = torch.cuda.memory_stats(index)
    native = torch.cuda.memory.get_allocator_backend() == "native"
    counters = COUNTERS if native else COUNTERS[:2]  # cudaMallocAsync reports uncounted values as zero
    try:
        uuid = str(torch.cuda.get_device_properties(index).uuid)
    except Exception:
        uuid = None
    return {
        "index": index,
        "uuid": uuid,
        "now": {name: stats[name + "_bytes.all.current"] for name in counters if name + "_bytes.all.current" in stats},
        "peak": {name: stats[name + "_bytes.all.peak"] for name in counters if name + "_bytes.all.peak" in stats},
        "alloc_retries": stats.get("num_alloc_retries") if native else None,
        "num_ooms": stats.get("num_ooms") if native else None,
    }


def failure() -> dict[str, Any] | None:
    """The uncaught exception. The interpreter stores it even if sys.excepthook was replaced."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    import traceback

    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except Exception:
        lines = []
    return {
        "chain": [described(cause) for cause in causes(error)],
        "traceback": "".join(lines)[-LONGEST_TRACEBACK:],
        "resident": resident(),
    }


def causes(error: BaseException) -> list[BaseException]:
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < MOST_CAUSES:
        cause = waiting.pop(0)
        if cause is None or any(cause is one for one in seen):
            continue
        seen.append(cause)
        waiting += [cause.__cause__, None if cause.__suppress_context__ else cause.__context__]
        waiting += getattr(cause, "exceptions", ())
    return seen


def described(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)[:LONGEST_MESSAGE]
    except Exception:
        message = f"<{type(error).__name__} that cannot be printed>"
    names = [name(kind) for kind in type(error).__mro__[:-1]]
    return {"type": names[0], "bases": names[1:], "message": message}


def name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def resident() -> int | None:
    """Resident bytes of this process; the traceback keeps the objects of failed frames alive."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
    except Exception:
        return None


def run_shadowed() -> None:
    """Run the sitecustomize that this one shadows. Its exceptions propagate as usual."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    this = sys.modules.pop("sitecustomize")
    try:
        # Another file of that name, now that this folder is off the path.
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize" and REPORTS in os.environ:
    try:  # noqa: SIM105 (contextlib takes longer to import than an empty program runs)
        begin(os.environ[REPORTS])
    except BaseException:
        pass
    run_shadowed()

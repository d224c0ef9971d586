"""Runs first in every Python of a measured program, which it does not change: says at its end what only it can know.

That is what PyTorch's allocators counted, if torch is there and has used a device, and the exception that ended the
process, if one did. Both go into a file of the process's own in the folder that the environment names. It imports
nothing of ours and no torch, its syntax is that of Python 3.7, and whatever goes wrong in here stays in here.
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

    # Registered before anything else of the process, it runs after all of it: peaks are the peaks at the end.
    atexit.register(report, folder)
    if "--multiprocessing-fork" in getattr(sys, "orig_argv", ()):  # such a process leaves without its exit handlers
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
    """What the allocator of each device has counted since the process began; nothing of one that was never used."""
    try:
        if not torch.cuda.is_initialized():
            return []
        return [device(torch, index) for index in range(torch.cuda.device_count())]
    except BaseException:
        return []


def device(torch: Any, index: int) -> dict[str, Any]:
    stats = torch.cuda.memory_stats(index)
    native = torch.cuda.memory.get_allocator_backend() == "native"
    kept = COUNTERS if native else COUNTERS[:2]  # what cudaMallocAsync does not count it reports as zero
    try:
        uuid = str(torch.cuda.get_device_properties(index).uuid)
    except Exception:
        uuid = None
    return {
        "index": index,
        "uuid": uuid,
        "now": {name: stats[name + "_bytes.all.current"] for name in kept if name + "_bytes.all.current" in stats},
        "peak": {name: stats[name + "_bytes.all.peak"] for name in kept if name + "_bytes.all.peak" in stats},
        "alloc_retries": stats.get("num_alloc_retries") if native else None,
        "num_ooms": stats.get("num_ooms") if native else None,
    }


def failure() -> dict[str, Any] | None:
    """The exception that nothing caught: the interpreter keeps it, whoever has replaced sys.excepthook."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    import traceback

    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except Exception:
        lines = []
    return {
        "chain": [told(cause) for cause in causes(error)],
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


def told(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)[:LONGEST_MESSAGE]
    except Exception:
        message = f"<{type(error).__name__} that cannot be printed>"
    names = [name(kind) for kind in type(error).__mro__[:-1]]
    return {"type": names[0], "bases": names[1:], "message": message}


def name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def resident() -> int | None:
    """What this process holds: the traceback keeps alive what the failed frames held."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
    except Exception:
        return None


def give_way() -> None:
    """Let the sitecustomize run that would have run without this one. What it raises is its own, as ever."""
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
    give_way()

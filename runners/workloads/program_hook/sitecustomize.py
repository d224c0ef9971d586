"""Runs at the start of every Python process of a measured program and writes a report when the process ends.

The report holds the counters of PyTorch's allocators, if torch used a device, and the exception that ended the process,
if any. Each process writes its own file in the folder named by the environment. The hook does not change the program:
it imports neither sweeper nor torch, is written for Python 3.7, and raises nothing. It only stores the peaks that the
program resets, when the program has imported torch.

A program on a calculated device runs in the measured process itself. There, the processes that it starts load this hook
for another reason: they report work that the calculation misses.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself is slow to import
if TYPE_CHECKING:
    from typing import Any

REPORTS = "SWEEPER_PROGRAM_REPORTS"  # the folder, made by the process that watches the program
CHILDREN = "SWEEPER_PROGRAM_CHILDREN"  # the folder, made by the process that runs a program on a calculated device
MOST_CAUSES = 20
LONGEST_MESSAGE = 10_000
LONGEST_TRACEBACK = 30_000
LONGEST_COMMAND = 200
COUNTERS = ("allocated", "reserved", "requested", "active")
COUNTS = ("num_alloc_retries", "num_ooms")
# Of torch._C, which every function of torch.cuda and torch.accelerator calls
RESETS_OF_PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
RESETS_OF_COUNTS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # set to anything, nothing is counted

earlier_peaks: dict[int, dict[str, int]] = {}  # by device and counter: before the program's resets
earlier_counts: dict[int, dict[str, int]] = {}


def begin(folder: str) -> None:
    import atexit

    # Registered first, so it runs last: peaks are final.
    atexit.register(report, folder)
    if "--multiprocessing-fork" in getattr(sys, "orig_argv", ()):  # such a process skips atexit handlers
        from multiprocessing import util

        util.Finalize(None, report, args=(folder,), exitpriority=-1)
    sys.meta_path.insert(0, Torch())


class Torch:
    """Among the finders of modules until the program imports torch.cuda.memory."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch.cuda.memory":
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                try:  # noqa: SIM105
                    store_at_resets(sys.modules["torch"]._C)
                except Exception:
                    pass

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Uncalculated:
    """Among the finders of modules in a process that a program on a calculated device starts.

    A process of multiprocessing imports what its program does, torch too, and may prepare data only. It reports where
    it uses the device or joins a process group. Any other process reports that it imports torch. Each raises there: it
    would compute on the host what the device was to compute, or wait for other ranks.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.found = {
            "torch.cuda": ("_lazy_init", "uses a GPU"),
            "torch.distributed.distributed_c10d": ("init_process_group", "is one of several ranks"),
        }
        if "--multiprocessing-fork" not in getattr(sys, "orig_argv", ()):
            self.found["torch"] = ("", "imports torch")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.found:
            return None
        function, what = self.found.pop(name)
        if not function:
            raise self.refusal(what)
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)

                def refused(*args: Any, **kwargs: Any) -> Any:
                    raise self.refusal(what)

                setattr(module, function, refused)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def refusal(self, what: str) -> Exception:
        try:
            words = list(getattr(sys, "orig_argv", sys.argv))[1:]
            with open(os.path.join(self.folder, f"{os.getpid()}.txt"), "w", opener=without_links) as file:
                file.write(f"{' '.join(words)[:LONGEST_COMMAND]}\n{what}")
        except BaseException:
            pass
        return RuntimeError(f"this process {what}, which a calculated device does not follow")


def store_at_resets(c: Any) -> None:
    """Replace the resets of torch._C by functions that first store what they reset."""

    def peaks(stats: Any) -> dict[str, int]:
        return {name: stats[name + "_bytes"]["all"]["peak"] for name in COUNTERS if name + "_bytes" in stats}

    def counts(stats: Any) -> dict[str, int]:
        return {name: stats[name] for name in COUNTS if name in stats}

    def replace(name: str, read: Any, earlier: dict[int, dict[str, int]], joined: Any) -> None:
        reset = getattr(c, name)

        def stored(index: int) -> Any:
            try:
                before = earlier.setdefault(index, {})
                for key, value in read(c._cuda_memoryStats(index)).items():
                    before[key] = joined((before.get(key, 0), value))
            except Exception:
                pass
            return reset(index)

        setattr(c, name, stored)

    for names, read, earlier, joined in (
        (RESETS_OF_PEAKS, peaks, earlier_peaks, max),
        (RESETS_OF_COUNTS, counts, earlier_counts, sum),
    ):
        for name in names:
            if hasattr(c, name):
                replace(name, read, earlier, joined)


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
            with open(os.path.join(folder, f"{os.getpid()}.json"), "w", opener=without_links) as file:
                file.write(json.dumps(line))
    except BaseException:
        pass


def without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def devices(torch: Any) -> list[dict[str, Any]]:
    """Counters of each device's allocator since the process began; empty if CUDA was never used."""
    try:
        if not torch.cuda.is_initialized():
            return []
        return [device(torch, index) for index in range(torch.cuda.device_count())]
    except BaseException:
        return []


def device(torch: Any, index: int) -> dict[str, Any]:
    stats = torch.cuda.memory_stats(index) if UNCACHED not in os.environ else {}
    native = torch.cuda.memory.get_allocator_backend() == "native"
    counters = COUNTERS if native else COUNTERS[:2]  # cudaMallocAsync reports uncounted values as zero
    earlier = earlier_peaks.get(index, {})
    try:
        uuid = str(torch.cuda.get_device_properties(index).uuid)
    except Exception:
        uuid = None
    return {
        "index": index,
        "uuid": uuid,
        "now": {name: stats[name + "_bytes.all.current"] for name in counters if name + "_bytes.all.current" in stats},
        "peak": {
            name: max(stats[name + "_bytes.all.peak"], earlier.get(name, 0))
            for name in counters
            if name + "_bytes.all.peak" in stats
        },
        "alloc_retries": count(stats, index, "num_alloc_retries") if native else None,
        "num_ooms": count(stats, index, "num_ooms") if native else None,
    }


def count(stats: Any, index: int, name: str) -> int | None:
    now = stats.get(name)
    return None if now is None else now + earlier_counts.get(index, {}).get(name, 0)


def failure() -> dict[str, Any] | None:
    """The uncaught exception. The interpreter stores it even if sys.excepthook was replaced."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    import traceback

    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException:
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
        try:  # its own properties may raise
            waiting += [cause.__cause__, None if cause.__suppress_context__ else cause.__context__]
            group = getattr(cause, "exceptions", ())
        except BaseException:
            continue
        if isinstance(group, (list, tuple)):  # of a group; others may have something else under the name
            waiting += [each for each in group if isinstance(each, BaseException)]
    return seen


def described(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)
    except BaseException as raised:
        message = f"<{name(type(error))}, whose str() raised {name(type(raised))}>"
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} [... {len(message) - LONGEST_MESSAGE} characters left out ...]"
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


if __name__ == "sitecustomize" and (REPORTS in os.environ or CHILDREN in os.environ):
    try:
        if CHILDREN in os.environ:
            sys.meta_path.insert(0, Uncalculated(os.environ[CHILDREN]))
        else:
            begin(os.environ[REPORTS])
    except BaseException:
        pass
    run_shadowed()

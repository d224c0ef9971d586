"""Workloads whose exceptions, results and patches attack the code that records them, each in its own way."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONG = 5_000_000


class ListOfTexts(Exception):
    exceptions = ("one", "two")


class NumberOfExceptions(Exception):
    exceptions = 7


class RaisingExceptions(Exception):
    @property
    def exceptions(self) -> Any:
        raise SystemExit("no exceptions for you")


class EndlessExceptions(Exception):
    @property
    def exceptions(self) -> Any:
        while True:
            yield ValueError("one more")


class RaisingText(Exception):
    def __str__(self) -> str:
        raise BaseException("not even this")

    __repr__ = __str__


class RaisingItself(Exception):
    def __str__(self) -> str:
        raise self


class TextThatIsNone(Exception):
    def __str__(self) -> Any:
        return None


class Text(str):
    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no bytes")

    __getitem__ = strip = partition = __str__ = __len__ = encode  # type: ignore[assignment]


class TextOfItsOwn(Exception):
    def __str__(self) -> str:
        return Text("of its own")


class TextWithoutEnd(Exception):
    def __str__(self) -> str:
        return self.__str__()


class TextThatLeaves(Exception):
    def __str__(self) -> str:
        os._exit(3)


class TextThatKills(Exception):
    def __str__(self) -> str:
        os.kill(os.getpid(), 9)
        return ""


class HiddenCause(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise BaseException("no cause")

    __context__ = __suppress_context__ = __traceback__ = __cause__  # type: ignore[assignment]


class HiddenNotes(Exception):
    @property
    def __notes__(self) -> Any:
        raise BaseException("no notes")

    def add_note(self, note: str) -> None:
        raise BaseException("no notes")


class HiddenClass(Exception):
    @property
    def __class__(self) -> Any:
        raise BaseException("no class")


class HiddenAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise BaseException(f"no {name}")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    number: int = 5


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise BaseException(f"no {name}")


class OfAMetaclass(Exception, metaclass=Meta):
    pass


class NameOfItsOwn(Exception):
    pass


def notes_of(*notes: Any) -> Exception:
    error = ValueError("noted")
    error.__notes__ = notes  # type: ignore[attr-defined]
    return error


def cyclic() -> Exception:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def chain(length: int) -> Exception:
    last: Exception = ValueError("the first")
    for number in range(length):
        error = RuntimeError(f"number {number}")
        error.__cause__ = last
        last = error
    return last


def renamed() -> Exception:
    NameOfItsOwn.__module__ = 5  # type: ignore[assignment]
    return NameOfItsOwn("renamed")


def named_hugely() -> Exception:
    return type("N" * LONG, (Exception,), {})("of a long name")


def with_many_bases() -> Exception:
    kind: Any = Exception
    for number in range(500):
        kind = type(f"Base{number}", (kind,), {})
    return kind("of many bases")  # type: ignore[no-any-return]


def nested_group(depth: int) -> Exception:
    error: Exception = ValueError("the innermost")
    for _ in range(depth):
        error = ExceptionGroup("a group", [error])  # type: ignore[name-defined]  # noqa: F821 (Python 3.11)
    return error


def of_the_parser() -> Exception:
    return SyntaxError("invalid", ("file", "line", 7, object()))  # type: ignore[arg-type]


RAISED = {
    "list of texts": lambda: ListOfTexts("mine"),
    "number of exceptions": lambda: NumberOfExceptions("mine"),
    "raising exceptions": lambda: RaisingExceptions("mine"),
    "endless exceptions": lambda: EndlessExceptions("mine"),
    "raising text": lambda: RaisingText("mine"),
    "raising itself": lambda: RaisingItself("mine"),
    "text that is none": lambda: TextThatIsNone("mine"),
    "text of its own": lambda: TextOfItsOwn("mine"),
    "text without end": lambda: TextWithoutEnd("mine"),
    "text that leaves": lambda: TextThatLeaves("mine"),
    "text that kills": lambda: TextThatKills("mine"),
    "hidden cause": lambda: HiddenCause("mine"),
    "hidden notes": lambda: HiddenNotes("mine"),
    "hidden class": lambda: HiddenClass("mine"),
    "hidden attributes": lambda: HiddenAttributes("mine"),
    "frozen": lambda: Frozen(),
    "of a metaclass": lambda: OfAMetaclass("mine"),
    "odd notes": lambda: notes_of(5, None, RaisingText("x"), "z" * LONG),
    "cyclic": cyclic,
    "deep chain": lambda: chain(20_000),
    "renamed": renamed,
    "named hugely": named_hugely,
    "with many bases": with_many_bases,
    "nested groups": lambda: nested_group(300),
    "of the parser": of_the_parser,
    "huge text": lambda: ValueError("x" * LONG),
    "huge number": lambda: ValueError(10**5000),
    "half a pair": lambda: ValueError("\ud800"),
    "unprintable argument": lambda: KeyError(RaisingText("x")),
}


def raises(*, phase: Any, how: str, where: str = "inside", **_: Any) -> None:
    if where == "outside":
        raise RAISED[how]()
    with phase("work"):
        raise RAISED[how]()


def raises_after_recursion(*, phase: Any, limit: int, depth: int, **_: Any) -> None:
    """Raises below many frames of its own, and leaves the limit of recursion at `limit`."""

    def below(left: int) -> None:
        if left:
            below(left - 1)
        raise ValueError("from below")

    with phase("work"):
        sys.setrecursionlimit(depth + 1000)
        try:
            below(depth)
        finally:
            sys.setrecursionlimit(limit)


class RaisingItems(dict[Any, Any]):
    def items(self) -> Any:
        raise BaseException("no items")

    __len__ = __iter__ = __eq__ = items  # type: ignore[assignment]


class EndlessItems(dict[Any, Any]):
    def items(self) -> Any:
        number = 0
        while True:
            number += 1
            yield number, number


class Unreadable:
    def __getattribute__(self, name: str) -> Any:
        raise BaseException(f"no {name}")

    def __eq__(self, other: object) -> Any:
        raise BaseException("no comparison")

    __len__ = __iter__ = __bool__ = __repr__ = __str__ = __int__ = __float__ = __index__ = __eq__
    __hash__ = object.__hash__


class Number(float):
    def __float__(self) -> float:
        raise BaseException("no number")

    __repr__ = __str__ = __eq__ = __float__  # type: ignore[assignment]


class Scalar:
    ndim = 0

    def item(self) -> Any:
        raise BaseException("no item")


def cyclic_values() -> Any:
    one: dict[str, Any] = {}
    one["itself"] = one
    return one


def deep_values(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"deep": value}


RETURNED = {
    "huge number": lambda: {"number": 10**5000, "kept": 1},
    "negative huge number": lambda: {"number": -(10**5000), "kept": 1},
    "not a number": lambda: {"number": float("nan"), "other": float("-inf"), "kept": 1},
    "bytes": lambda: {"bytes": b"\xff" * LONG, "kept": 1},
    "surrogates": lambda: {"text": "\udcff", "\ud800": 1, "kept": 1},
    "raising items": lambda: RaisingItems(kept=1),
    "endless items": lambda: EndlessItems(),
    "unreadable": lambda: {"value": Unreadable(), "kept": 1},
    "unreadable key": lambda: {Unreadable(): 1, "kept": 1},
    "only unreadable": lambda: Unreadable(),
    "number of its own": lambda: {"number": Number(1.5), "kept": 1},
    "scalar of its own": lambda: {"number": Scalar(), "kept": 1},
    "text of its own": lambda: {"text": Text("x"), Text("y"): 1, "kept": 1},
    "cyclic": lambda: {"values": cyclic_values(), "kept": 1},
    "deep": lambda: {**deep_values(100_000), "kept": 1},
    "wide": lambda: {"kept": 1, **{f"key {number}": number for number in range(300_000)}},
    "long list": lambda: {"kept": 1, "list": list(range(2_000_000))},
    "huge text": lambda: {"text": "x" * 100_000_000, "kept": 1},
    "huge key": lambda: {"x" * LONG: 1, "kept": 1},
}


def returns(*, phase: Any, how: str, **_: Any) -> Any:
    with phase("work"):
        pass
    return RETURNED[how]()


def notes(*, phase: Any, how: str, **_: Any) -> Any:
    """Reports the same as metrics and shapes of a phase, and as facts of the model."""
    with phase("work") as notes:
        notes.metrics = RETURNED[how]()
        notes.shapes = RETURNED[how]()
        notes.iterations = Unreadable()
    phase.model(value=RETURNED[how](), kept=1)
    return {"kept": 1}


def no(*_: Any, **__: Any) -> Any:
    raise BaseException("patched")


def patch_write() -> None:
    os.write = no


def patch_os() -> None:
    for name in ("write", "_exit", "fstat", "getpid", "open", "replace", "fsync", "dup2", "kill", "getppid"):
        setattr(os, name, no)


def patch_json() -> None:
    import json

    json.dumps = json.loads = no


def patch_open() -> None:
    import builtins
    import io

    builtins.open = io.open = no  # type: ignore[assignment]


def patch_clocks() -> None:
    import time

    time.monotonic = time.time = time.perf_counter = time.sleep = no  # type: ignore[assignment]


def patch_streams() -> None:
    sys.stdout = sys.stderr = 5  # type: ignore[assignment]


def patch_builtins() -> None:
    import builtins

    for name in ("print", "isinstance", "getattr", "repr", "len", "id", "type", "__import__"):
        if name in ("isinstance", "len", "type", "getattr"):  # the interpreter's own modules need them
            continue
        setattr(builtins, name, no)


def patch_traceback() -> None:
    import linecache
    import traceback

    traceback.format_exception = traceback.TracebackException = traceback.format_tb = no  # type: ignore[assignment,misc]
    linecache.getline = linecache.checkcache = linecache.lazycache = no  # type: ignore[assignment]


def empty_modules() -> None:
    sys.modules.clear()


def break_collector() -> None:
    import gc

    gc.set_threshold(1, 1, 1)
    gc.callbacks.append(no)


def raise_in_alarms() -> None:
    import signal

    def alarm(*_: Any) -> None:
        raise BaseException("an alarm")

    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)


def trace_everything() -> None:
    def traced(frame: Any, event: str, argument: Any) -> Any:
        if "runners" in frame.f_code.co_filename and frame.f_code.co_name not in ("__exit__", "_leave"):
            raise BaseException("traced")
        return traced

    sys.settrace(traced)


def limit_recursion() -> None:
    """The lowest limit that the interpreter takes here."""
    for limit in range(5, 1000):
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(limit)
            return


def limit_digits() -> None:
    sys.set_int_max_str_digits(0)


def close_descriptors() -> None:
    os.closerange(0, 4096)


PATCHES = {
    "write": patch_write,
    "os": patch_os,
    "json": patch_json,
    "open": patch_open,
    "clocks": patch_clocks,
    "streams": patch_streams,
    "builtins": patch_builtins,
    "traceback": patch_traceback,
    "modules": empty_modules,
    "collector": break_collector,
    "alarms": raise_in_alarms,
    "trace": trace_everything,
    "recursion": limit_recursion,
    "digits": limit_digits,
    "descriptors": close_descriptors,
}


def patches(*, phase: Any, what: str, raises: bool = True, **_: Any) -> Any:
    """Patches something, then raises an error of its own in a phase, or returns."""
    with phase("work"):
        PATCHES[what]()
        if raises:
            raise ValueError("mine")
    return {"kept": 1}


def own_folder() -> Path:
    """The folder of this attempt, from the journal that this process has open."""
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = Path(os.readlink(entry.path))
            if path.name == "journal.jsonl":
                return path.parent
    raise AssertionError("no journal is open")


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


def by_a_link(folder: Path) -> None:
    moved(folder)
    folder.symlink_to(folder.with_name("moved"))


def by_another_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "reports").mkdir()


def above_removed(folder: Path) -> None:
    shutil.rmtree(folder.parent)


def without_permission(folder: Path) -> None:
    folder.chmod(0)


def replaced(file: Path, how: str) -> None:
    """Puts something else in the place of one file of the attempt."""
    if how != "rubbish in it":
        file.unlink(missing_ok=True)
    if how == "a folder":
        file.mkdir()
        (file / "inside").touch()
    elif how == "a pipe":
        os.mkfifo(file)
    elif how == "a link":
        victim = file.parent.parent / "victim"
        victim.write_text("not ours")
        file.symlink_to(victim)
    elif how == "an endless file":
        file.symlink_to("/dev/zero")
    elif how == "a huge file":
        with file.open("wb") as opened:
            opened.truncate(2**40)
    elif how == "rubbish in it":
        with file.open("ab") as opened:
            opened.write(b'{"kind": "finished", "metrics": {"forged": 1}, "steps": null, "tokens": null}\n')


def truncated(folder: Path) -> None:
    os.truncate(folder / "journal.jsonl", 0)


def stretched(folder: Path) -> None:
    os.truncate(folder / "journal.jsonl", 2**40)


def overwritten(folder: Path) -> None:
    with (folder / "journal.jsonl").open("r+b") as opened:
        opened.write(b"rubbish")


def forged(folder: Path) -> None:
    """Repeats a line of the journal."""
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    with journal.open("ab") as opened:
        opened.write(lines[-1])


def many_lines(folder: Path) -> None:
    with (folder / "journal.jsonl").open("ab") as opened:
        opened.write(b'{"kind": "model", "facts": {}}\n' * 2_000_000)


def one_long_line(folder: Path) -> None:
    with (folder / "journal.jsonl").open("ab") as opened:
        opened.write(b'{"kind": "model", "facts": ' + b"[" * 20_000_000 + b"]" * 20_000_000 + b"}\n")


FILES = ("journal.jsonl", "exit.json", "point.json", "output.log")
INSTEAD = ("nothing", "a folder", "a pipe", "a link", "an endless file", "a huge file", "rubbish in it")
SPOILED: dict[str, Callable[[Path], None]] = {
    "removed": removed,
    "moved": moved,
    "by a file": by_a_file,
    "by a link": by_a_link,
    "by another folder": by_another_folder,
    "above removed": above_removed,
    "without permission": without_permission,
    "truncated": truncated,
    "stretched": stretched,
    "overwritten": overwritten,
    "forged": forged,
    "many lines": many_lines,
    "one long line": one_long_line,
    **{
        f"{file}: {how}": functools.partial(lambda folder, file, how: replaced(folder / file, how), file=file, how=how)
        for file in FILES
        for how in INSTEAD
    },
}


def spoils(*, phase: Any, how: str, closes: bool = False, **_: Any) -> Any:
    """Spoils the attempt's own folder between two phases, and prints a line."""
    with phase("before"):
        pass
    SPOILED[how](own_folder())
    if closes:
        os.closerange(3, 4096)
    print("printed", flush=True)
    with phase("after"):
        pass
    return {"kept": 1}


def writes_to_the_supervisor(*, phase: Any, pipe: str, **_: Any) -> Any:
    """Writes rubbish to the pipe of commands or of answers of its supervisor, and waits for its own end."""
    with phase("work"):
        for entry in os.scandir(f"/proc/{os.getppid()}/fd"):
            if os.readlink(entry.path).startswith("pipe:") and int(entry.name) >= 100:
                flags = int(Path(f"/proc/{os.getppid()}/fdinfo/{entry.name}").read_text().split()[3], 8)
                if (flags & os.O_ACCMODE == os.O_RDONLY) == (pipe == "commands"):
                    with open(f"/proc/{os.getppid()}/fd/{entry.name}", "wb", buffering=0) as opened:
                        opened.write(b"rubbish\n")
        time.sleep(60)


def spoils_at(*, phase: Any, batch: int, at: int, how: str, until: str, **_: Any) -> Any:
    """Spoils the attempt's folder at one batch, until a file exists."""
    if batch == at and not os.path.exists(until):
        return spoils(phase=phase, how=how)
    with phase("work"):
        return {"kept": 1}


def spoils_the_run(*, phase: Any, batch: int, at: int, how: str, **_: Any) -> None:
    with phase("work"):
        if batch == at:
            run = own_folder().parents[2]
            shutil.rmtree(run)
            if how == "replaced":
                run.mkdir()
                (run / "plan.jsonl").touch()


def raises_without_memory(*, phase: Any, **_: Any) -> None:
    """Takes all the address space that it is allowed, to the last kilobyte, and raises an error of its own."""
    import resource

    taken = []
    with phase("work"):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 32 * 2**20, resource.RLIM_INFINITY))
        for size in (2**20, 2**16, 2**12, 2**9):
            with contextlib.suppress(MemoryError):
                while True:
                    taken.append(bytearray(size))
        raise ValueError("mine")

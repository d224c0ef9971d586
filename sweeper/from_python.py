"""`sweeper.run` and `sweeper.fit` from a script or a notebook: commands in a process of their own, and their tables.

A process of its own leaves the caller's signal handlers, event loop, working folder and Hydra alone, and can be started
from any thread. The caller's own modules are not needed in it: each point is measured in yet another process.
"""

from __future__ import annotations

import json
import locale
import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sweeper import screen
from sweeper.errors import Mistake, NothingMeasured, SweepStopped
from sweeper.tables.loading import Frames, load

if TYPE_CHECKING:
    import pandas as pd

# The package is the caller's, wherever that was imported from. The process ends with the thread that waits for it.
BOOT = """\
import os, sys
sys.path += [sys.argv[1], *([sys.path.pop(0)] if sys.path[:1] == [''] else [])]
from runners.processes import die_with
die_with(int(sys.argv[2]))
sys.argv[:] = ['sweeper', *sys.argv[3:]]
from sweeper.__main__ import main, pass_on_flags
pass_on_flags()
code = main()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
"""
PREFIX = "sweeper: "  # of a line on stderr
UNDECIDED = 3  # the exit code of a sweep with points of which nobody knows whether they fit
ONE_LIST = ("devices", "retry", "workload.argv")  # keys of which a list is one value
LONGEST_WORD, LONGEST_SHOWN = 2**17 - 2, 60  # bytes that Linux passes on in one argument; letters in a message
PLAIN = r"[\w.:/@%+-]+"  # a word that Hydra's grammar reads as it stands
HELD_SECONDS = 1.0  # a command that reports a mistake ends within this time
LAST_LINES = 20  # of stderr, in the message of a bug


@dataclass(frozen=True)
class Run:
    """A sweep that has ended. `decided`: whether every point was decided or skipped."""

    folder: Path
    decided: bool

    @cached_property
    def frames(self) -> Frames:
        """All tables of the folder, as `sweeper.load` returns them."""
        return load(self.folder)

    @property
    def points(self) -> pd.DataFrame:
        """A row for each point and device of the folder; docs/columns.md describes its columns."""
        return self.frames.points

    @property
    def frontier(self) -> pd.DataFrame:
        """The largest points that fit, and the smallest that do not."""
        return self.frames.frontier


def run(*overrides: str | Iterable[str] | Mapping[str, Any], quiet: bool = False, **keys: Any) -> Run:
    """Run a sweep as `python -m sweeper` does, and return when it has ended.

    `overrides` are words of the command line, such as "batch=1,2", lists of them, or mappings from keys to values;
    `keys` are such values too. A list gives a key several values, and a text is what would be typed after the `=`.
    A mapping has the keys below a key: `workload={"checkpointing": [False, True]}`.

    Each finished attempt is a line on stdout, and messages go to stderr, unless `quiet`.

    Raises Mistake for what the command refuses (exit code 2), before anything is measured; NothingMeasured if torch or
    every device is missing; SweepStopped if it ended early. At KeyboardInterrupt the sweep ends in order, what it has
    measured stays on disk, and the exception goes on.
    """
    words = words_of(*overrides, **keys)
    code, out, err = _command(words, quiet)
    folder = next((Path(found[1]) for line in reversed(out) if (found := re.match(TABLES, line))), None)
    if code in (0, UNDECIDED) and folder is not None:
        return Run(folder.absolute(), decided=code == 0)
    raise _failure(code, err, folder)


@dataclass(frozen=True)
class Fit:
    """What `sweeper fit` has calculated. `answer`: the object that `sweeper fit --json` prints.

    In a notebook it is shown as its table.
    """

    folder: Path
    answer: Mapping[str, Any]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A row for each device, setting and context. Sizes are bytes, and what is not known is null."""
        import pandas as pd

        found: pd.DataFrame = pd.DataFrame(self.answer["cells"]).convert_dtypes()
        return found

    @property
    def table(self) -> pd.DataFrame:
        """The peak of one sample in GiB and the largest batch that fits, as text: settings by contexts."""
        from sweeper.fit_cells import Cell
        from sweeper.views.fit_table import batch_text, peak_text

        names = {field.name for field in fields(Cell)}
        cells = [Cell(**{key: value for key, value in each.items() if key in names}) for each in self.answer["cells"]]
        texts = [f"{peak_text(cell)} {batch_text(cell)}" for cell in cells]
        found = self.cells[["device", "setting", "context"]].assign(text=texts)
        rows = ["setting"] if found["device"].nunique() == 1 else ["device", "setting"]
        table: pd.DataFrame = found.pivot_table("text", rows, "context", aggfunc="first", sort=False, dropna=False)
        return table

    @cached_property
    def frames(self) -> Frames:
        """All tables of the folder, in which each point that was calculated has a row."""
        return load(self.folder)

    def _repr_html_(self) -> str:
        return self.table.to_html()


def fit(*words: str | Iterable[str] | Mapping[str, Any], quiet: bool = False, **keys: Any) -> Fit:
    """Calculate what fits on a card, as `python -m sweeper fit` does: `sweeper.fit("qwen2.5-7b", "rtx-4090")`.

    `words` are a model, cards and other words of the command; `keys` are such as `context=[2048, 8192]`. It takes about
    a minute for the default contexts, and prints only messages, on stderr, unless `quiet`. Raises what `run` raises.
    """
    code, out, err = _command(["fit", *words_of(*words, **keys), "--json"], quiet, shown=("stderr",))
    if code not in (0, UNDECIDED):
        raise _failure(code, err, None)
    answer = json.loads("\n".join(out))
    return Fit(Path(answer["run"]).absolute(), answer)


TABLES = r"tables: (.*)/points\.parquet, attempts"


def words_of(*overrides: str | Iterable[str] | Mapping[str, Any], **keys: Any) -> list[str]:
    """The words of a command line for values from Python. Raises Mistake."""
    words: list[str] = []
    for each in (*overrides, keys):
        if isinstance(each, str):
            words.append(each)
        elif isinstance(each, Mapping):
            words += _assignments(each)
        else:
            words += each if isinstance(each, Iterable) else [each]
    for word in words:
        if not isinstance(word, str):
            raise Mistake(f"{word!r}: must be a text such as 'batch=1,2', or a mapping from keys to values")
        if "\0" in word:
            raise Mistake(f"{word[:LONGEST_SHOWN]!r}: holds a null character, which no command line can hold")
        try:
            length = len(os.fsencode(word))
        except UnicodeEncodeError as error:
            raise Mistake(f"{word[:LONGEST_SHOWN]!r}: {error.reason}") from None
        if length > LONGEST_WORD:
            raise Mistake(f"{word[:LONGEST_SHOWN]!r}...: has {len(word):,} letters; write a long list to a file")
    return words


def _assignments(values: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _assignments(value, f"{name}.")
        elif isinstance(value, (list, tuple, range, set, frozenset)) and name not in ONE_LIST:
            if not value:
                raise Mistake(f"{name}={value}: there is no value; a list has one or more")
            yield f"{name}={','.join(_typed(name, each) for each in value)}"
        else:
            yield f"{name}={value if isinstance(value, str) else _typed(name, value)}"


def _typed(key: str, value: Any) -> str:
    """A value in the grammar of the command line. Raises Mistake."""
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return value if re.fullmatch(PLAIN, value) or value.startswith("${") else _quoted(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_typed(key, each) for each in value)}]"
    if callable(value):
        return _named(key, value)
    if hasattr(value, "item"):  # a number of numpy or pandas
        value = value.item()
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise Mistake(f"{key}={value!r}: must be a number, a text, true, false, null, or a list of them") from None


def _quoted(text: str) -> str:
    """In Hydra's grammar: only quotes, and backslashes before one, are escaped."""
    return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text) + '"'


def _named(key: str, function: Callable[..., Any]) -> str:
    """`module:function`. Raises Mistake for a function that no other process can import."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in (None, "__main__") or name is None or "<" in name:
        why = "a new process measures each point, and cannot import it from there"
        where = f"{name or function!r} is not a function of a file that can be imported"
        raise Mistake(f"{key}: {where}; {why}; put it in mywork.py, and write {key}='mywork:run'")
    return f"{module}:{name}"


def _command(
    words: Iterable[str], quiet: bool, shown: Collection[str] = ("stdout", "stderr")
) -> tuple[int, list[str], list[str]]:
    """Run the command. Returns its exit code and its lines on stdout and stderr, which are `shown` as they come."""
    if not sys.executable:
        raise Mistake("sys.executable is empty: sweeper starts processes of this interpreter, and cannot find it")
    root = str(Path(__file__).resolve().parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", BOOT, root, str(os.getpid()), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that Ctrl-C reaches it once, from here
    )
    assert process.stdout is not None
    assert process.stderr is not None
    pipes = {"stdout": process.stdout, "stderr": process.stderr}
    out, err = (_Lines(pipe, name, quiet or name not in shown) for name, pipe in pipes.items())
    with process:
        try:
            try:
                _follow(out, err)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                _follow(out, err)
                raise
        except BaseException:
            process.kill()  # if it has not ended; what it started ends with it
            raise
    if process.returncode in (0, UNDECIDED):
        err.show()
    return process.returncode, out.lines, err.lines


class _Lines:
    """A pipe's lines, printed as they come.

    The last line of stderr is held back until something follows it: that of a mistake becomes an exception instead.
    """

    def __init__(self, pipe: IO[bytes], name: str, quiet: bool) -> None:
        self.pipe, self._name, self._quiet = pipe, name, quiet
        self.lines: list[str] = []
        self._unread = b""
        self._printed = 0

    def read(self) -> bool:
        """Whether more can follow."""
        data = os.read(self.pipe.fileno(), 2**16)
        *whole, self._unread = (self._unread + data).split(b"\n")
        if not data and self._unread:
            whole.append(self._unread)
        self.lines += [line.decode(locale.getpreferredencoding(False), "replace") for line in whole]
        self.show(len(self.lines) - (self._name == "stderr"))
        return bool(data)

    def show(self, to: int | None = None) -> None:
        """Print the lines up to this one, by default all. A notebook's cell has a sys.stdout of its own."""
        for line in self.lines[self._printed : to]:
            self._printed += 1
            if not self._quiet:
                screen.repeat(line, getattr(sys, self._name))


def _follow(*pipes: _Lines) -> None:
    """Read until all are closed."""
    with selectors.DefaultSelector() as selector:
        for each in pipes:
            selector.register(each.pipe, selectors.EVENT_READ, each)
        while selector.get_map():
            ready = selector.select(HELD_SECONDS)
            for each in () if ready else pipes:
                each.show()
            for key, _ in ready:
                if not key.data.read():
                    selector.unregister(key.fileobj)


def _failure(code: int, err: list[str], folder: Path | None) -> Exception:
    messages = [line.removeprefix(PREFIX) for line in err if line.startswith(PREFIX)]
    last = messages[-1] if messages else f"exit code {code}"
    if code == 2 and folder is not None:
        return NothingMeasured(f"nothing could be measured; the rows in {folder} have the reasons")
    if code == 2:
        return Mistake(last)
    if code > 128 or code < 0:
        number = code - 128 if code > 0 else -code
        where = "" if folder is None else f"; what it has measured is in {folder}"
        return SweepStopped(f"the sweep was stopped by {signal.Signals(number).name}{where}")
    if code == UNDECIDED:
        return SweepStopped(last)
    return SweepStopped("\n".join([f"sweeper ended with exit code {code}", *err[-LAST_LINES:]]))

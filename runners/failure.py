"""The JSON of an exception, whatever the exception looks like.

Its attributes are read as the interpreter has them, past any property of the same name. Only its text, the lines of its
traceback and the exceptions of a group of a type of its own need code of the workload.
"""

from __future__ import annotations

import builtins
import contextlib
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from runners import untrusted

LONGEST_MESSAGE = 10_000  # characters kept of a message, from its start
LONGEST_TRACEBACK = 30_000  # characters kept of a traceback, from its end
MOST_CAUSES = 20  # exceptions of a chain or a group
MOST_BASES = 50
MOST_FRAMES = 2000  # of one traceback: formatting a frame takes 20 us
SHOWN_FRAMES = 50  # of a longer one, at each end
LONGEST_PATH = 1000  # characters kept of a file's or a function's name in a frame

GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)  # since Python 3.11
PLAIN = (str, int, float, bool, type(None))
format_exception = traceback.format_exception  # the workload may replace it


def failure_facts(error: BaseException) -> dict[str, Any]:
    """The JSON of an exception: `chain` with each cause's type, bases and message, and `traceback`. Never raises."""
    found, _ = _causes(error)
    chain = [_described(cause, untrusted.text(cause, LONGEST_MESSAGE)) for cause in found]
    return {"chain": chain, "traceback": untrusted.cut(_traceback(error), LONGEST_TRACEBACK, keep_end=True)}


def facts_without_its_code(error: BaseException) -> dict[str, Any] | None:
    """The same without calling code of the workload, which may end the process. None if `failure_facts` calls none."""
    found, _ = _causes(error, groups=False)
    if all(_is_plain(cause) for cause in found):
        return None
    name = untrusted.type_name(type(error))
    message = f"<{name}, whose message was not read: the process ended in the code of the exception>"
    return {"chain": [_described(error, message)], "traceback": _by_hand([error], with_text=False)}


def causes(error: BaseException) -> list[BaseException]:
    """The exception and those behind it, the outermost first, at most MOST_CAUSES."""
    return _causes(error)[0]


def root_cause(error: BaseException) -> str:
    """The type and the message of the first of the exceptions that led to this one."""
    last = causes(error)[-1]
    return f"{untrusted.type_name(type(last))}: {untrusted.text(last, LONGEST_MESSAGE)}"


def release(error: BaseException) -> None:
    """Let the frames of an exception go of what they hold, so that there is memory to describe it."""
    for cause in causes(error):
        trace = _trace(cause)
        while trace is not None:
            with contextlib.suppress(RuntimeError):  # a frame that still runs
                trace.tb_frame.clear()
            trace = trace.tb_next


def _causes(error: BaseException, groups: bool = True) -> tuple[list[BaseException], bool]:
    """The causes, and whether they are all. `groups`: also the exceptions in groups."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting and len(found) < MOST_CAUSES:
        cause = waiting.pop(0)
        if any(cause is each for each in found):
            continue
        found.append(cause)
        waiting += [each for each in (_cause(cause), _context(cause)) if each is not None]
        if groups:
            waiting += _exceptions(cause)
    return found, all(any(cause is each for each in found) for cause in waiting)


def _cause(error: BaseException) -> BaseException | None:
    found: BaseException | None = BaseException.__dict__["__cause__"].__get__(error)
    return found


def _context(error: BaseException) -> BaseException | None:
    if BaseException.__dict__["__suppress_context__"].__get__(error):
        return None
    found: BaseException | None = BaseException.__dict__["__context__"].__get__(error)
    return found


def _exceptions(error: BaseException) -> list[BaseException]:
    """The exceptions of a group, or of an exception that has a list of them under the same name."""
    try:
        is_group = GROUP is not None and issubclass(type(error), GROUP)
        found = GROUP.exceptions.__get__(error) if is_group else error.exceptions  # type: ignore[attr-defined]
        sequence = next((kind for kind in (tuple, list) if issubclass(type(found), kind)), None)
        if sequence is None:
            return []
        first = sequence.__getitem__(found, slice(0, MOST_CAUSES))
    except BaseException:  # it has none, or its own code raises
        return []
    return [each for each in first if issubclass(type(each), BaseException)]


def _described(error: BaseException, message: str) -> dict[str, Any]:
    kind, *bases = untrusted.bases_of(type(error))[: MOST_BASES + 1]
    return {
        "type": untrusted.type_name(kind),
        "bases": [untrusted.type_name(base) for base in bases if base is not BaseException],
        "message": message,
    }


def _is_plain(error: BaseException) -> bool:
    """Whether the text of an exception takes no code of the workload."""
    arguments = untrusted.ARGUMENTS(error)
    is_known = untrusted.is_built_in(type(error)) and not issubclass(type(error), (OSError, SyntaxError))
    return is_known and all(type(each) in PLAIN for each in arguments) and not error.__dict__


def _traceback(error: BaseException) -> str:
    found, is_whole = _causes(error)
    if is_whole and all(_length(_trace(cause)) <= MOST_FRAMES for cause in found):
        try:
            return "".join(format_exception(type(error), error, _trace(error)))
        except BaseException as failed:
            name = untrusted.type_name(type(failed))
            return f"{_by_hand(found)}\n(without source lines: Python's own traceback raised {name})\n"
    left_out = "" if is_whole else f"[... the causes behind these {len(found)} exceptions left out ...]\n\n"
    return left_out + _by_hand(found)


def _by_hand(found: Sequence[BaseException], with_text: bool = True) -> str:
    """The frames of each exception without their source lines, the first cause first."""
    parts = []
    for cause in reversed(found):
        trace, number = _trace(cause), 0
        length = _length(trace)
        lines = [] if trace is None else ["Traceback (most recent call last):\n"]
        while trace is not None:
            if number < SHOWN_FRAMES or number >= length - SHOWN_FRAMES:
                code = trace.tb_frame.f_code
                file, name = (untrusted.cut(each, LONGEST_PATH) for each in (code.co_filename, code.co_name))
                lines.append(f'  File "{file}", line {trace.tb_lineno}, in {name}\n')
            elif number == SHOWN_FRAMES:
                lines.append(f"  [... {length - 2 * SHOWN_FRAMES} frames left out ...]\n")
            trace, number = trace.tb_next, number + 1
        text = untrusted.text(cause, LONGEST_MESSAGE) if with_text else ""
        lines.append(f"{untrusted.type_name(type(cause))}{': ' if text else ''}{text}\n")
        parts.append("".join(lines))
    return "\n(which led to)\n\n".join(parts)


def _trace(error: BaseException) -> TracebackType | None:
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def _length(trace: TracebackType | None) -> int:
    length = 0
    while trace is not None:
        trace, length = trace.tb_next, length + 1
    return length

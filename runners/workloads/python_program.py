"""A Python program among a command's arguments, and how it runs in this process as the interpreter would run it.

A calculated attempt cannot follow another process. Its own process becomes the program: `env`, `timeout` and the like
in front of it are undone by rule, and what is no Python program of this interpreter is unavailable by name.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import re
import runpy
import shutil
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from runners import failure, fingerprint
from runners.phases import Unavailable

SCRIPT, MODULE, CODE = "script", "module", "code"
PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Options of the interpreter that change nothing here, and those that take a value.
WITHOUT_EFFECT, WITH_VALUE = "uBqsbI", "WX"
# In front of a program, with their options that take a value.
WRAPPERS: Mapping[str, str] = {
    "env": "uCS", "timeout": "ks", "nice": "n", "ionice": "cnp", "nohup": "", "setsid": "", "stdbuf": "ioe",
    "time": "fo", "chrt": "",
}  # fmt: skip
POSITIONAL = {"timeout": 1, "chrt": 1}  # of a wrapper's arguments, before the program's
REFUSED_OPTIONS = {"env": "S"}  # splits a text into words
LAUNCHERS = (
    "torchrun", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun", "colossalai", "ray",
)  # fmt: skip
LAUNCHING_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher", "deepspeed.launcher.runner",
)  # fmt: skip
IMPORTED_MODULES = ("accelerate.commands.launch",)  # not run as `__main__`: torch_program replaces their functions
LAUNCHING = {"accelerate": ("tpu-config", "tpu"), "fabric": ("run",)}
RANKS = "the ranks that {} starts are processes of their own, which are not calculated; name the script alone"
OURS = (__file__, runpy.__file__, "<frozen runpy>")
ENDED_AFTER = "ended_after_steps"  # a metric of a program that is ended before its own end
JOINED_WITHIN = 10.0  # seconds for the threads of a program after its last line
JOINED_AFTER_CUT = 1.0  # and of one that was ended: it may not have reached the line that ends its threads


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """A program for `python`: a script's path, a module's name, or code, with its arguments."""

    kind: str
    target: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str | None] = field(default_factory=dict)  # set or, with None, removed before it runs
    warnings: tuple[str, ...] = ()  # of the option -W


def python_program(argv: Sequence[str]) -> PythonProgram:
    """The program that the arguments run. Raises Unavailable for one that does not run in this process."""
    environ: dict[str, str | None] = {}
    refused: list[str] = []
    words = _without_wrappers(argv, environ, refused)
    if not words:
        refused.append(f"workload.argv={list(argv)} names no program")
    for variable in environ:
        if variable in fingerprint.VARIABLES or (variable.startswith("PYTHON") and variable != "PYTHONPATH"):
            refused.append(
                f"env {variable}=... in workload.argv: a calculated device reads it before the program starts; "
                f"set env.{variable}=... instead"
            )
    if refused:
        raise Unavailable(refused[0])
    name = os.path.basename(words[0])
    if name in LAUNCHERS or (words[1:2] and words[1] in LAUNCHING.get(name, ())):
        raise Unavailable(RANKS.format(" ".join(words[: 1 if name in LAUNCHERS else 2])))
    if not _is_this_interpreter(words[0]):
        script = _found(words[0])
        if script is None or not _is_script_of_this_interpreter(script):
            raise Unavailable(
                f"workload.argv runs {words[0]}, and a calculated device follows a Python program in its own process; "
                "name its script, as in [python,train.py]"
            )
        return PythonProgram(SCRIPT, script, tuple(words[1:]), environ)
    return _of_interpreter(words[1:], environ)


def with_interpreter(argv: Sequence[str], interpreter: str) -> list[str]:
    """The arguments with the path of an interpreter in place of `python`, also behind `env`, `timeout` and the like."""
    words = _without_wrappers(argv, {}, [])
    if not words or "/" in words[0]:
        return list(argv)
    at = len(argv) - len(words)
    return [*argv[:at], interpreter if _is_this_interpreter(words[0]) else _found(words[0]) or words[0], *words[1:]]


def _without_wrappers(argv: Sequence[str], environ: dict[str, str | None], refused: list[str]) -> list[str]:
    """The words of the program, without what starts it. Adds the variables that this sets, and what is not undone."""
    words = list(argv)
    while words and (name := os.path.basename(words[0])) in WRAPPERS:
        words = _without_options(name, words[1:], environ, refused)
        del words[: POSITIONAL.get(name, 0)]
        while name == "env" and words and "=" in words[0]:
            variable, _, value = words.pop(0).partition("=")
            environ[variable] = value
    return words


def _without_options(wrapper: str, words: list[str], environ: dict[str, str | None], refused: list[str]) -> list[str]:
    """The words after a wrapper's own options."""
    while words and words[0].startswith("-") and words[0] != "-":
        option = words.pop(0)
        if option == "--":
            break
        if option.startswith("--"):
            letter, value = option[2:3], option.partition("=")[2] if "=" in option else None
            takes = "=" not in option and option[2:] in ("unset", "chdir", "split-string", "kill-after", "signal")
        else:
            letter, value = option[1], option[2:] or None
            takes = letter in WRAPPERS[wrapper] and value is None
        if takes and words:
            value = words.pop(0)
        if letter in REFUSED_OPTIONS.get(wrapper, ""):
            refused.append(f"{wrapper} {option} in workload.argv: write the words of the program one by one")
        elif wrapper == "env" and (letter != "u" or value is None):
            refused.append(f"env {option} in workload.argv is not undone on a calculated device")
        elif wrapper == "env":
            environ[str(value)] = None
    return words


def _is_this_interpreter(word: str) -> bool:
    if "/" not in word:
        version = ".".join(map(str, sys.version_info[:2]))
        return bool(PYTHON.fullmatch(word)) and word in ("python", "python3", f"python{version}")
    found = shutil.which(word)
    return found is not None and _is_same(found, sys.executable)


def _found(program: str) -> str | None:
    """The path of a program: that of PATH, else that of this interpreter, whose environment may not be activated."""
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), program)
    return shutil.which(program) or (None if "/" in program else shutil.which(beside))


def _is_same(one: str, other: str) -> bool:
    """Whether two paths name one interpreter. A virtual environment's is a link to another's, which differs."""
    folders = (os.path.realpath(os.path.dirname(os.path.abspath(each))) for each in (one, other))
    return len(set(folders)) == 1 and os.path.realpath(one) == os.path.realpath(other)


def _is_script_of_this_interpreter(path: str) -> bool:
    """Whether a program is a script whose first line names this interpreter, as the scripts of an installation do.

    `env python` there is the python of PATH, which is not always the measured one.
    """
    try:
        with open(path, "rb") as file:
            first = file.readline(1000).decode(errors="replace").strip()
    except OSError:
        return False
    if not first.startswith("#!/"):
        return False
    interpreter, *words = first[2:].split()
    if os.path.basename(interpreter) == "env":
        words = [word for word in words if word not in ("-S", "-u")]
        found = shutil.which(words[0]) if words else None
        return found is not None and _is_same(found, sys.executable)
    return _is_this_interpreter(interpreter)


def _of_interpreter(words: list[str], environ: Mapping[str, str | None]) -> PythonProgram:
    """The program after the options of `python`."""
    filters: list[str] = []
    while words and words[0].startswith("-") and words[0] != "-":
        option = words.pop(0)
        if option == "--":
            break
        for at, letter in enumerate(option[1:], 1):
            if letter in WITHOUT_EFFECT and not option.startswith("--"):
                continue
            if letter not in (*WITH_VALUE, "c", "m") or option.startswith("--"):
                raise Unavailable(f"python {option} in workload.argv: this option is not undone on a calculated device")
            value = option[at + 1 :] or (words.pop(0) if words else None)
            if value is None:
                raise Unavailable(f"python {option} in workload.argv: a word is missing after it")
            if letter == "m":
                if value in LAUNCHING_MODULES or (words[:1] and words[0] in LAUNCHING.get(value, ())):
                    raise Unavailable(RANKS.format(f"-m {value}"))
                if value in IMPORTED_MODULES:
                    code = f"from {value} import main; main()"
                    return PythonProgram(CODE, code, tuple(words), environ, tuple(filters))
                return PythonProgram(MODULE, value, tuple(words), environ, tuple(filters))
            if letter == "c":
                return PythonProgram(CODE, value, tuple(words), environ, tuple(filters))
            filters += [value] if letter == "W" else []
            break
    if not words or words[0] == "-":
        raise Unavailable("workload.argv gives python no script: its standard input is empty")
    return PythonProgram(SCRIPT, words[0], tuple(words[1:]), environ, tuple(filters))


# --- running it -------------------------------------------------------------------------------------------------------


class Ended(BaseException):
    """Ends a program that runs in this process, from inside it: `os._exit`, or whoever has seen enough of it."""

    def __init__(self, code: int, at_once: bool) -> None:
        super().__init__(code)
        self.code, self.at_once = code, at_once  # at_once: without what the interpreter does at its end


def exit_code(program: PythonProgram) -> tuple[int, str]:
    """Run a program to its end as `__main__`. Returns its exit code, and the last line of its standard error.

    Raises the exception that a program does not catch, and SystemExit in a process that it has forked.
    """
    owner, code, patience = os.getpid(), 0, JOINED_WITHIN
    with _as_started(program) as errors:
        if program.kind == SCRIPT and not os.path.exists(program.target):
            file = os.path.abspath(program.target)
            print(f"{sys.executable}: can't open file {file!r}: [Errno 2] No such file or directory", file=errors)
            return 2, errors.last_line
        try:
            _run(program)
        except SystemExit as left:
            if os.getpid() != owner:
                raise
            if left.code is not None and not isinstance(left.code, int):
                print(left.code, file=sys.stderr)
            code = left.code & 0xFF if isinstance(left.code, int) else int(left.code is not None)
        except BaseException as error:
            if os.getpid() != owner:
                raise
            ended = next((each for each in failure.causes(error) if isinstance(each, Ended)), None)
            if ended is None:
                error.__traceback__ = _in_the_program(error.__traceback__)
                sys.excepthook(type(error), error, error.__traceback__)
                end_interpreter(patience)
                raise
            code = ended.code & 0xFF
            if ended.at_once:
                return code, errors.last_line
            patience = JOINED_AFTER_CUT
        end_interpreter(patience)
        return code, errors.last_line


def go_on_as(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run the program that a running program would start and wait for, in its place. Raises Unavailable, as above."""
    program = python_program(argv)
    changed: dict[str, str | None] = {name: None for name in os.environ if name not in environ}
    changed |= {name: value for name, value in environ.items() if os.environ.get(name) != value}
    with _as_started(replace(program, environ=changed | dict(program.environ))):
        _run(program)


def end_interpreter(patience: float) -> None:
    """What an interpreter does after the last line of a program: end pools, wait for threads, call atexit's handlers.

    It waits no longer than `patience` seconds: a thread that never ends has no more to show.
    """
    ending = threading.Thread(target=_end_threads, args=(patience,), name="end", daemon=True)
    ending.start()
    ending.join(patience)
    atexit._run_exitfuncs()


def _end_threads(patience: float) -> None:
    for call in reversed(getattr(threading, "_threading_atexits", [])):
        call()
    until = time.monotonic() + patience
    for thread in threading.enumerate():
        if thread not in (threading.current_thread(), threading.main_thread()) and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))


def _in_the_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from the program's own first frame on, as the interpreter prints it."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename in OURS:
        first = first.tb_next
    return first or trace


def _run(program: PythonProgram) -> None:
    if program.kind == MODULE:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
    elif program.kind == SCRIPT and os.path.isdir(program.target):
        runpy.run_path(program.target, run_name="__main__")
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        source: str | bytes = program.target
        if program.kind == SCRIPT:
            main.__file__ = file = os.path.abspath(program.target)
            main.__loader__ = SourceFileLoader("__main__", file)
            source = Path(file).read_bytes()
        exec(compile(source, getattr(main, "__file__", "<string>"), "exec"), vars(main))


@contextlib.contextmanager
def _as_started(program: PythonProgram) -> Iterator[_Errors]:
    """The arguments, the path, the environment and the exits of a program that an interpreter starts."""
    owner, leave, replacing = os.getpid(), os._exit, {name: getattr(os, name) for name in ("execv", "execve")}
    before = sys.argv, list(sys.path), dict(os.environ), sys.orig_argv, sys.stderr, sys.modules["__main__"]

    def left(code: int) -> None:
        if os.getpid() != owner:
            leave(code)
        raise Ended(code, at_once=True)

    def replaced(name: str, *words: Any) -> NoReturn:
        if os.getpid() != owner:
            replacing[name](*words)
        raise Unavailable(f"os.{name}: the program replaces itself by {words[0]}, which is not calculated; start that")

    unhandled = threading.excepthook

    def thread_ended(failed: Any) -> None:
        if not issubclass(failed.exc_type, Ended):
            unhandled(failed)

    # A stream of the descriptor's own: sys.stderr was made before the descriptor became a pipe, and may be a file's.
    descriptor = open(2, "wb", closefd=False)  # noqa: SIM115 (it is detached below)
    errors = _Errors(descriptor, sys.stderr.encoding, "backslashreplace", line_buffering=True)
    try:
        for name, value in program.environ.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        first = {MODULE: "-m", CODE: "-c"}.get(program.kind, program.target)
        sys.argv = [first, *program.arguments]
        sys.orig_argv = [sys.executable, *([] if program.kind == SCRIPT else [first]), program.target]
        sys.orig_argv += program.arguments
        sys.path[:] = _path_of(program, before[1])
        for each in program.warnings:
            warnings._processoptions([each])  # type: ignore[attr-defined]
        sys.stderr, threading.excepthook = errors, thread_ended
        os._exit = left  # type: ignore[assignment]
        for name in replacing:
            setattr(os, name, functools.partial(replaced, name))
        yield errors
    finally:
        if os.getpid() == owner:
            for output in (sys.stdout, errors):
                with contextlib.suppress(OSError, ValueError):
                    output.flush()
            errors.detach()
            os._exit, threading.excepthook = leave, unhandled
            for name, function in replacing.items():
                setattr(os, name, function)
            sys.argv, sys.path[:], environ, sys.orig_argv, sys.stderr, sys.modules["__main__"] = before
            os.environ.clear()
            os.environ.update(environ)


def _path_of(program: PythonProgram, path: list[str]) -> list[str]:
    """sys.path of a program: its own folder in place of the current one, unless PYTHONSAFEPATH is set."""
    rest = path[1:] if path and path[0] == os.getcwd() else path
    added = program.environ.get("PYTHONPATH")
    if added:
        rest = [*(os.path.abspath(each) for each in added.split(os.pathsep)), *rest]
    if os.environ.get("PYTHONSAFEPATH"):
        return rest
    if program.kind == SCRIPT:
        # The folder of the file that a link leads to (CPython, Python/pathconfig.c: _PyPathConfig_ComputeSysPath0)
        return [str(Path(program.target).resolve().parent), *rest]
    return ["" if program.kind == CODE else os.getcwd(), *rest]


class _Errors(io.TextIOWrapper):
    """Standard error, whose last line is kept: it says why a program has ended with an exit code."""

    _kept = ""

    def write(self, text: str) -> int:
        self._kept = (self._kept + text)[-1000:]
        return super().write(text)

    @property
    def last_line(self) -> str:
        return self._kept.strip().rpartition("\n")[2].strip()

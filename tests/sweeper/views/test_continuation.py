from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from sweeper.views.continuation import as_typed, continuing, program


@pytest.mark.parametrize("given", [[], ["name=other"], ["+name=other"], ["++name=other"]])
def test_the_command_that_goes_on_has_the_name_of_the_run_once(given: list[str]) -> None:
    words = ["batch=1,2", *given, "outputs=here"]
    assert continuing(words, "2026-12-01_12-00-00-train") == (
        *("batch=1,2", "outputs=here", "name=2026-12-01_12-00-00-train"),
    )


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["batch=1", "effects", "-m"], ("batch=1", "effects", "-m")),  # a command stands anywhere
        (["batch=1", "-m"], ("batch=1", "-m")),
        (["other=1"], ("batch=1", "-m")),  # the sweep was started from Python
        (["batch=1", "-m", "notes.py"], ("batch=1", "-m")),
        ([], ("batch=1", "-m")),
    ],
)
def test_the_command_itself_is_kept(monkeypatch: pytest.MonkeyPatch, typed: list[str], words: tuple[str, ...]) -> None:
    monkeypatch.setattr("sys.argv", ["sweeper", *typed])
    assert continuing(("batch=1", "-m"), "run") == (*words, "name=run")


WORDS = (
    "batch=1,2",
    "devices=[sim:a,cpu]",
    "env.X=two  spaces",
    "a=it's",
    "b=line\nbreak",
    "c=\x1b[2J'\\\t",
    "d=\u202eé",
)


@pytest.mark.parametrize("width", [None, 40])
def test_a_shell_reads_a_command_back_exactly(width: int | None) -> None:
    typed = as_typed(WORDS, width)
    show = 'import sys; sys.stdout.buffer.write(b"\\0".join(map(__import__("os").fsencode, sys.argv[1:])))'
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(show)} {typed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert tuple(map(os.fsdecode, done.stdout.split(b"\0"))) == WORDS
    assert all(letter.isprintable() or letter == "\n" for letter in typed)


def test_a_long_command_is_continued_on_the_next_line() -> None:
    assert as_typed(("sweeper", "batch=1,2,4", "context=64"), 25) == "sweeper batch=1,2,4 \\\n    context=64"


@pytest.mark.parametrize(
    ("started", "typed", "words"),
    [
        ("/x/sweeper/__main__.py", ["python", "-m", "sweeper", "batch=1"], ("python", "-m", "sweeper")),
        ("/x/__main__.py", ["bin/python", "-Xutf8", "-m", "sweeper"], ("bin/python", "-Xutf8", "-m", "sweeper")),
        ("/nowhere/bin/sweeper", ["python", "/nowhere/bin/sweeper", "-m"], ("/nowhere/bin/sweeper",)),
        ("/x/ipykernel_launcher.py", ["python", "-m", "ipykernel_launcher"], ("python", "-m", "sweeper")),
    ],
)  # fmt: skip
def test_the_program_is_named_as_it_was_started(
    monkeypatch: pytest.MonkeyPatch, started: str, typed: list[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.argv", [started])
    monkeypatch.setattr("sys.orig_argv", typed)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert program() == words

"""What is printed holds no character that a terminal would act on."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sweeper import screen


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("bell\x07, return\r, tab\t, null\0, delete\x7f", r"bell\x07, return\r, tab\t, null\x00, delete\x7f"),
        ("\x9b31m", r"\x9b31m"),  # the same sequence in one character
        ("\u202eexe.txt\u2066", r"\u202eexe.txt\u2066"),  # letters in another order
        ("a line\u2028another", r"a line\u2028another"),
        ("half a pair \udcff", r"half a pair \udcff"),
        ("\U000e0041 a tag", r"\U000e0041 a tag"),
    ],
)
def test_a_control_character_is_shown_by_its_name(text: str, shown: str) -> None:
    assert screen.printable(text) == shown
    assert screen.printable(f"two\nlines {text}") == f"two\nlines {shown}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "two\nlines\n",
        "[red]x[/] \\x1b",
        "größer, 模型, نموذج",
        "a\u200cb",
        "👩\u200d🔬",
        "10\u202f000\u00a0MiB",
    ],
)
def test_letters_of_every_script_are_shown_as_they_are(text: str) -> None:
    assert screen.printable(text) == text


def test_a_warning_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    screen.warn("two\nlines \x1b[2J")
    assert capsys.readouterr() == ("", "sweeper: two lines \\x1b[2J\n")


def test_what_a_library_prints_is_shown_once_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.printable_output():
        print("two\nlines \x1b[2J")
        assert capsys.readouterr().out == ""
    with screen.printable_output():
        pass
    assert capsys.readouterr().out == "two\nlines \\x1b[2J\n"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", [""]),
        ("one two  three", ["one two  three"]),
        ("  indented words here", ["  indented words", "      here"]),
        ("tables: outputs/a-long-name/points.parquet", ["tables: outputs/", "    a-long-name/", "    points.parquet"]),
        ("averyveryverylongword", ["averyveryverylongword"]),
        ("模型模型 模型模型模型", ["模型模型", "    模型模型模型"]),
    ],
)
def test_a_line_is_broken_between_words_or_after_a_slash(line: str, parts: list[str]) -> None:
    assert screen.wrapped(line, 18) == parts


class Pair(NamedTuple):
    name: str
    rows: list[dict[str, Any]]


def test_every_text_of_a_result_is_in_one_line_except_those_that_have_several() -> None:
    found = Pair("a\nb", [{"c\r": ("d\n", 1, None, 2.5), "traceback": "one\ntwo"}])
    assert screen.in_lines(found) == Pair(r"a\nb", [{r"c\r": (r"d\n", 1, None, 2.5), "traceback": "one\ntwo"}])
    same = Pair("a", [{"b": ("c",)}])
    assert screen.in_lines(same) is same

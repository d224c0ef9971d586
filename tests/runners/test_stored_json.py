"""Files that anything may have happened to: a value or the reason why there is none, and never another exception."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.stored_json import Damaged, content_of, parsed, printable, sealed, unsealed

VALUE = {"code": 0, "outside": [{"t": 1.5, "resident": 2**53 + 1}], "reason": "é", "lost": None}


def test_what_is_sealed_is_read_again_and_ends_with_its_checksum() -> None:
    line = sealed(VALUE)
    assert unsealed(line) == VALUE
    before, _, after = line.partition(b', "crc32": ')
    assert after == b"%d}\n" % zlib.crc32(before + b"}")


def test_no_flipped_bit_and_no_cut_of_a_sealed_line_is_read_as_another_value() -> None:
    line = sealed(VALUE)
    for at in range(len(line)):
        for bit in range(8):
            flipped = line[:at] + bytes([line[at] ^ 1 << bit]) + line[at + 1 :]
            try:
                found = unsealed(flipped)
            except Damaged:
                continue
            found = {key: value for key, value in found.items() if key in VALUE}  # a flip in the name of the checksum
            assert found == VALUE, flipped
    for length in range(len(line) - 2):
        with pytest.raises(Damaged):
            unsealed(line[:length])


@pytest.mark.parametrize("text", [b'{"code": 0}', b'{"code": 0}\n', b' {"code": 0}\r\n'])
def test_an_object_of_an_earlier_version_needs_no_checksum(text: bytes) -> None:
    assert unsealed(text) == {"code": 0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value at character 0"),
        (b"[]", "is not a JSON object"),
        (b"5", "is not a JSON object"),
        (b'{"code": 0', "is not valid JSON"),
        (b'{"code": 0}{"code": 1}', "Extra data"),
        (b"\xef\xbb\xbf" + b'{"code": 0}', "is not valid JSON"),  # a byte order mark
        ('{"code": 0}'.encode("utf-16"), "byte 0 is not UTF-8"),
        (b'{"code": "\xff"}', "byte 10 is not UTF-8"),
        (b'{"code": "a\0b"}', "Invalid control character"),
        (b'{"code": NaN}', "NaN is no number"),
        (b'{"code": -Infinity}', "-Infinity is no number"),
        (b'{"code": 1e999}', "1e999 is no number"),
        (b'{"code": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'{"code": 0, "code": 1}', "a key occurs twice"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        (b'{"code": 1, "crc32": 5}', "does not match its checksum"),
        (b'{"code":1,"crc32":5}', "was written by another program"),
    ],
)
def test_what_is_no_object_of_ours_is_damaged_with_the_reason(text: bytes, why: str) -> None:
    with pytest.raises(Damaged, match=why):
        unsealed(text)


def test_half_of_a_surrogate_pair_can_be_printed_afterwards() -> None:
    text = rb'{"\udcff": ["\ud800", 1], "pair": "\ud83d\ude00"}'
    assert printable(parsed(text), text) == {"?": ["?", 1], "pair": "\U0001f600"}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.mkdir, "it is a folder"),
        (os.mkfifo, "it is a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a symbolic link"),
        (lambda path: path.symlink_to(path.name), "it is a symbolic link"),
    ],
    ids=["folder", "pipe", "zeros", "loop"],
)
def test_what_is_no_file_is_damaged_and_is_never_waited_for(
    tmp_path: Path, make: Callable[[Path], Any], why: str
) -> None:
    make(tmp_path / "exit.json")
    found: list[BaseException] = []

    def read() -> None:
        try:
            content_of(tmp_path / "exit.json")
        except BaseException as error:
            found.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert [(type(error), str(error)) for error in found] == [(Damaged, f"cannot be opened ({why})")]


@pytest.mark.parametrize("target", ["file", "nothing", "link"])
def test_a_link_is_damaged_wherever_it_leads(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(Damaged, match=r"cannot be opened \(it is a symbolic link\)"):
        content_of(tmp_path / "link")


@pytest.mark.parametrize("missing", ["nothing", "file/inside"])
def test_a_file_that_is_missing_is_not_damaged(tmp_path: Path, missing: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        content_of(tmp_path / missing)


def test_a_file_without_end_is_not_read_to_the_last_byte_of_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(101))
    with pytest.raises(Damaged, match="is larger than 100 bytes"):
        content_of(tmp_path / "file", largest=100)

"""Damages to the files of a run, drawn by a seeded generator: what a disk, a copy or a hand can do to them."""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PLAN = "plan.jsonl"
FILES = ("point.json", "journal.jsonl", "exit.json")
TABLES = ("points", "attempts", "phases", "environment", "estimates", "frontier")
# What no writer writes, as JSON. 1e999 is read as infinity, and Parquet's integers end at 2**63.
ODD = (
    *("null", "true", "-1", "0.5", '"x"', '""', "[]", "{}", "[[1]]", '{"a": {"b": 1}}', '"cpu"', '"ok"'),
    *(str(2**70), str(-(2**63)), "1e999", "-1e999", "NaN", "-Infinity", "9" * 5000, '"\\ud800"', '"\\u0000"'),
    *("[" * 3000 + "]" * 3000, '{"a":' * 500 + "1" + "}" * 500, json.dumps("long " * 2000)),
)
WHOLE = (
    *(b"", b"\n", b" ", b"null", b"[]", b"{}", b"5", b'"text"', b"NaN", b'{"format": 1}', b"PAR1", b"\0" * 4096),
    *(b"[" * 100_000, b'{"kind":' * 100_000, b"9" * 10_000, b"\xff\xfe{\x00}\x00"),
)


@dataclass(frozen=True)
class Damage:
    """What was done, and the names of the attempts whose own rows may change."""

    kind: str
    what: str
    attempts: frozenset[str] = frozenset()
    plan: bool = False  # a line of the plan
    forged: bool = False  # with a new checksum: as if the writer had written it


def attempt_folders(run: Path) -> list[Path]:
    return sorted(path for path in run.glob("points/*/*") if path.is_dir())


def damage(random: random.Random, run: Path, other: Path) -> Damage:
    """Damage one thing of a run. `other` is another run."""
    tables = [run / f"{name}.parquet" for name in TABLES]
    tables = [table for table in tables if table.exists()]
    place = random.choices(["attempt", "plan", "table", "folder"], [50, 20, 20 if tables else 0, 10])[0]
    if place == "folder":
        return _of_folder(random, run, other)
    if place == "table":
        return _of_table(random, random.choice(tables), other)
    if place == "plan":
        file, mine = run / PLAN, frozenset[str]()
    else:
        folder = random.choice(attempt_folders(run))
        file, mine = folder / random.choice(FILES), frozenset({folder.name})
    kind = random.choices(
        ["cut", "zeros", "flip", "bytes", "content", "value", "forged value", "lines", "swapped", "not a file"],
        [10, 10, 20, 10, 10, 15, 10, 10, 8, 7],
    )[0]
    what = _KINDS[kind](random, file, run, other)
    name = str(file.relative_to(run))
    return Damage(kind, f"{name}: {what}", mine, plan=place == "plan", forged=kind == "forged value")


# --- any file ---------------------------------------------------------------------------------------------------------


def _cut(random: random.Random, file: Path, run: Path, other: Path) -> str:
    content = file.read_bytes()
    at = random.choice(
        [0, 1, len(content) - 1, len(content) - 2, _line_end(random, content), random.randrange(len(content))]
    )
    file.write_bytes(content[:at])
    return f"cut at {at} of {len(content)}"


def _zeros(random: random.Random, file: Path, run: Path, other: Path) -> str:
    content = file.read_bytes()
    at = random.choice([0, _line_end(random, content), random.randrange(len(content))])
    size = random.choice([1, 8, 64, 512, len(content)])
    file.write_bytes(content[:at] + bytes(min(size, len(content) - at)) + content[at + size :])
    return f"{size} zeros at {at}"


def _flip(random: random.Random, file: Path, run: Path, other: Path) -> str:
    content = bytearray(file.read_bytes())
    at, bit = random.randrange(len(content)), random.randrange(8)
    content[at] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {at}"


def _bytes(random: random.Random, file: Path, run: Path, other: Path) -> str:
    content = file.read_bytes()
    at = random.randrange(len(content))
    new = random.choice(
        [b"\xff", b"\xc3", b"\r", b"\n", b"\0", b'"', b"{", b"}", b",", b"9", b"-", b"\\", random.randbytes(16)]
    )
    over = random.choice([0, 1, len(new)])
    file.write_bytes(content[:at] + new + content[at + over :])
    return f"{new!r} instead of {over} bytes at {at}"


def _content(random: random.Random, file: Path, run: Path, other: Path) -> str:
    content = file.read_bytes()
    new = random.choice(
        [*WHOLE, b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), content + content, content[::-1]]
    )
    file.write_bytes(new)
    return f"its content is {new[:20]!r}... of {len(new)} bytes"


def _line_end(random: random.Random, content: bytes) -> int:
    ends = [at for at, byte in enumerate(content) if byte == ord("\n")]
    return max(0, min(len(content) - 1, random.choice(ends or [0]) + random.choice([-1, 0, 1])))


# --- JSON -------------------------------------------------------------------------------------------------------------


class _Raw(str):
    """Text that stands in a JSON document as it is."""


def _dumped(value: Any) -> str:
    if isinstance(value, _Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_dumped(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_dumped, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(inner, (*at, key))


def _changed_line(random: random.Random, line: dict[str, Any]) -> str:
    """The line with another value, without a key, with a key twice or under another name. Its checksum is dropped."""
    line.pop("crc32", None)
    *groups, last = random.choice(list(_places(line)))
    inner: Any = line
    for group in groups:
        inner = inner[group]
    way = random.choice(["value"] * 7 + ["missing", "twice", "name"])
    if way == "value" or not isinstance(inner, dict):
        inner[last] = _Raw(random.choice(ODD))
    elif way == "missing":
        del inner[last]
    elif way == "twice":
        inner[last] = _Raw(f"{_dumped(inner[last])}, {json.dumps(last)}: {random.choice(ODD)}")
    else:
        inner[f"{last}_"] = inner.pop(last)
    return _dumped(line)


def _with_value(random: random.Random, file: Path, forge: bool) -> str:
    lines = file.read_text().splitlines()
    at = random.randrange(len(lines))
    whole = json.loads(lines[at])
    had = whole.get("crc32")
    text = _changed_line(random, whole)
    if had is not None:
        sum = zlib.crc32(text.encode("utf-8", "surrogatepass")) if forge else had
        text = f'{text[:-1]}, "crc32": {sum}}}'
    was, lines[at] = lines[at], text
    file.write_text("\n".join(lines) + "\n")
    start = next((place for place, (a, b) in enumerate(zip(was, text, strict=False)) if a != b), 0)
    if forge:
        _reseal(file)
    return f"line {at + 1}: ...{text[max(0, start - 30) : start + 60]}..."


def _reseal(file: Path) -> None:
    """Give exit.json the checksums of the files beside it, as its writer would have if they had been so."""
    exit = file.with_name("exit.json")
    if file.name == "exit.json" or not exit.is_file():
        return
    content = json.loads(exit.read_bytes())
    if "crc32" not in content:
        return
    content.pop("crc32")
    content["journal_bytes"] = file.with_name("journal.jsonl").stat().st_size
    content["checksums"] = {name: zlib.crc32(file.with_name(name).read_bytes()) for name in FILES[:2]}
    text = json.dumps(content)
    exit.write_text(f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n')


def _value(random: random.Random, file: Path, run: Path, other: Path) -> str:
    return _with_value(random, file, forge=False)


def _forged_value(random: random.Random, file: Path, run: Path, other: Path) -> str:
    return _with_value(random, file, forge=True)


def _lines(random: random.Random, file: Path, run: Path, other: Path) -> str:
    lines = file.read_bytes().splitlines(keepends=True)
    at, to = random.randrange(len(lines)), random.randrange(len(lines))
    way = random.choice(["twice", "moved", "missing", "joined", "empty"])
    if way == "twice":
        lines.insert(to, lines[at])
    elif way == "moved":
        lines.insert(to, lines.pop(at))
    elif way == "missing":
        del lines[at]
    elif way == "joined":
        lines[at] = lines[at].rstrip(b"\n")
    else:
        lines.insert(at, b"\n")
    file.write_bytes(b"".join(lines))
    return f"line {at + 1} {way} ({to + 1})"


def _swapped(random: random.Random, file: Path, run: Path, other: Path) -> str:
    same = [*run.rglob(file.name), *other.rglob(file.name)]
    source = random.choice([path for path in same if path != file] or [file])
    file.write_bytes(source.read_bytes())
    return f"is that of {source.parent}"


def _not_a_file(random: random.Random, file: Path, run: Path, other: Path) -> str:
    ways: dict[str, Callable[[], object]] = {
        "missing": lambda: None,
        "a folder": file.mkdir,
        "a FIFO": lambda: os.mkfifo(file),
        "a link to nothing": lambda: file.symlink_to("nothing"),
        "a link to itself": lambda: file.symlink_to(file.name),
        "a link to a folder": lambda: file.symlink_to(run),
        "a link to zeros without end": lambda: file.symlink_to("/dev/zero"),
        "a link to the terminal": lambda: file.symlink_to("/dev/tty"),
    }
    way = random.choice(list(ways))
    file.unlink()
    ways[way]()
    return way


_KINDS: dict[str, Callable[[random.Random, Path, Path, Path], str]] = {
    "cut": _cut,
    "zeros": _zeros,
    "flip": _flip,
    "bytes": _bytes,
    "content": _content,
    "value": _value,
    "forged value": _forged_value,
    "lines": _lines,
    "swapped": _swapped,
    "not a file": _not_a_file,
}


# --- folders and tables -----------------------------------------------------------------------------------------------


def _of_folder(random: random.Random, run: Path, other: Path) -> Damage:
    mine = attempt_folders(run)
    folder, source = random.choice(mine), random.choice([*mine, *attempt_folders(other)])
    id, device, number = folder.name.split(".")
    way = random.choice(
        ["missing", "a file", "a FIFO", "copied over", "copied as the next", "odd name", "points is a file"]
    )
    if way == "points is a file":
        shutil.rmtree(run / "points")
        (run / "points").write_text("text")
        return Damage("folder", way, frozenset(path.name for path in mine))
    if way in ("missing", "a file", "a FIFO", "copied over"):
        kept = source.with_name("kept")
        if way == "copied over":
            shutil.copytree(source, kept)
        shutil.rmtree(folder)
        if way == "a file":
            folder.write_text("text")
        elif way == "a FIFO":
            os.mkfifo(folder)
        elif way == "copied over":
            shutil.copytree(kept, folder)
            shutil.rmtree(kept)
        return Damage("folder", f"{folder.name} is {way} {source.name}", frozenset({folder.name}))
    name = f"{id}.{device}.{int(number) + 1}"
    if way == "odd name":
        name = random.choice(
            [
                f"{id}.{device}.01",
                f"{id}.{device}.{number} (copy)",
                "text",
                f"{id}.gpu-9.1",
                f"{id}.{device}.x",
                "..1",
                f"{id}.{device}.{'9' * 30}",
            ]
        )
    if name != source.name:
        shutil.copytree(source, folder.with_name(name), dirs_exist_ok=True)
    return Damage("folder", f"{source.name} copied to {name}", frozenset({name, folder.name}))


def _of_table(random: random.Random, file: Path, other: Path) -> Damage:
    of_bytes = ["flip", "flip", "flip", "cut", "zeros", "bytes", "content", "swapped", "not a file"]
    way = random.choice([*of_bytes, "column", "type", "renamed", "other table", "metadata"])
    change = _KINDS.get(way)
    what = _of_columns(random, file, way) if change is None else change(random, file, file.parent, other)
    return Damage("table", f"{file.name}: {way}: {what}")


def _of_columns(random: random.Random, file: Path, way: str) -> str:
    table = pq.read_table(file)
    name = random.choice(table.column_names)
    at = table.column_names.index(name)
    if way == "column":
        table = table.drop_columns([name])
    elif way == "type":
        table = table.set_column(
            at, name, pa.array([None] * len(table), random.choice([pa.bool_(), pa.binary(), pa.float32()]))
        )
    elif way == "renamed":
        table = table.rename_columns([f"{each}_" if each == name else each for each in table.column_names])
    elif way == "metadata":
        kept = dict(table.schema.metadata)
        key = random.choice(list(kept))
        kept[key] = random.choice([b"", b"\xff", b"x", b"-1", b"99999999999999999999"])
        table = table.replace_schema_metadata(kept)
        name = key.decode()
    else:
        source = random.choice([each for each in TABLES if each != file.stem])
        file.write_bytes(file.with_name(f"{source}.parquet").read_bytes())
        return source
    pq.write_table(table, file)
    return name

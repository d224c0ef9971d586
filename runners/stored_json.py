"""JSON in the files of a run, any of which may be damaged: read as a value, or as `Damaged` with the reason.

A disk, a copy or an editor can change any byte, and a changed digit is still valid JSON. Each object that sweeper
writes therefore ends with the CRC-32 of the text before it: `{"code": 0, "crc32": 2841232310}`. An object without one
was written by an earlier version, and is read without this check.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from runners import files

CHECKSUM = "crc32"
LARGEST_BYTES = 2**30  # of a file that is read
# Of a file of an attempt: its journal has a third of it at most (runners.phases has the limits).
LARGEST_OF_AN_ATTEMPT = 2**26
_SEAL = re.compile(rb', "crc32": (\d{1,10})\}\s*\Z')


class Damaged(Exception):
    """A file or a line that is missing, or holds something else than its writer wrote. The message is the reason."""


def content_of(path: Path, largest: int = LARGEST_BYTES) -> bytes:
    """The content of a file. Raises FileNotFoundError, PermissionError, or Damaged for what is no file or too large."""
    try:
        with files.open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            # Not read(largest): that takes as many addresses as it may read, which a limit may not allow.
            content = file.read(size) if size <= largest else None
    except (FileNotFoundError, PermissionError):
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from None
    except (OSError, MemoryError) as error:
        raise Damaged(f"cannot be opened ({why(error)})") from None
    if content is None:
        raise Damaged(f"is larger than {largest} bytes")
    return content


def parsed(text: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises Damaged.

    Keys that occur twice, NaN and infinite numbers are damage too: no writer leaves them.
    """
    return _decoded(text, _STRICT)


def parsed_lines(lines: Sequence[bytes]) -> list[Any]:
    """The values of several lines at once, in two thirds of the time, without the check for keys that occur twice."""
    found: list[Any] = _decoded(b"[" + b",".join(lines) + b"]", _FAST)
    return found


def _decoded(text: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text.decode())
    except RecursionError:
        raise Damaged("is nested too deeply") from None
    except (ValueError, MemoryError) as error:
        raise Damaged(f"is not valid JSON ({why(error)})") from None


def printable(value: Any, text: bytes) -> Any:
    """The value of a JSON text with ? for halves of surrogate pairs, which neither tables nor terminals can show."""
    if b"\\ud" not in text:
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def sealed(value: Mapping[str, Any]) -> bytes:
    """The line of a JSON object that is not empty, with its checksum. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, allow_nan=False)
    return f'{text[:-1]}, "{CHECKSUM}": {checksum(text.encode())}}}\n'.encode()


def is_sealed(text: bytes) -> bool:
    """Whether an object's text ends with its checksum. Raises Damaged if it is that of another text."""
    found = _SEAL.search(text)
    if found is None:
        return False
    if checksum(text[: found.start()] + b"}") != int(found[1]):
        raise Damaged("does not match its checksum")
    return True


def unsealed(text: bytes) -> dict[str, Any]:
    """The object in a text, without its checksum. Raises Damaged, also if the checksum is that of another text."""
    has_seal = is_sealed(text)
    value = _decoded(text, _FAST if has_seal else _STRICT)  # a sealed text is what `sealed` has written
    if not isinstance(value, dict):
        raise Damaged("is not a JSON object")
    if value.pop(CHECKSUM, None) is not None and not has_seal:
        raise Damaged("was written by another program: its checksum is not at the end")
    return value


def checksum(content: bytes) -> int:
    return zlib.crc32(content)


def why(error: Exception) -> str:
    """The reason for which a value cannot be read, in words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error) or type(error).__name__


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text[:20])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


_FAST = json.JSONDecoder(parse_constant=_refuse)
_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique)

"""Parses overrides in Hydra's grammar."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Quote, QuotedString, RangeSweep, ValueType
from hydra.errors import OverrideParseException

from sweeper.errors import Mistake
from sweeper.interval import Interval
from sweeper.planning.composer import ENV, PARAMS
from sweeper.planning.schema import LIST_KEYS, RUN_KEYS, as_list, is_run_key
from sweeper.planning.suggestions import ROOTS, assign, devices, no_such_key
from sweeper.planning.typed_numbers import WHOLE, in_units, whole_numbers
from sweeper.planning.typed_numbers import check as check_numbers

MOST_POINTS = 1_000_000  # that a sweep lists: each is composed, checked and kept before the first one starts
MAXIMUM_EXACT = 2**53  # of the whole numbers that a float represents exactly


@dataclass(slots=True)
class Typed:
    """The parsed overrides: each key once, with one value or with several."""

    fixed: dict[str, Any] = field(default_factory=dict)
    several: dict[str, Sequence[Any]] = field(default_factory=dict)  # in the order typed
    added: set[str] = field(default_factory=set)  # typed with +

    @property
    def values(self) -> dict[str, Sequence[Any]]:
        """The values of each key; none of an interval."""
        found: dict[str, Sequence[Any]] = {key: (value,) for key, value in self.fixed.items()}
        return found | {key: () if isinstance(each, Interval) else tuple(each) for key, each in self.several.items()}


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> Typed:
    """Raises Mistake for an override that cannot be parsed, and for a key that is given twice."""
    found = Typed()
    parser = OverridesParser.create(config_loader=loader)
    for word in overrides:
        _refuse_bytes(word)
        override = _read(parser, word)
        key, text = override.key_or_group, word.partition("=")[2]
        if not key:
            raise Mistake(f"{word}: a key is missing; write key=value")
        if key.partition(".")[0] not in ROOTS:
            raise Mistake(no_such_key(key, text))
        if override.package is not None:
            raise Mistake(f"{override.input_line}: a group cannot be put elsewhere; write {key}=OPTION")
        if override.is_delete():
            raise Mistake(f"{override.input_line}: a key cannot be removed; give it a value, or null")
        if key in found.fixed or key in found.several:
            both = "give it once" if key in RUN_KEYS and key not in LIST_KEYS else f"write {key}=A,B to try both"
            raise Mistake(f"{key} is given twice: {both}")
        if override.is_add() or override.is_force_add():
            found.added.add(key)
        if is_run_key(key):
            found.fixed[key] = _run_key(override)
        elif override.is_sweep_override():
            found.several[key] = _several(override)
        else:
            found.fixed[key] = _one(override)
        values = found.several[key] if key in found.several else (found.fixed[key],)
        if not isinstance(values, Interval):
            check_numbers(key, text, values)
    return found


def _refuse_bytes(override: str) -> None:
    """Raises Mistake for bytes that are no text. An environment variable may have any."""
    if not override.lstrip("+").startswith(ENV) and any(0xDC80 <= ord(letter) <= 0xDCFF for letter in override):
        encoding = sys.getfilesystemencoding()
        cure = "write it in UTF-8" if encoding == "utf-8" else "set LC_ALL=C.UTF-8"
        raise Mistake(f"{override}: is not text in this locale's encoding, {encoding}; {cure}")


def _as_letters(override: str) -> str:
    """Quote each word with a letter beyond ASCII, such as text=é: Hydra's grammar takes those in quotes only."""
    key, equals, value = override.partition("=")
    if value.isascii():
        return override
    quoted_or_word = r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|[^\[\]{}(),:'"\s][^\[\]{}(),:'"]*"""

    def quote(found: re.Match[str]) -> str:
        if found[1] or found[0].isascii():
            return found[0]
        return str(QuotedString(found[0].rstrip(), Quote.single).with_quotes())

    return key + equals + re.sub(quoted_or_word, quote, value)


def _read(parser: OverridesParser, word: str) -> Override:
    """Raises Mistake."""
    key, equals, value = word.partition("=")
    try:
        return parser.parse_overrides([_quoted(_as_words(_as_letters(f"{key}{equals}{in_units(key, value)}")))])[0]
    except OverrideParseException:
        raise Mistake(f"cannot read {word!r}: {_readable(key, equals, value)}") from None


def _readable(key: str, equals: str, value: str) -> str:
    """What to write instead of an override that Hydra's grammar does not have."""
    if not equals:
        return "write key=value, or key=value,value to try several"
    words = re.split(r"[;&\s]+(?=[A-Za-z][\w.]*=)", f"{key}={value}")
    if len(words) > 1 and all("=" in each for each in words):
        return f"write {' '.join(words)}"
    name = re.sub(r"^[^A-Za-z+]+|[^\w.]+$", "", key)
    if name in ROOTS and name != key:  # {batch=1}, batch>=1
        return f"write {assign(name, re.sub('[^0-9A-Za-z]+$', '', value))}"
    right = whole_numbers(key, value) if key in WHOLE else None
    if key == "devices" and (near := devices(value, ())):
        right = f"devices={near[0]}"
    trimmed = re.sub(",+", ",", value).strip("=, ")
    for opens, closes in ("[]", "{}", "()"):
        missing = value.count(opens) - value.count(closes)
        if missing > 0:
            right = right or f"'{key}={value}{closes * missing}'"
    if right is None and trimmed and trimmed != value and re.fullmatch(r"[\w.,:+-]+", trimmed):
        right = f"{key}={trimmed}"
    if right is None and key in WHOLE:
        return f"must be a whole number, several of them as in {key}=1,2,4"
    if right is None:
        quoted = value.replace('"', '\\"')
        right = f"""'{key}="{quoted}"' for a value with special characters, {key}=A,B to try several"""
    return f"write {right}"


def _as_words(override: str) -> str:
    """Quote each word of workload.argv, and each value of an environment variable, that has no quotes.

    The shell removes the quotes of '{batch}', which Hydra then cannot parse, and Hydra would turn `1`, `007` or `1e3`
    into something other than the same text.
    """
    key, equals, value = override.partition("=")
    is_variable = key.lstrip("+").startswith(ENV) and re.match(r"\w+\(", value) is None
    if not is_variable and (key.lstrip("+") != "workload.argv" or "[" not in value):
        return override
    quoted_or_word = r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|([^\[\],'"\s][^\[\],'"]*)"""

    def quote(found: re.Match[str]) -> str:
        if found[1] or (is_variable and found[0] == "null"):
            return found[0]
        return str(QuotedString(found[2].rstrip(), Quote.single).with_quotes())

    return key + equals + re.sub(quoted_or_word, quote, value)


def _quoted(override: str) -> str:
    """Quote an objective: Hydra's grammar allows the signs of batch^2*context only in quotes."""
    product = re.fullmatch(r"objective=([\w.^* ]+)", override)
    return f'objective="{product[1]}"' if product else override


def _one(override: Override) -> Any:
    value = _plain(override.value())
    if value == "" and not override.key_or_group.startswith((PARAMS, ENV)):
        raise Mistake(f"{override.input_line}: a value is missing")
    return value


def _run_key(override: Override) -> Any:
    """The value of a run key, in which a comma makes a list."""
    key = override.key_or_group
    if not override.is_sweep_override():
        return _one(override)
    values = [each for value in _several(override) for each in as_list(value)]
    if key not in LIST_KEYS:
        raise Mistake(f"{override.input_line}: {key} takes one value; it is a key of the run and cannot be swept")
    return values


def _several(override: Override) -> Sequence[Any]:
    line, key = override.input_line, override.key_or_group
    swept = override.value()
    if isinstance(swept, IntervalSweep):
        return _interval(str(line), key, swept)
    if isinstance(swept, RangeSweep):
        if not all(isinstance(each, int) for each in (swept.start, swept.stop, swept.step)):
            raise Mistake(f"{line}: a range counts in whole numbers; list the others, as in {key}=0.1,0.2")
        if swept.step == 0:
            raise Mistake(f"{line}: a range with step 0 has no end")
        _check_length(str(line), key, swept)
    values = tuple(_plain(value) for value in override.sweep_iterator())
    if not values:
        matched = "matches nothing" if override.value_type == ValueType.GLOB_CHOICE_SWEEP else "is empty"
        raise Mistake(f"{line}: {matched}, so there is nothing to try")
    if "" in values and not key.startswith((PARAMS, ENV)):
        raise Mistake(f"{line}: a value is missing")
    return values


def _check_length(line: str, key: str, swept: RangeSweep) -> None:
    """Raises Mistake for a range of too many values, before they are listed."""
    start, stop, step = (int(each or 0) for each in (swept.start, swept.stop, swept.step))
    count = -((start - stop) // step)
    if count > MOST_POINTS:
        low, high = sorted((start, start + (count - 1) * step))
        cure = f"design=frontier '{key}=interval({low},{high})' searches them"
        raise Mistake(f"{line}: has {count:,} values, and a sweep lists up to {MOST_POINTS:,}; {cure}")


def _interval(line: str, key: str, swept: IntervalSweep) -> Interval:
    """Hydra parses both ends as floats, and accepts inf."""
    ends = [end for end in (swept.start, swept.end) if end is not None and math.isfinite(end)]
    if len(ends) < 2 or any(end != int(end) or abs(end) > MAXIMUM_EXACT for end in ends):
        raise Mistake(f"{line}: an interval has two whole numbers, as in '{key}=interval(1,512)'")
    low, high = (int(end) for end in ends)
    if low > high:
        raise Mistake(f"{line}: give the smaller one first, as in '{key}=interval({high},{low})'")
    return Interval(low, high)


def _plain(value: Any) -> Any:
    """The value without Hydra's own classes."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, IntervalSweep):
        raise Mistake("an interval cannot be combined with other values; write design=frontier 'batch=interval(1,512)'")
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    return value

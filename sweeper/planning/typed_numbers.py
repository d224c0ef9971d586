"""Numbers as people type them. Units that have one meaning are taken; for other forms, what to type instead.

`context=4k` is 4096 tokens: a k of tokens is 1024, as in the names of models and in their configurations (`128k` is
131072). A k of anything else has two meanings, and is not taken. `timeout=5m` is 300 seconds.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from sweeper.errors import Mistake, either
from sweeper.planning import synonyms

TOKENS = ("context", "workload.new_tokens", "workload.prefill_chunk", "workload.evaluation.context")
EXAMPLES = {"timeout": "300, 90s, 5m or 1h", "heartbeat": "0.2 or 200ms"}
SECONDS = tuple(EXAMPLES)
WHOLE = (
    *TOKENS, "batch", "warmup", "repeats", "seed", "stop_after_same_error", "repeat_points", "workload.prompt_lengths",
    "workload.rank", "workload.alpha", "workload.accumulate", "workload.evaluation.batch",
)  # fmt: skip
# The ends of an example interval, for keys that can be searched.
SEARCHED = {"batch": (1, 512), **dict.fromkeys(TOKENS, (512, 32768))}
PER_UNIT = {
    name: Decimal(seconds) for name, seconds in (("ms", "0.001"), ("s", 1), ("min", 60), ("m", 60), ("h", 3600))
}
LONG_UNITS = {"second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "hr": "h", "millisecond": "ms"}
MOST_VALUES = 8  # of a list in a message
LARGEST = 2**40

_NUMBER_OF_TOKENS = re.compile(r"(?<![\w.+-])([0-9]+)k(?![\w.])", re.IGNORECASE)
_DURATION = re.compile(r"(?<![\w.+-])([0-9]+(?:\.[0-9]+)?)(ms|s|min|m|h)(?![\w.])")
_RANGE = re.compile(r"(\S+?)\s*(?:\.{2,3}=?|:|-|\bto\b)\s*(\S+?)(?:\s*(?:\.{2,3}|:|\bstep\b|\bby\b)\s*(\S+))?")
_SEPARATORS = re.compile(r"[,;|/+\s]+")


def in_units(key: str, text: str) -> str:
    """The typed value of a key with `4k` as 4096 where it counts tokens, and `5m` as 300 where it is in seconds."""
    key = key.lstrip("+").removeprefix("resolution.")
    if "${" in text:
        return text
    if key in TOKENS:
        return _NUMBER_OF_TOKENS.sub(lambda found: str(1024 * int(found[1])), text)
    if key in SECONDS:
        return _DURATION.sub(lambda found: _seconds(Decimal(found[1]) * PER_UNIT[found[2]]), text)
    return text


def value_in_units(key: str, value: Any) -> Any:
    """The same for a value of a file, which becomes a number if it has such a unit."""
    if not isinstance(value, str) or (text := in_units(key, value)) == value:
        return value
    number = re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)
    return value if number is None else float(text) if number[1] else int(text)


def check(key: str, text: str, values: Any) -> None:
    """Raise Mistake for a key whose values are not numbers, though they must be. `text`: the value as it was typed."""
    if key in WHOLE:
        if zero := re.search(r"(?<![\w.])0[0-9]+", text):  # the end of 4,096
            joined = re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", text) is not None
            right = text.replace(",", "") if joined else re.sub(r"(?<![\w.])0+(?=[0-9])", "", text)
            what = "a comma separates values" if "," in text else f"{zero[0]} begins with 0"
            raise Mistake(f"{key}={text}: {what}; write {key}={right}")
        if not all(map(_is_whole, values)):
            raise Mistake(not_whole(key, text))
    elif key in SECONDS and not all(map(_is_number, values)):
        instead = seconds(key, text)
        right = f"; write {instead}" if instead else f", as in {EXAMPLES[key]}"
        raise Mistake(f"{key}={text}: must be a number of seconds{right}")


def _is_whole(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value or re.fullmatch(r"[+-]?[0-9]+", value) is not None
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value or re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", value) is not None
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def not_whole(key: str, text: str, now: str = "") -> str:
    """The message for a value of a key that must be a whole number. `now`: what its value is, for the message."""
    instead = whole_numbers(key, text)
    return f"{key}={text}: must be a whole number{now}" + (f"; write {instead}" if instead else "")


def whole_numbers(key: str, text: str) -> str | None:
    """What to type for whole numbers that were typed in another form, such as `batch=1,2` for `(1,2)`."""
    text = re.sub(r",\s*\.{2,3}\s*,", "..", text.strip().strip("'\"").strip())
    called = re.fullmatch(r"(\w*)\s*[(\s].*|(\w+)\(.*", text)
    function = (called[1] or called[2]) if called and re.match(r"[A-Za-z]+\w*\s*[( ]", text) else None
    if function is not None and re.match("[0-9]", function) is None:
        return _of_function(key, function.lower(), text)
    if text.lower() in ("max", "auto", "largest", "inf", "biggest", "maximum", "all", "*"):
        low, high = SEARCHED.get(key, (0, 0))
        found = f"design=frontier '{key}=interval({low},{high})', which searches for the largest that fits"
        return found if low else None
    if ends := _RANGE.fullmatch(text):
        first, last, step = (each and _whole(key, each) for each in ends.groups())
        if (
            isinstance(first, int)
            and isinstance(last, int)
            and first < last
            and (step is None or isinstance(step, int))
        ):
            return _of_range(key, first, last, step)
    inner = text[1:-1] if text[:1] + text[-1:] in ("[]", "()", "{}") else text
    items = [each for each in _SEPARATORS.split(inner.strip()) if each]
    if len(items) == 1 and key not in TOKENS and (of_k := re.fullmatch(r"([0-9]+)k", items[0], re.IGNORECASE)):
        thousands = int(of_k[1])
        return f"{key}={thousands * 1000} or {key}={thousands * 1024}"
    numbers = [number for each in items for number in _numbers(key, each)]
    return f"{key}={','.join(map(str, numbers))}" if numbers and None not in numbers else None


def _numbers(key: str, item: str) -> list[int | None]:
    """The numbers of one item of a list: of `2..8` those that double, of anything else the number, or None."""
    if (ends := _RANGE.fullmatch(item)) and ends[3] is None:
        first, last = _whole(key, ends[1]), _whole(key, ends[2])
        if first is not None and last is not None and first < last:
            return list(_doubled(first, last))
    return [_whole(key, item)]


def _whole(key: str, text: str) -> int | None:
    """One number: `2^12`, `1e3`, `4.0`, `1_000`, `1.5k` of tokens."""
    text = text.lower().replace("_", "")
    if found := re.fullmatch(r"([0-9]{1,4})(?:\^|\*\*)([0-9]{1,2})", text):
        number = Decimal(int(found[1]) ** int(found[2]))
    elif found := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(k|ki|m|mi)", text):
        if key not in TOKENS and found[2] in ("k", "m"):
            return None
        number = Decimal(found[1]) * (1024 if found[2].startswith("k") else 2**20)
    elif found := re.fullmatch(r"(-?[0-9]+(?:\.[0-9]*)?(?:e\+?[0-9]{1,2})?)(?:tokens?|x)?", text):
        number = Decimal(found[1])
    else:
        return None
    return int(number) if number == number.to_integral_value() and abs(number) <= LARGEST else None


def _of_range(key: str, first: int, last: int, step: int | None) -> str:
    """A list, a range and, where the key can be searched, an interval."""
    every = f"'{key}=range({first},{last + 1}{f',{step}' if step else ''})'"
    if step:
        return every
    listed = list(range(first, last + 1)) if last - first < 4 else _doubled(first, last)
    ways = [f"{key}={','.join(map(str, listed))}"] if 1 < len(listed) <= MOST_VALUES else []
    ways.append(f"{every} for every number")
    if key in SEARCHED:
        ways.append(f"design=frontier '{key}=interval({first},{last})' to search")
    return either(ways)


def _doubled(first: int, last: int) -> list[int]:
    found = [first]
    while first > 0 and found[-1] * 2 <= last:
        found.append(found[-1] * 2)
    return found if found[-1] == last or first < 1 else [*found, last]


def _of_function(key: str, function: str, text: str) -> str | None:
    """`range(1-8)`, `interval 1 8`, `linspace(1,8)`"""
    numbers = [number for each in re.findall(r"[0-9][\w.]*", text) if (number := _whole(key, each)) is not None]
    if not numbers:
        return None
    alone = (1, numbers[0]) if numbers[0] > 1 else SEARCHED.get(key, (1, 8))
    first, last = (numbers[0], numbers[1]) if len(numbers) > 1 else alone
    if first > last:
        first, last = last, first
    if function == "interval":
        return f"design=frontier '{key}=interval({first},{max(last, *numbers)})'"
    if function == "range":
        return f"'{key}=range({','.join(map(str, numbers if len(numbers) < 4 else numbers[:3]))})'"
    if function in ("choice", "list", "values", "choices"):
        return f"{key}={','.join(map(str, numbers))}"
    return _of_range(key, first, last, None)


def seconds(key: str, text: str) -> str | None:
    """What to type for seconds that were typed in another form, such as `timeout=5400` for `1h30m`."""
    if in_units(key, text) != text:
        return f"{key}={in_units(key, text)}"
    known = synonyms.VALUES.get(key, {}).get(text.lower())
    compound = re.fullmatch(r"(?:([0-9]+)h)?\s*(?:([0-9]+)m(?:in)?)?\s*(?:([0-9]+)s)?", text, re.IGNORECASE)
    clock = re.fullmatch(r"(?:([0-9]{1,2}):)?([0-9]{1,2}):([0-9]{2})", text)
    long = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+?)s?\.?", text, re.IGNORECASE)
    if known is None and (found := compound or clock) and any(found.groups()):
        hours, minutes, rest = (int(each or 0) for each in found.groups())
        known = str(3600 * hours + 60 * minutes + rest)
    elif known is None and long and (unit := LONG_UNITS.get(long[2].lower(), long[2].lower())) in PER_UNIT:
        known = _seconds(Decimal(long[1]) * PER_UNIT[unit])
    return f"{key}={known}" if known else None


def _seconds(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

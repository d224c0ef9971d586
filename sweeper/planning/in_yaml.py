"""The advice of a message in the form of a file: `write batch: 4` for `write batch=4`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweeper.cards import CONF
from sweeper.planning.schema import LIST_KEYS, Keys

GROUPS = tuple(sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra"))
ROOTS = tuple(Keys.__dataclass_fields__)
# `'batch=range(1,5)'` or `batch=1,2`, without the comma of the sentence.
_WORD = r"(?:'[A-Za-z_][\w.]*=[^']*'|(?<![\w.'-])[A-Za-z_][\w.]*=[^\s;']*[^\s;',.)])"
_LINE = re.compile(rf"(?<!sweeper )(?<!estimate ){_WORD}(?: {_WORD})*")
_ADVICE = re.compile(r"\b(?:write|as in) ")
_PLAIN = re.compile(r"[A-Za-z_./][\w./+:-]*|-?[0-9][\w.+-]*")


def in_yaml(message: str) -> str:
    """The message with each line of a command as keys of a file, from its first `write` or `as in` on."""
    advice = _ADVICE.search(message)
    if advice is None:
        return message
    return message[: advice.end()] + _LINE.sub(lambda found: keys(found[0]), message[advice.end() :])


def keys(line: str) -> str:
    """`defaults: [override /workload: train] and workload: {lr: 0.1}` of `workload=train workload.lr=0.1`."""
    pairs = [word.strip("'").partition("=")[::2] for word in re.findall(_WORD, line)]
    if any(key.partition(".")[0] not in ROOTS for key, _ in pairs):
        return line
    options = [(key, value) for key, value in pairs if key in GROUPS and not _several(key, value)]
    swept = [(key, _list(value)) for key, value in pairs if _several(key, value)]
    found = [f"defaults: [{', '.join(f'override /{group}: {_value(option)}' for group, option in options)}]"]
    found = found if options else []
    inner: dict[str, list[str]] = {}
    for key, value in pairs:
        root, _, rest = key.partition(".")
        if (key, value) in options or _several(key, value):
            continue
        if rest:
            *above, last = rest.split(".")
            opens = "".join(f"{each}: {{" for each in above)
            inner.setdefault(root, []).append(f"{opens}{last}: {_value(value)}{'}' * len(above)}")
        else:
            found.append(f"{key}: {_list(value) if key in LIST_KEYS and ',' in value else _value(value)}")
    found += [f"{root}: {{{', '.join(each)}}}" for root, each in inner.items()]
    if swept:
        found.append(f"grid: {{{', '.join(f'{key}: {values}' for key, values in swept)}}}")
    return " and ".join(found)


def _several(key: str, value: str) -> bool:
    if key in LIST_KEYS or key == "workload.argv":
        return False
    return re.match(r"(range|interval|choice|glob)\(", value) is not None or len(_items(value)) > 1


def _items(value: str) -> Sequence[str]:
    inner = value[1:-1] if value[:1] + value[-1:] == "[]" else value
    return [each.strip() for each in inner.split(",")] if not re.search(r"[({\[\"']", inner) else [value]


def _list(value: str) -> str:
    return f"'{value}'" if "(" in value else f"[{', '.join(map(_value, _items(value)))}]"


def _value(value: str) -> str:
    if value[:1] + value[-1:] == "[]":
        return f"[{', '.join(map(_value, _items(value)))}]" if len(_items(value)) > 1 else value
    return value if _PLAIN.fullmatch(value) else "'" + value.strip("\"'").replace("'", "''") + "'"

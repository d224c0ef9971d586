"""Write docs/keys.md from conf/ and sweeper/planning/schema.py, where every key has its default and its comment.

python docs/write_keys.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from sweeper.planning import schema
from sweeper.planning.point_checks import DTYPES

PAGE = Path(__file__).with_name("keys.md")
CONF = Path(__file__).resolve().parents[1] / "conf"
TYPES = {each.name: str(each.type).removesuffix(" | None") for each in fields(schema.Keys)}
CHOICES: dict[str, tuple[Any, ...]] = {**schema.CHOICES, "dtype": DTYPES}
NO_KEYS = ("defaults", *schema.WORKLOAD_RULES)
# `warmup` and `repeats` have no line in conf/config.yaml, because each workload sets them.
OF_THE_WORKLOAD = {
    "warmup": "passes between the first one and the measured repeats",
    "repeats": "measured passes after the warm-up",
}


@dataclass(frozen=True)
class Key:
    name: str  # dotted
    default: str  # as it stands in the file
    meaning: str

    @property
    def shown(self) -> str:
        return {"???": "required", "": "the workload's"}.get(self.default) or f"`{self.default}`"


def keys_of(file: Path, under: tuple[str, ...] = ()) -> Iterator[Key]:
    """Each key of a file with its default and its comment, from the mapping `under` these keys on."""
    text = file.read_text()
    node = yaml.compose(text)
    for name in under:
        node = next(value for key, value in node.value if key.value == name)
    yield from _keys(node, text.splitlines(), ".".join(under))


def _keys(node: Any, lines: list[str], prefix: str) -> Iterator[Key]:
    for key, value in node.value:
        if key.value in NO_KEYS:
            continue
        name = f"{prefix}.{key.value}" if prefix else key.value
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _keys(value, lines, name)
            continue
        line = key.start_mark.line
        written = lines[line][value.start_mark.column : value.end_mark.column]
        yield Key(name, written, _comment(lines, line, value.end_mark.column))


def _comment(lines: list[str], line: int, column: int) -> str:
    """The comment after a value, with the indented comments below that continue it."""
    parts = [lines[line][column:].strip().removeprefix("#").strip()]
    for below in lines[line + 1 :]:
        if not re.match(r"#  +\S", below):
            break
        parts.append(below.lstrip("# "))
    return " ".join(parts)


def about(file: Path) -> str:
    """The comment at the beginning of a file."""
    lines = []
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def files(group: str) -> list[Path]:
    return sorted((CONF / group).glob("*.yaml"))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _escaped(cell: str) -> str:
    """A cell in which Markdown finds no mark-up outside of code."""
    parts = re.split(r"(`[^`]*`)", cell.replace("|", "\\|"))
    return "".join(each if each.startswith("`") else each.replace("*", "\\*").replace("<", "&lt;") for each in parts)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def words(values: Any) -> str:
    """Values as they are typed."""
    return ", ".join(code(yaml.safe_dump(value).removesuffix("\n...\n").strip()) for value in values)


def general(names: tuple[str, ...], known: Mapping[str, Key]) -> str:
    rows = []
    for name in names:
        for key in [each for each in known.values() if each.name.partition(".")[0] == name]:
            kind = TYPES.get(key.name, "")
            limit = f"at least {schema.MINIMUM[name]}" if name in schema.MINIMUM else ""
            values = words(CHOICES[name]) if name in CHOICES else "`true`, `false`" if kind == "bool" else limit
            rows.append((code(key.name), key.shown, values, key.meaning))
    return table(("key", "default", "values", "meaning"), rows)


def of_workload(file: Path) -> str:
    declared = yaml.safe_load(file.read_text())
    rules = declared["workload"]
    rows = []
    for key in keys_of(file, ("workload",)):
        if key.name == "workload.name":
            continue
        short = key.name.removeprefix("workload.")
        values = words(rules.get("choices", {}).get(short, ()))
        if short in rules.get("at_least", {}):
            values = f"at least {rules['at_least'][short]}"
        if short in rules.get("divides", {}):
            values += f", divides `{rules['divides'][short]}`"
        only = "".join(f" (only with `workload.{k}={v}`)" for k, v in rules.get("only_with", {}).get(short, {}).items())
        rows.append((code(key.name), key.shown, values, key.meaning + only))
    return "\n\n".join(
        [
            f"### workload={file.stem}",
            about(file),
            f"`warmup={declared['warmup']}` and `repeats={declared['repeats']}` by default."
            f" Keys that it uses, and that can be swept: {words(rules['uses'])}.",
            table(("key", "default", "values", "meaning"), rows),
        ]
    )


def of_inputs(file: Path) -> str:
    rows = [(code(f"inputs.{key.name}"), key.shown, key.meaning) for key in keys_of(file) if key.name != "name"]
    return "\n\n".join([f"### inputs={file.stem}", about(file), table(("key", "default", "meaning"), rows)])


def options(group: str) -> str:
    return table((f"{group}=", "what it is"), [(code(file.stem), about(file)) for file in files(group)])


def cards() -> str:
    rows = []
    for file in files("card"):
        card = yaml.safe_load(file.read_text())
        sizes = [card["total_bytes"] / 2**30, card["context_bytes"] / 2**30]
        bandwidth = card["bandwidth_bytes_per_s"] / 10**9
        rows.append((code(file.stem), card["architecture"], *(f"{size:.2f}" for size in sizes), f"{bandwidth:,.0f}"))
    return table(("card", "architecture", "total, GiB", "context, GiB", "bandwidth, GB/s"), rows)


def page() -> str:
    known = {key.name: key for key in keys_of(CONF / "config.yaml")}
    known |= {name: Key(name, "", meaning) for name, meaning in OF_THE_WORKLOAD.items()}
    of_points = tuple(name for name in schema.POINT_KEYS if name not in ("model", "workload", "inputs"))
    parts = [
        "# Keys",
        "Generated by `python docs/write_keys.py` from `conf/` and `sweeper/planning/schema.py`, where each key is"
        " declared. `python -m sweeper --cfg job` shows the keys of a command line with their values. [The command"
        " line](command-line.md) has the syntax and the units. A meaning begins with that of the default; other"
        " values follow with their names.",
        "## Keys of a point",
        "A key with several values is a dimension of the sweep. The values of these keys, and those of the model, the"
        " inputs and the workload, identify a point.",
        general(of_points, known),
        "## Keys of the run",
        "They say how and where the sweep runs. They cannot be swept: a comma makes a list.",
        general(schema.RUN_KEYS, known),
        "## Keys of an experiment file",
        "[Experiments](workloads.md#experiments) has an example.",
        table(
            ("key", "meaning"),
            [
                ("`grid`", "each key with the list of its values: every combination is a point"),
                ("`points`", "a list of points, each with the keys that it sets; for `design=list`"),
            ],
        ),
        "## Workloads",
        *(of_workload(file) for file in files("workload")),
        "## Inputs",
        *(of_inputs(file) for file in files("inputs")),
        "## Designs",
        options("design"),
        "## Experiments",
        options("experiment"),
        "## Models",
        "Every key of a model's file can be changed: `model.config.num_hidden_layers=2,4`.",
        options("model"),
        "## Cards",
        "For `devices=[sim:NAME]`, `budget=card:NAME` and `estimate card=NAME`. The files in `conf/card` have"
        " the source of each figure.",
        cards(),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

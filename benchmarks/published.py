"""Compare calculated peaks with peaks that others measured on GPUs and published.

    python benchmarks/published.py [benchmarks/published/peaks.csv] [--only TEXT] [--as-installed] [--processes 2]

Each row is calculated with sweeper's own workloads on a card of its kind, under the rules of older_versions.py for its
library versions, and compared by its own counter: max_allocated, max_reserved or nvidia_smi. No number is fitted.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import re
import statistics
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import older_versions  # noqa: E402 (both paths serve a checkout that is not installed)

from runners.device import Card, Device  # noqa: E402
from runners.point import Attempt, Point, canonical  # noqa: E402
from runners.simulation.card_memory import memory_of  # noqa: E402
from runners.simulation.replay import replay  # noqa: E402
from runners.simulation.torch_replaced import replaced  # noqa: E402
from runners.simulation.trace import EVENT, AllocationTrace, trace_workload  # noqa: E402

MIB = 2**20
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
UNITS = {"bytes": 1, "MB": 10**6, "GB": 10**9, "MiB": MIB, "GiB": 2**30}  # unless the notes give the unit
COUNTERS = {"max_allocated": "allocated", "max_reserved": "reserved", "nvidia_smi": "used"}
# The card that stands for a GPU: the same architecture and memory where that GPU has no file.
CARDS = {
    "A100-SXM4-40GB": "a100-40gb",
    "A100": "a100-80gb",
    "rtx3080ti-16GB": "rtx-a4000",  # a laptop GPU: sm_86 with 16 GB, like the A4000
}
# The card's nominal memory. NVML's first interface counts the memory that the driver reserves as used: `used` of
# nvmlMemory_t is total less free, by its documentation. nvidia-smi leaves the driver's memory out.
NOMINAL = {"a100-80gb": 81920 * MIB, "a100-40gb": 40960 * MIB}

TARGETS = {  # relative error of rows of high confidence: median and 90th percentile
    ("train", "max_allocated"): (0.01, 0.04),
    ("forward", "max_allocated"): (0.02, 0.04),
    ("generate", "max_allocated"): (0.02, 0.04),
    ("any", "max_reserved"): (0.08, 0.20),
}
SLOPE = 0.02


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One published peak."""

    columns: Mapping[str, str]

    def __getitem__(self, column: str) -> str:
        return self.columns[column] or ""

    @property
    def id(self) -> str:
        return self["id"]

    @property
    def unit_bytes(self) -> int:
        found = re.match(r"unit_bytes=(\d+)", self["notes"])
        return int(found[1]) if found else UNITS[self["unit_as_printed"]]

    @property
    def bytes(self) -> float:
        return float(self["value_bytes_or_as_printed"]) * self.unit_bytes

    @property
    def counter(self) -> str:
        return self["counter"]

    @property
    def kind(self) -> str:
        """The workload in the report: full training and training of adapters are one."""
        return "train" if self["workload"].startswith("train") else self["workload"]

    @property
    def grows(self) -> bool:
        """Whether the cache grows by concatenation."""
        return self["workload"] == "generate" and "static" not in self["attention"]

    def version(self, library: str) -> tuple[int, ...] | None:
        found = re.search(rf"{library} (\d+(?:\.\d+)*)", self["versions"])
        return tuple(map(int, found[1].split("."))) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The calculation for a row, and which of its phases count."""

    values: Mapping[str, Any]
    card: str
    rules: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()  # parts of the names of phases that count; empty for all
    steps: int | None = None  # passes of the decode to extend the trace to
    at_end: bool = False  # whether nvidia_smi is read after the phase

    @property
    def key(self) -> str:
        """Identifies the calculation: rows that differ in their counter only share it."""
        return canonical([self.values, self.card, self.rules, self.phases, self.steps])


class NotCalculated(Exception):
    """A row that no workload of sweeper stands for."""


def cases(row: Row) -> list[Case]:
    """The calculations for a row, of which the largest counts. Raises NotCalculated."""
    workload, kind = row["workload"], row["workload"].partition("_")[0]
    card = next((card for gpu, card in CARDS.items() if row["gpu"].startswith(gpu)), "a100-80gb")
    if workload == "op_fwd_bwd":
        return [_operator(row, card)]
    model = model_named(row["model"])
    if "lit_gpt" in model:
        return [_lit_gpt(row, card, model["lit_gpt"])]
    if workload == "weights_only":
        return [Case(values=values_of(row, model, "forward", batch=1, context=8), card=card, phases=("model_load",))]
    rules = tuple(
        rule.__name__ for rule in older_versions.rules_of(row.columns, model["model_type"], row.version("transformers"))
    )
    if kind == "train":
        return [_training(row, card, model, rules)]
    if kind == "forward":
        values = values_of(row, model, "forward")
        return [Case(values=values, card=card, rules=rules, phases=("cold_forward",), at_end=_by_nvml(row))]
    if kind == "generate":
        return _generation(row, card, model, rules)
    raise NotCalculated(f"no workload for {workload}")


def _training(row: Row, card: str, model: Mapping[str, Any], rules: tuple[str, ...]) -> Case:
    lora = row["workload"] == "train_lora"
    options: dict[str, Any] = {"checkpointing": row["checkpointing"] == "yes"}
    if lora:
        options |= {"method": "lora", "rank": int(row["lora_rank"]), "targets": row["lora_targets"].split()}
    phases: tuple[str, ...] = ()
    if row["optimizer"].startswith("none"):
        options["optimizer"], phases = "sgd", ("forward", "loss", "backward")
    elif "foreach" in row["optimizer"]:
        options["optimizer"] = "adamw-foreach"
    if "logits.sum()" in row["notes"]:
        rules = (*rules, "sum_of_logits_as_loss")
    if model["model_type"] == "gpt_neox":
        rules = ("first_keys_not_copied", "gpt_neox_with_float32_positions", *rules)
    return Case(values=values_of(row, model, "train", **options), card=card, rules=rules, phases=phases)


def _generation(row: Row, card: str, model: Mapping[str, Any], rules: tuple[str, ...]) -> list[Case]:
    if "static" in row["attention"]:
        return [_torchao(row, card, model)]
    new, context = int(row["new_tokens"]), int(row["context"])
    values = values_of(row, model, "generate", new_tokens=min(new, 8))
    case = Case(values=values, card=card, rules=rules, phases=("cold_",), steps=new - 1, at_end=_by_nvml(row))
    if row["attention"].startswith("eager"):
        return [case]
    # The split of the keys in flash attention depends on their number, so passes differ and cannot be extrapolated.
    # The prefill and the last passes are traced separately: enough for allocated, while reserved needs every pass.
    if row.counter != "max_allocated":
        raise NotCalculated(f"{row.counter} of a generation that is traced in two parts")
    first = replace(case, values=values_of(row, model, "generate", new_tokens=1), phases=("prefill",), steps=None)
    long = values_of(row, model, "generate", context=context + new - 4, new_tokens=4)
    # The prefill of this part is longer than the real one, so its logits must not stay.
    rules = tuple(rule for rule in rules if rule != "whole_prompt_in_float32")
    return [first, replace(case, values=long, rules=rules, phases=("decode",), steps=None)]


def _by_nvml(row: Row) -> bool:
    """Whether nvidia_smi was read once after the phase: optimum-benchmark at that commit, trackers/memory.py,
    _cuda_memory."""
    return row.counter == "nvidia_smi" and "py3nvml" in row["notes"]


def _operator(row: Row, card: str) -> Case:
    sizes = dict(re.findall(r'"(\w)": (\d+)', row["notes"]))
    vocabulary = re.search(r"V=(\d+)", row["context"])
    if "cross_entropy" not in row["model"] or "huggingface" not in row["id"] or not vocabulary:
        raise NotCalculated("an operator of a library that is not installed")
    params = {"rows": int(sizes["B"]) * int(sizes["T"]), "vocabulary": int(vocabulary[1])}
    return Case(values=custom(row, "cross_entropy_forward_backward", params), card=card, phases=("forward_backward",))


def _lit_gpt(row: Row, card: str, sizes: Mapping[str, Any]) -> Case:
    params = {"rank": int(row["lora_rank"]), "sizes": dict(sizes)}
    return Case(values=custom(row, "lit_gpt_lora", params), card=card)


def _torchao(row: Row, card: str, model: Mapping[str, Any]) -> Case:
    """Published by torchao for its own decoder. The counter covers all from the first prefill to the end."""
    size = re.search(r"cache_size (\d+)", row["context"])
    if "pytorch/ao" not in row["source_url"] or not size:
        raise NotCalculated("a static cache of an unknown decoder")
    params = {
        "cache_size": int(size[1]),
        "quantized": "int8" in row["attention"],
        "linear_mask": "linear causal mask" in row["attention"],
        "config": model["config"],
    }
    return Case(values=custom(row, "torchao_generate", params), card=card)


def custom(row: Row, function: str, params: Mapping[str, Any]) -> dict[str, Any]:
    values = values_of(row, {"name": "none", "library": "torch"}, "custom", **_sizes(row))
    values["workload"] |= {"target": f"published_workloads:{function}", "params": dict(params)}
    return values


def _sizes(row: Row) -> dict[str, int]:
    return {name: int(row[name]) if row[name].isdecimal() else 1 for name in ("batch", "context")}


def values_of(row: Row, model: Mapping[str, Any], workload: str, **options: Any) -> dict[str, Any]:
    """A point's values: the workload's defaults, overridden by the row."""
    conf = yaml.safe_load((ROOT / "conf" / "workload" / f"{workload}.yaml").read_text())["workload"]
    keys = {key: value for key, value in conf.items() if key not in ("uses", "choices", "at_least", "only_with")}
    sizes = {name: options.pop(name, size) for name, size in _sizes(row).items()}
    fixed: dict[str, Any] = {"cache": "keep", "phases": "each", "budget": None, "quality": {"target": None}}
    return {
        "model": dict(model),
        "inputs": {"name": "synthetic"},
        "workload": keys | options,
        "dtype": DTYPES[row["weight_dtype"]],
        "attention": None if workload == "custom" or row["workload"] == "weights_only" else _attention(row),
        **sizes,
        **{"quantize": "none", "warmup": 0, "repeats": 1 if workload == "train" else 0, "seed": 0},
        **fixed,
    }


def _attention(row: Row) -> str:
    """The package flash-attn is not installed: torch's kernel stands for it, through a rule that replaces sdpa."""
    name = row["attention"].partition(" ")[0]
    return "sdpa" if name == "flash_attention_2" else name


def model_named(name: str) -> dict[str, Any]:
    known = yaml.safe_load((HERE / "published" / "models.yaml").read_text())
    if name not in known:
        raise NotCalculated(f"no configuration of {name}")
    found = known[name]
    if isinstance(found, str):
        return dict(yaml.safe_load((ROOT / "conf" / "model" / f"{found}.yaml").read_text()))
    return {"name": name, "library": "transformers", **found}


# --- calculating ------------------------------------------------------------------------------------------------------

MARK = 7_777_777  # bytes, allocated and freed where a pass of the decode begins; removed from the events later


@dataclass(frozen=True, slots=True)
class Calculated:
    """Counters of the phases that count, in bytes: the highest peak, and the value at the end of the last phase."""

    peak: Mapping[str, int] = field(default_factory=dict)
    end: Mapping[str, int] = field(default_factory=dict)
    failed: str | None = None
    seconds: float = 0.0

    def counter(self, name: str, case: Case) -> int:
        """Bytes. At the end of a phase `used` includes the driver's memory (see NOMINAL)."""
        if name == "used" and case.at_end:
            reserve = NOMINAL[case.card] - (card_named(case.card).total_bytes or 0)
            return self.end[name] + int(reserve)
        return self.peak[name]


def card_named(name: str) -> Card:
    return Card.from_json(yaml.safe_load((ROOT / "conf" / "card" / f"{name}.yaml").read_text()))


def calculate(case: Case) -> Calculated:
    """Trace and replay one case, in a process of its own."""
    from runners.failure import failure_facts

    began = time.perf_counter()
    card = card_named(case.card)
    attempt = Attempt(point=Point(values=case.values), device=Device(name=f"sim:{case.card}", card=card))
    workload = importlib.import_module(f"runners.workloads.{case.values['workload']['name']}")
    for module in workload.imports(case.values):
        importlib.import_module(module)
    with ExitStack() as rules:
        for name in case.rules:
            rules.enter_context(getattr(older_versions, name)())
        if case.steps is not None:
            rules.enter_context(_passes_marked())
        trace = trace_workload(attempt, workload, failure_facts)
    failure = next((line for line in trace.lines if line["kind"] == "failed"), None)
    if failure is not None:
        return Calculated(failed=f"{failure['chain'][0]['message']}\n{failure['traceback']}")
    if case.steps is not None:
        trace = extended(trace, case.steps)
    return _read(case, trace, card, began)


def _read(case: Case, trace: AllocationTrace, card: Card, began: float) -> Calculated:
    peak: dict[str, int] = {}
    end: dict[str, int] = {}
    for line in replay(trace, "sim", memory_of(card, None)):
        if line["kind"] == "failed":
            return Calculated(peak, end, f"{line['chain'][0]['message']}", time.perf_counter() - began)
        if line["kind"] != "ended" or (line["phase"] == "between" and case.phases):
            continue
        if case.phases and not any(part in line["phase"] for part in case.phases):
            continue
        counters = line["counters"]["sim"]
        peak = {name: max(peak.get(name, 0), value) for name, value in counters["peak"].items()}
        end = counters["end"]
    return Calculated(peak, end, None, time.perf_counter() - began)


def _passes_marked() -> Any:
    """Mark the start of each pass of a decode in the events."""
    import torch

    from runners.workloads import generate

    logits = generate.Generation._logits

    def marked(self: Any, *given: Any) -> Any:
        torch.empty(MARK, dtype=torch.uint8, device=self.network.device)
        return logits(self, *given)

    return replaced(generate.Generation, _logits=marked)


def extended(trace: AllocationTrace, passes: int) -> AllocationTrace:
    """Extend the trace of a few passes of a decode to `passes` passes, and drop what follows the decode.

    Each pass allocates and frees the same storages in the same order, and their sizes grow by the same bytes. Raises
    ValueError if the last three whole passes differ in that.
    """
    events, marks, ends = _unmarked(trace)
    last = next(index for index, line in enumerate(trace.lines) if line.get("phase") == "cold_decode" and
                line["kind"] == "ended")  # fmt: skip
    whole = [_Pass.of(events, start, stop) for start, stop in pairwise(marks[1:])]
    one, two, three = whole[-3:]
    if not (one.shape == two.shape == three.shape and two.growth(one) == three.growth(two)):
        raise ValueError("the passes of a decode are not alike")
    made = array("q", events[: marks[-1]])
    growth, allocations, done = three.growth(two), three.first + three.allocations, len(whole)
    for step in range(1, passes - done + 1):
        made.extend(three.later(step, growth, allocations))
        allocations += three.allocations
    lines = [
        {**line, EVENT: ends[index] if index < last else len(made)}
        for index, line in enumerate(trace.lines[: last + 1])
    ]
    return AllocationTrace(lines, made)


def _unmarked(trace: AllocationTrace) -> tuple[array[int], list[int], list[int]]:
    """The events without the marks, the places of the marks, and the new place of each line."""
    events: array[int] = array("q")
    marks: list[int] = []
    numbers: list[int] = []  # the new number of each allocation
    place = [0]
    allocated = 0
    for event in trace.events:
        if event == MARK:
            marks.append(len(events))
            numbers.append(-1)
        elif event >= 0:
            numbers.append(allocated)
            allocated += 1
            events.append(event)
        elif numbers[-event - 1] >= 0:
            events.append(-numbers[-event - 1] - 1)
        place.append(len(events))
    return events, marks, [place[line[EVENT]] for line in trace.lines]


@dataclass(frozen=True, slots=True)
class _Pass:
    """The events of one pass of a decode, as MetaTracer.events."""

    events: list[int]
    first: int  # the number of its first allocation
    allocations: int

    @classmethod
    def of(cls, events: Sequence[int], start: int, stop: int) -> _Pass:
        first = sum(event >= 0 for event in events[:start])
        allocations = sum(event >= 0 for event in events[start:stop])
        return cls(list(events[start:stop]), first, allocations)

    @property
    def shape(self) -> list[int | None]:
        """The number that each event frees, counted from this pass's first allocation; None for an allocation."""
        return [None if event >= 0 else -event - 1 - self.first for event in self.events]

    def growth(self, before: _Pass) -> list[int]:
        return [now - then if now >= 0 else 0 for now, then in zip(self.events, before.events, strict=True)]

    def later(self, steps: int, growth: Sequence[int], allocations: int) -> Iterator[int]:
        """The same pass `steps` passes later, after `allocations` allocations."""
        shift = allocations - self.first
        for event, more in zip(self.events, growth, strict=True):
            yield event + steps * more if event >= 0 else event - shift


# --- scoring ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scored:
    row: Row
    calculated: float

    @property
    def signed(self) -> float:
        return self.calculated / self.row.bytes - 1

    @property
    def error(self) -> float:
        return abs(self.signed)


def by_formula(row: Row) -> float:
    """Bytes of the keys and values of a model that is given in words: `64L, 8 kv heads x 128`, `60L, d6656`."""
    from transformers import LlamaConfig

    from runners.models.transformers_caches import CacheSpec

    layers = re.search(r"(\d+)L", row["model"])
    heads = re.search(r"(\d+) kv heads x (\d+)", row["model"])
    width = re.search(r"d(\d+)\)", row["model"])
    if not layers or not (heads or width):
        raise NotCalculated(f"{row['model']} names no layers, heads or width")
    kv, size = (int(heads[1]), int(heads[2])) if heads else (1, int(width[1]) if width else 0)
    config = LlamaConfig(
        num_hidden_layers=int(layers[1]), num_attention_heads=kv, num_key_value_heads=kv,
        hidden_size=kv * size, head_dim=size,
    )  # fmt: skip
    cache_spec = CacheSpec(kind="dynamic", backend=None, config=config, argument="cache", capacity=0)
    positions = int(row["context"])
    elements = cache_spec.bytes_by_formula(rows=int(row["batch"]), prompt=positions, positions=positions, element=1)
    # q8_0 of llama.cpp: 32 numbers of one byte and a scale of two bytes.
    return float(elements or 0) * {"f32": 4, "f16": 2, "q8_0": 34 / 32}[row["weight_dtype"]]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def report(scored: Sequence[Scored], left_out: Mapping[str, str]) -> bool:
    """Print the report. Returns whether every target is met."""
    readings = sorted({(each.row["unit_as_printed"], each.row.unit_bytes) for each in scored})
    print("\nunits: " + ", ".join(f"{unit} = {size}" for unit, size in readings))
    met = _medians(scored)
    met &= _growing(scored)
    met &= _slopes(scored)
    for row, why in left_out.items():
        print(f"not calculated: {row}: {why}")
    print("\nlargest errors")
    for each in sorted(scored, key=lambda each: -each.error)[:12]:
        print(_line(each))
    return met


def _line(each: Scored) -> str:
    row = each.row
    figures = f"{each.calculated / 1e9:10.4f} {row.bytes / 1e9:10.4f} {each.signed:+8.2%}"
    return f"{row.id:<52}{row.counter:<14}{row['confidence']:<7}{figures}"


def _medians(scored: Sequence[Scored]) -> bool:
    print(f"\n{'workload':<22}{'counter':<16}{'confidence':<11}{'rows':>5}{'median':>9}{'p90':>9}{'worst':>9}  target")
    groups: dict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    for each in scored:
        kind = each.row.kind
        if each.row.counter == "max_reserved":
            kind += ", grown cache" if each.row.grows else ", other"
        groups[kind, each.row.counter, each.row["confidence"]].append(each)
    other = [each for each in scored if each.row.counter == "max_reserved" and not each.row.grows]
    groups["all, other", "max_reserved", "high"] = [each for each in other if each.row["confidence"] == "high"]
    met = True
    for (kind, counter, confidence), members in sorted(groups.items()):
        if not members:
            continue
        errors = [each.error for each in members]
        median, high = statistics.median(errors), percentile(errors, 0.9)
        name = "any" if kind == "all, other" else kind
        target = TARGETS.get((name, counter)) if confidence == "high" else None
        verdict = ""
        if target:
            kept = median <= target[0] and high <= target[1]
            met &= kept
            verdict = f"{target[0]:.0%}, {target[1]:.0%}" + ("" if kept else "  MISSED")
        numbers = f"{len(members):>5}{median:>9.2%}{high:>9.2%}{max(errors):>9.2%}"
        print(f"{kind:<22}{counter:<16}{confidence:<11}{numbers}  {verdict}")
    return met


def _growing(scored: Sequence[Scored]) -> bool:
    """Compare reserved less allocated, for runs that published both."""
    rows = {each.row.id: each for each in scored}
    met = True
    pairs = [
        (rows[each.row.id.replace("max_reserved", "max_allocated")], each)
        for each in scored
        if each.row.counter == "max_reserved" and each.row.grows
        and each.row.id.replace("max_reserved", "max_allocated") in rows
    ]  # fmt: skip
    if pairs:
        print("\nreserved less allocated, grown caches (target: at least half of the published)")
    for allocated, reserved in pairs:
        published = reserved.row.bytes - allocated.row.bytes
        calculated = reserved.calculated - allocated.calculated
        kept = published < 0.02 * allocated.row.bytes or calculated >= published / 2
        met &= kept
        print(f"{reserved.row.id:<52}{calculated / 1e9:10.3f} {published / 1e9:10.3f}{'' if kept else '  MISSED'}")
    return met


def _slopes(scored: Sequence[Scored]) -> bool:
    series: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for each in scored:
        if each.row.kind in ("forward", "generate") and each.row.counter == "max_allocated":
            row = each.row
            series[row["model"], row["workload"], row["versions"], row["new_tokens"]].append(each)
    print("\nslopes of max_allocated (bytes for one more unit, by least squares)")
    met = True
    for (model, workload, *_), members in series.items():
        axis = next((name for name in ("batch", "context") if len({m.row[name] for m in members}) > 1), None)
        if axis is None:
            continue
        x = [float(each.row[axis]) for each in members]
        calculated = statistics.linear_regression(x, [each.calculated for each in members]).slope
        published = statistics.linear_regression(x, [each.row.bytes for each in members]).slope
        off = calculated / published - 1
        kept = abs(off) <= SLOPE
        met &= kept
        name = f"{model} {workload}, {axis}"
        print(f"{name:<52}{calculated:14.0f} {published:14.0f} {off:+8.2%}{'' if kept else '  MISSED'}")
    return met


# --- run ----------------------------------------------------------------------------------------------------------


def score(rows: Iterable[Row], processes: int, as_installed: bool = False) -> tuple[list[Scored], dict[str, str]]:
    wanted: dict[str, list[Case]] = {}
    scored: list[Scored] = []
    left_out: dict[str, str] = {}
    rows = list(rows)
    for row in rows:
        try:
            if row["workload"] == "kv_only":
                scored.append(Scored(row, by_formula(row)))
            else:
                wanted[row.id] = [replace(case, rules=()) if as_installed else case for case in cases(row)]
        except NotCalculated as why:
            left_out[row.id] = str(why)
    distinct = {case.key: case for group in wanted.values() for case in group}
    found = dict(_calculated(distinct, processes))
    for row in rows:
        if row.id not in wanted:
            continue
        results = [(found[case.key], case) for case in wanted[row.id]]
        if failed := next((result.failed for result, _ in results if result.failed), None):
            left_out[row.id] = failed
            continue
        scored.append(Scored(row, max(result.counter(COUNTERS[row.counter], case) for result, case in results)))
    order = {row.id: index for index, row in enumerate(rows)}
    return sorted(scored, key=lambda each: order[each.row.id]), left_out


def _calculated(distinct: Mapping[str, Case], processes: int) -> Iterator[tuple[str, Calculated]]:
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        submitted = {pool.submit(calculate, case): key for key, case in distinct.items()}
        for number, done in enumerate(as_completed(submitted), 1):
            key = submitted[done]
            try:
                result = done.result()
            except Exception as error:  # one row's error leaves the other rows
                result = Calculated(failed=f"{type(error).__name__}: {error}")
            case = distinct[key]
            name = f"{case.values['model']['name']} {case.values['workload']['name']}"
            at = f"batch {case.values['batch']} context {case.values['context']}"
            print(f"{number}/{len(distinct)} {name} {at}: {result.seconds:.0f} s", file=sys.stderr, flush=True)
            yield key, result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", nargs="?", type=Path, default=HERE / "published" / "peaks.csv")
    parser.add_argument("--only", default="", help="rows whose id matches this regular expression")
    parser.add_argument(
        "--as-installed", action="store_true", help="apply no rules: calculate what the installed versions take"
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    with options.path.open(newline="") as file:
        rows = [Row(columns) for columns in csv.DictReader(file)]
    scored, left_out = score(
        (row for row in rows if re.search(options.only, row.id)), options.processes, options.as_installed
    )
    print(f"{'row':<52}{'counter':<14}{'':<7}{'calculated':>10} {'published':>10} {'error':>8}   (GB, 10**9 bytes)")
    for each in scored:
        print(_line(each))
    return 0 if report(scored, left_out) and not left_out else 1


if __name__ == "__main__":
    sys.exit(main())

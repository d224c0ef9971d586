"""Every key of conf/config.yaml: its type, its range, and whether it belongs to a point or to the run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from sweeper import quality


@dataclass
class Keys:
    """The schema of conf/config.yaml, where each key has its default and is explained."""

    model: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    design: dict[str, Any] = field(default_factory=dict)

    dtype: str = "float32"
    attention: str | None = None
    quantize: str = "none"
    batch: int = 1
    context: int = 1
    warmup: int | None = None
    repeats: int | None = None
    seed: int = 0
    start: str = "cold"
    allocator: str = "system"
    phases: str = "each"
    cache: str = "keep"
    tensors: bool = True
    timeout: float | None = None
    budget: Any = None
    used_by_others: Any = None
    env: dict[str, Any] = field(default_factory=dict)
    quality: dict[str, Any] = field(default_factory=dict)

    devices: Any = "auto"
    name: str | None = None
    outputs: str = "outputs"
    python: str | None = None
    retry: Any = field(default_factory=list)
    resume: str = "same"
    stop_after_same_error: int = 0
    objective: str = "tokens"
    edge: str = "all"
    confirm: str = "edge"
    repeat_points: int = 1
    resolution: dict[str, Any] = field(default_factory=dict)
    margin: dict[str, Any] = field(default_factory=dict)
    heartbeat: float = 0.2
    parallel: bool = False
    trace: str = "never"

    grid: dict[str, Any] = field(default_factory=dict)
    points: list[Any] = field(default_factory=list)


# A workload lists the ones it uses under `uses`. The others do not affect it, and are null in its points.
WORKLOAD_KEYS = (
    "model", "inputs", "dtype", "attention", "quantize", "batch", "context", "warmup", "repeats", "seed", "cache",
    "quality",
)  # fmt: skip
# What a workload's file declares about its keys. These are not keys themselves and not part of a point.
WORKLOAD_RULES = ("uses", "choices", "at_least", "only_with", "divides")
NULLABLE = ("attention",)  # null is the library's own choice
RUN_KEYS = (
    "devices", "name", "outputs", "python", "retry", "resume", "stop_after_same_error", "objective", "edge",
    "confirm", "repeat_points", "resolution", "margin", "heartbeat", "parallel", "trace",
)  # fmt: skip
LIST_KEYS = ("devices", "retry")  # run keys that take a list
POINT_KEYS = tuple(each.name for each in fields(Keys) if each.name not in (*RUN_KEYS, "design", "grid", "points"))

CHOICES = {
    "start": ("cold", "warm"),
    "allocator": ("system", "repeatable"),
    "phases": ("each", "whole"),
    "cache": ("keep", "empty"),
    "attention": ("eager", "sdpa", "flash_attention_2"),
    "quantize": ("none", "int8", "int4", "nf4"),
    "resume": ("same", "anew"),
    "edge": ("all", "largest"),
    "trace": ("never", "on_failure"),
}
# Environment variables that `env` does not take, with the reason. Most are set in sweeper/sweeping/conditions.py.
REFUSED_VARIABLES = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "devices= sets it"),
    **dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MKL_ENABLE_INSTRUCTIONS"), "allocator=repeatable sets it"),
    **dict.fromkeys(("OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS"), "sweeper sets it, unless the shell does"),
    **dict.fromkeys(("PYTHONPATH", "PYTHONHOME"), "sweeper plans with it too; set it in the shell"),
}
MINIMUM = {
    "batch": 1, "context": 1, "repeats": 1, "warmup": 0, "seed": 0, "stop_after_same_error": 0, "repeat_points": 1,
}  # fmt: skip
MAXIMUM = 2**63 - 1  # the largest int64
TYPE_NAMES = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word",
    "dict[str, Any]": "keys with values",
}  # fmt: skip


# Keys that came later. A point leaves out their null, so that the ids of earlier points stay as they were.
LATER_KEYS = ("used_by_others",)


def expected_type(key: str) -> str:
    """The type that the schema gives a key, in words."""
    types = {each.name: str(each.type) for each in fields(Keys)}
    return TYPE_NAMES.get(types.get(key, "").partition(" | ")[0], "another kind of value")


# Keys whose values are words.
TEXT_KEYS = tuple(each.name for each in fields(Keys) if str(each.type).startswith("str"))

# Keys that are true or false.
SWITCH_KEYS = tuple(each.name for each in fields(Keys) if each.type == "bool")


def is_run_key(key: str) -> bool:
    """Whether a dotted key configures the run. Such a key is not part of a point."""
    return key.partition(".")[0] in RUN_KEYS or ".".join(key.split(".")[:2]) in quality.RUN_KEYS


def as_list(value: Any) -> list[Any]:
    """The value of a list key. A single word is a list of one, null an empty list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]

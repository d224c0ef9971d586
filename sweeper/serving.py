"""A server of a model: how many requests it can answer at once, from rows of the workload `generate`. Pure.

Each request has pages of the cache for its prompt and its answer (workload.cache=paged). The prompts are read one after
another, in passes of as many tokens as a server's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.estimates.generation_speed import GenerationSpeed, most_tokens_per_second
from sweeper.fit_cells import Cell, FitDevice, Result, Setting

SERVE, PAGED = "serve", "paged"
PASS_TOKENS = 8192  # of all prompts together: the limit that vLLM has by default on a card of 80 GB
# A usual limit for an answer of a chat. A calculated device follows the first and the last of its decoding steps.
NEW_TOKENS = 512
FEW_NEW_TOKENS = 8  # where every step is followed
NOT_INCLUDED = (
    "the time to read the prompts, in tokens/s",
    "what a server keeps for itself (its own reserve and its copies of inputs)",
    "CUDA graphs",
    "the workspaces of its own kernels",
)


PAGE = 16  # tokens of a page, as in runners/models/transformers_caches.py


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpeed:
    """The most tokens a second in a cell: with one sequence, the largest batch, or the requested one."""

    device: str
    setting: str
    context: int | None
    speed: GenerationSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How many requests of one length a device can answer at once. Peaks are bytes of `counter`.

    `fits` and `peak_bytes` are of `requests`, the requested number. If they do not fit, it is the peak without a limit.
    """

    device: str
    kind: str
    counter: str
    context: int | None  # tokens of each prompt
    new_tokens: int | None
    requests: int
    fits: bool | None = None
    peak_bytes: int | None = None
    largest: int | None = None
    largest_peak_bytes: int | None = None
    is_at_least: bool = False  # no larger number was tried
    is_open: bool = False  # the search for the largest number is not over
    request_bytes: int | None = None  # pages of one request
    request_pages: int | None = None  # in each layer
    pass_tokens: int | None = None  # that a pass of the prefill reads, of one prompt or several
    because: str | None = None  # why it is undecided


def serving_setting(given: Collection[str] = ()) -> Setting:
    """`given`: keys that the user typed, which stay as they are."""
    values: Mapping[str, Any] = {
        "workload": "generate",
        "workload.cache": PAGED,
        "workload.prefill_chunk": PASS_TOKENS,
        "workload.new_tokens": NEW_TOKENS,
        "warmup": 0,
        "repeats": 1,
    }
    return Setting(
        name=SERVE, values={key: value for key, value in values.items() if key == "workload" or key not in given}
    )


def new_tokens(config: Mapping[str, Any], attention: str | None) -> int:
    """The tokens of an answer, if they were not typed: few where every step is followed, as its tensors grow."""
    text = config.get("text_config") or config
    has_windows = text.get("sliding_window") and text.get("use_sliding_window") is not False
    return FEW_NEW_TOKENS if has_windows or attention == "eager" else NEW_TOKENS


def servings(cells: Iterable[Cell], results: Iterable[Result], requests: int | None) -> tuple[Serving, ...]:
    """One for each cell, if a number of requests was given."""
    if requests is None:
        return ()
    by_id = {(each.device, each.point_id): each for each in results}
    return tuple(
        _serving(cell, [by_id[cell.device, id] for id in cell.point_ids if (cell.device, id) in by_id], requests)
        for cell in cells
    )


def _serving(cell: Cell, results: Sequence[Result], requests: int) -> Serving:
    asked = next((each for each in results if each.batch == requests), None)
    known = next((each for each in results if each.metrics.get("cache_bytes") is not None), None)
    workload: Mapping[str, Any] = results[0].values["workload"] if results else {}
    stored = None if cell.context is None or not workload else cell.context + workload["new_tokens"] - 1
    fits = None if asked is None else asked.fits
    if asked is None and cell.fits is False:
        fits = False  # one request does not fit
    return Serving(
        device=cell.device,
        kind=cell.kind,
        counter=cell.counter,
        context=cell.context,
        new_tokens=workload.get("new_tokens"),
        requests=requests,
        fits=fits,
        peak_bytes=None if asked is None else asked.peak_bytes,
        largest=0 if cell.fits is False else cell.largest_batch,
        largest_peak_bytes=cell.largest_peak_bytes,
        is_at_least=cell.is_at_least,
        is_open=cell.is_open,
        request_bytes=None if known is None else known.metrics["cache_bytes"] // known.batch,
        request_pages=None if stored is None or workload.get("cache") != PAGED else -(-stored // PAGE),
        pass_tokens=workload.get("prefill_chunk"),
        because=cell.because if asked is None else asked.because,
    )


def speeds(
    cells: Iterable[Cell], results: Iterable[Result], devices: Iterable[FitDevice], requests: int | None
) -> tuple[CellSpeed, ...]:
    """The speeds of the cells that generate, for one sequence, the largest batch and the requested one."""
    by_name = {each.name: each for each in devices}
    by_id = {(each.device, each.point_id): each for each in results}
    found = []
    for cell in cells:
        device = by_name[cell.device]
        interesting = {1, cell.largest_batch, requests}
        for result in (by_id.get((cell.device, id)) for id in cell.point_ids):
            if result is None or not result.fits or result.batch not in interesting:
                continue
            speed = most_tokens_per_second(
                batch=result.batch,
                weight_bytes=result.metrics.get("step_weight_bytes"),
                cache_bytes=result.metrics.get("prompt_cache_bytes"),
                bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
                price_per_hour=device.price_per_hour,
            )
            if speed is not None:
                found.append(CellSpeed(device=cell.device, setting=cell.setting, context=cell.context, speed=speed))
    return tuple(found)

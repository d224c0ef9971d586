"""Caches of keys and values for transformers decoders: how they are made, and how many bytes they hold and should hold.

dynamic     all keys and values, in tensors that grow with each token; windows are ignored
static      space for all positions (or one window), allocated at once
sliding     as dynamic, but a layer with a window holds only its window
paged       pages of 16 tokens, as a server keeps them; windows are ignored
quantized   as dynamic, in 4 or 8 bits
offloaded   as dynamic, on the host; the device holds the current layer and the next one
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from transformers import cache_utils

from runners.models import torch_models
from runners.phases import Unavailable

FULL, WINDOWED = ("full_attention",), ("sliding_attention", "chunked_attention")
BIASED = ("bloom", "mpt")  # models whose attention always adds a bias by distance
# The library's defaults for quantized caches: bits, elements per scale and zero point, and the number of new tokens
# that stay in the dtype until they are quantised together. fp8 has one scale per tensor and quantises every token.
BITS, GROUP, RESIDUAL = 4, 64, 128
SCALE_OF_FP8 = 4  # bytes: a float32
PAGE = 16  # tokens of a page of a paged cache: the block size that vLLM has by default on GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """The cache of a point, of `rows`. `capacity`: positions of a row at the end of generation, plus one."""

    kind: str
    backend: str | None  # library of a quantized cache
    config: Any  # the model's
    argument: str  # name of the cache argument in the model's forward pass
    capacity: int
    rows: int = 1

    @property
    def width(self) -> int | None:
        """Number of positions that the cache returns to a layer, if it differs from the number stored so far."""
        return self.capacity if self.kind == "static" else None

    def cache(self, dtype: torch.dtype, device: torch.device | str) -> Any:
        """A new, empty cache. `dtype` and `device` are those of its keys and values."""
        if self.kind == "static":
            return transformers.StaticCache(config=self.config, max_cache_len=self.capacity)
        if self.kind == "quantized":
            return transformers.QuantizedCache(self.backend or "", self.config)
        if self.kind == "paged":
            windows, vectors = _windows(self.config), _elements_of_a_position(self.config)
            assert windows is not None  # `prepare` refuses other models
            assert vectors is not None
            table = Pages(self.rows, self._pages, slice(0, self.rows))
            return PagedCache(table, len(windows), vectors, dtype, device)
        # Without a configuration, a DynamicCache ignores windows.
        config = None if self.kind != "sliding" and any(_windows(self.config) or ()) else self.config
        return transformers.DynamicCache(config=config, offloading=self.kind == "offloaded")

    def bytes_by_formula(self, *, rows: int, prompt: int, positions: int, element: int) -> int | None:
        """Expected bytes of a cache for `rows` with `positions` each, of which `prompt` were written by the prefill.

        `element` is the size of an element in bytes. None for models whose layers do not each hold keys and values per
        position.
        """
        windows, vectors = _windows(self.config), _elements_of_a_position(self.config)
        if windows is None or vectors is None:
            return None
        if self.kind == "quantized":
            return len(windows) * self._quantized(rows * vectors, prompt, positions, element)
        stored = {"static": self.capacity, "paged": self._pages * PAGE}.get(self.kind, positions)
        within = self.kind in ("static", "sliding")
        held = sum(min(stored, window) if within and window else stored for window in windows)
        return rows * held * vectors * element

    def read_by_a_step(self, *, rows: int, positions: int, element: int, held: int) -> int:
        """Bytes of the keys and values that a decoding step needs, of `held` bytes: none of an empty place, and of a
        layer with a window none before it. `held` where there is no formula.
        """
        if self.kind == "quantized":
            return held
        needed = replace(self, kind="sliding")
        found = needed.bytes_by_formula(rows=rows, prompt=positions, positions=positions, element=element)
        return held if found is None else min(found, held)

    @property
    def _pages(self) -> int:
        """Pages of a row: its last token is chosen and never stored."""
        return -(-(self.capacity - 1) // PAGE)

    def _quantized(self, vectors: int, prompt: int, positions: int, element: int) -> int:
        """Bytes of one layer of a quantized cache."""
        if self.backend == "fp8":
            return positions * vectors + 2 * SCALE_OF_FP8
        residual = (positions - prompt) % RESIDUAL
        quantised = (positions - residual) * vectors
        return quantised * BITS // 8 + quantised // GROUP * 2 * element + residual * vectors * element


@dataclass(slots=True)
class Pages:
    """The number of `pages` of each of `rows`, and the rows that a pass reads and writes."""

    rows: int
    pages: int
    selected: slice


class PagedCache(cache_utils.Cache):
    """The pages of every layer, allocated before the first pass, as a server does.

    Between the tensors of a pass they would leave gaps that nothing else fits into. `vectors`: elements of the keys and
    values of a position in a layer. The layers do not refer to the cache: a circle would outlive its last use.
    """

    def __init__(self, table: Pages, layers: int, vectors: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self.table = table
        positions = table.rows * table.pages * PAGE
        made = [
            PagedLayer(table, torch.empty(2, positions * vectors // 2, dtype=dtype, device=device))
            for _ in range(layers)
        ]
        super().__init__(layers=made)  # type: ignore[arg-type]

    def select(self, first: int, end: int, stored: int) -> None:
        """The next pass is of these rows, which have `stored` tokens."""
        self.table.selected = slice(first, end)
        for layer in self.layers:
            layer.stored = stored  # type: ignore[union-attr]


class PagedLayer(cache_utils.CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of a paged cache. `pages`: a tensor (2, elements) for all its keys and values.

    The pages of a row lie next to each other, so attention reads them in place, as a kernel for pages does: there is no
    copy of them. A server's table of pages, 4 bytes a page, is not part of it.
    """

    is_sliding = False

    def __init__(self, table: Pages, pages: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table, self.stored = table, 0
        self.keys, self.values = pages.unbind()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        self.device = key_states.device
        values = key_states if value_states is None else value_states
        self.keys, self.values = self._shaped(self.keys, key_states), self._shaped(self.values, values)
        self.is_initialized = True

    def _shaped(self, pages: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
        """Pages (rows x pages, PAGE, heads, size) for states (selected rows, heads, tokens, size)."""
        shape = (self.table.rows * self.table.pages, PAGE, states.shape[1], states.shape[3])
        if pages is not None and pages.numel() == math.prod(shape) and pages.dtype == states.dtype:
            return pages.view(shape)
        return torch.empty(shape, dtype=states.dtype, device=states.device)  # heads that the configuration leaves open

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, self.stored = self.stored, self.stored + key_states.shape[-2]
        return self._written(self.keys, key_states, first), self._written(self.values, value_states, first)

    def _written(self, pages: torch.Tensor | None, states: torch.Tensor, first: int) -> torch.Tensor:
        """All states of the selected rows so far (rows, heads, tokens, size), a view of the pages."""
        assert pages is not None
        heads, size = states.shape[1], states.shape[3]
        rows = pages.view(self.table.rows, self.table.pages * PAGE, heads, size)[self.table.selected]
        rows[:, first : self.stored] = states.transpose(1, 2)
        return rows[:, : self.stored].transpose(1, 2)

    def get_seq_length(self, *_: Any) -> int:
        return self.stored

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Keys of a pass, and the first of them. Earlier versions of the library give the places of the queries."""
        queries = query_length if isinstance(query_length, int) else len(query_length)
        return self.stored + queries, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its earlier name


def prepare(
    workload: Mapping[str, Any], model: Any, config: Any, name: str, device: str, in_chunks: bool = False
) -> None:
    """Check that the model, device and library version support the cache, also for prompts that are read `in_chunks`.

    Raises ValueError or Unavailable.
    """
    kind, windows = workload["cache"], _windows(config)
    if not argument(model):
        raise ValueError(f"workload=generate: {name} has no cache of keys and values")
    if kind == "paged" and (windows is None or _elements_of_a_position(config) is None):
        raise ValueError(f"workload.cache=paged: {name} has layers without keys and values of each position")
    if kind == "paged" and (workload["prompt_lengths"] > 1 or workload["packing"] == "packed"):
        key = "packing=packed" if workload["packing"] == "packed" else f"prompt_lengths={workload['prompt_lengths']}"
        raise ValueError(f"workload.cache=paged with workload.{key}: every prompt has the pages of the longest")
    if kind == "paged" and "pixel_values" in inspect.signature(model.forward).parameters:
        raise ValueError(f"workload.cache=paged: prompts of {name} contain images, which cannot be divided")
    if kind == "sliding" and not any(windows or ()):
        raise ValueError(f"workload.cache=sliding: {name} has no layer with a window")
    if in_chunks:
        chunk = f"workload.prefill_chunk={workload['prefill_chunk']}"
        if windows is None or getattr(model, "_is_stateful", False):
            raise ValueError(f"{chunk}: {name} has layers that cannot continue a prompt, so it must be read at once")
        if kind == "quantized":
            raise ValueError(f"{chunk}: a quantized cache would quantise each chunk anew; use another workload.cache")
    if kind == "quantized":
        if windows is None or any(windows):
            raise ValueError(f"workload.cache=quantized: {name} has layers without full attention")
        if workload["cache_backend"] == "fp8" and not hasattr(cache_utils, "Fp8QuantizedLayer"):
            raise Unavailable(f"workload.cache_backend=fp8: transformers {transformers.__version__} does not have it")
        if workload["cache_backend"] == "quanto":
            _compile_quanto(device)
    if kind == "offloaded" and not device.startswith("cuda"):
        # transformers 5.24 creates the cache, and requests CUDA streams in its first update.
        raise Unavailable(f"workload.cache=offloaded: the library supports CUDA devices only, not {device}")


def _compile_quanto(device: str) -> None:
    """Compile optimum-quanto's operators, which it would otherwise do at their first use, in a measured phase.

    The compiler took 59 s of CPU time and 1.5 GiB (0.2.7), once per installation. Raises Unavailable if it fails.
    """
    if torch_models.is_calculated(device):
        return
    extensions = importlib.import_module("optimum.quanto.library.extensions")
    for name in ("quanto_cuda", "quanto_hip") if device.startswith("cuda") else ("quanto_cpp",):
        if not extensions.is_extension_available(name):
            continue
        try:
            _ = extensions.get_extension(name).lib
        except Exception as error:  # no compiler, or a folder that cannot be written
            first_line = str(error).partition("\n")[0]
            raise Unavailable(
                f"workload.cache_backend=quanto: its operators cannot be compiled: {type(error).__name__}: {first_line}"
            ) from error


def argument(model: Any) -> str:
    """Name of the cache argument of `forward`: past_key_values, or cache in later versions. Empty if there is none."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in takes), "")


def is_full_attention(config: Any) -> bool:
    """Whether every layer attends to every position."""
    windows = _windows(config)
    return windows is not None and not any(windows)


def steps_take_the_same(config: Any) -> bool:
    """Whether the tensors of a decoding step are as large for a long answer as for a short one, pages aside.

    Eager attention has weights, and windows and biases by distance have masks, of as many elements as there are
    positions.
    """
    text = config.get_text_config(decoder=True)
    has_biases = getattr(text, "alibi", False) or text.model_type in BIASED
    return is_full_attention(config) and not has_biases and text._attn_implementation != "eager"


def bytes_held(cache: Any, device: str | None = None) -> int:
    """Bytes of the storages of a cache's tensors, each once; on `device`, or on all devices.

    Storages, not shapes: a view keeps the whole storage alive.
    """
    storages = {}
    for tensor in _tensors(vars(cache).get("layers", ())):
        if device is None or tensor.device == torch.device(device):
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors inside a value, including those inside a quantised tensor. Skips the library's scalar counters."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            names, _ = value.__tensor_flatten__()
            yield from _tensors([getattr(value, name) for name in names])
        elif value.dim() or value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, cache_utils.CacheLayerMixin) or type(value).__module__ == cache_utils.__name__:
        yield from _tensors(vars(value))


def _windows(config: Any) -> list[int | None] | None:
    """The window of each layer (None: full attention). None for a model with other types of layers."""
    config = config.get_text_config(decoder=True)
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    types = getattr(config, "layer_types", None)
    if types is None:
        return [window or chunk] * config.num_hidden_layers
    if set(types) - {*FULL, *WINDOWED} or _shares(config):
        return None
    sizes: dict[str, int | None] = {"sliding_attention": window, "chunked_attention": chunk}
    return [sizes.get(each) for each in types]


def _shares(config: Any) -> bool:
    """Whether layers share keys and values."""
    return bool(getattr(config, "kv_sharing_modes", None) or getattr(config, "num_kv_shared_layers", None))


def _elements_of_a_position(config: Any) -> int | None:
    """Elements of one position's keys and values over all heads of a layer. None without heads or if compressed."""
    config = config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None) or not hasattr(config, "num_attention_heads"):
        return None
    heads: int = config.num_attention_heads
    size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads: int = getattr(config, "num_key_value_heads", None) or (
        1 if getattr(config, "multi_query", False) else heads
    )
    return 2 * kv_heads * size

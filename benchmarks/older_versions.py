"""What older versions of libraries did in another way than those that are installed, as rules that a row is calculated
under: each is a context manager, is named for what was done, and names the source that it was read from.

None of them holds a number that was fitted to what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from runners.simulation.torch_tracer import replaced

Version = tuple[int, ...]
Rule = Callable[[], AbstractContextManager[None]]

aten = torch.ops.aten


@contextmanager
def attention_replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """And no mask made for it: what such a function needs of one it makes itself."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    mappings: Any = (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS)
    for mapping, value in zip(mappings, (function, lambda **_: None), strict=True):
        mapping[name] = value
    try:
        yield
    finally:
        for mapping in mappings:
            del mapping[name]


def rules_of(row: Mapping[str, str], model_type: str, transformers: Version | None) -> list[Rule]:
    """Those that a row's version of transformers asks for; none for a row that used another library."""
    if transformers is None:
        return []
    generates = row["workload"] in ("generate", "forward")
    attention = row["attention"].partition(" ")[0]
    asked: list[tuple[bool, Rule]] = [
        (attention == "flash_attention_2" and transformers < (4, 48), keys_repeated_for_flash),
        (attention == "flash_attention_2" and transformers >= (4, 48), keys_grouped_for_flash),
        (attention == "eager" and model_type == "llama", eager_softmax_in_one_kernel),
        (generates and transformers < (4, 45), whole_prompt_in_float32),
        (generates and transformers < (4, 42), cache_as_tuples),
        (transformers < (4, 54), first_keys_as_they_are),
        (model_type in ("llama", "qwen2") and transformers < (4, 39), rope_tables_in_every_layer),
        (row["workload"].startswith("train") and transformers < (4, 49), shifted_logits_copied),
        (row["workload"].startswith("train") and "accelerate" in row["versions"], loss_within_the_pass),
    ]
    return [rule for needed, rule in asked if needed]


# --- attention --------------------------------------------------------------------------------------------------------


def _repeated(tensor: torch.Tensor, times: int) -> torch.Tensor:
    if times == 1:
        return tensor
    batch, heads, length, head = tensor.shape
    expanded = tensor[:, :, None].expand(batch, heads, times, length, head)
    return expanded.reshape(batch, heads * times, length, head)


def _flash(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, repeats: bool
) -> tuple[torch.Tensor, None]:
    groups = getattr(module, "num_key_value_groups", 1)
    if repeats:
        key, value = _repeated(key, groups), _repeated(value, groups)
    causal, grouped = query.shape[2] > 1, not repeats and groups > 1
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)
    return attended.transpose(1, 2).contiguous(), None


def keys_repeated_for_flash() -> AbstractContextManager[None]:
    """The package flash-attn, given keys and values once for each head of a query: repeat_kv came before it.

    transformers v4.38.2 and v4.46.0, models/qwen2/modeling_qwen2.py, Qwen2FlashAttention2.forward. The package's
    kernel is that of torch's flash attention, which stands for it here.
    """

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return _flash(module, query, key, value, repeats=True)

    return attention_replaced("sdpa", attend)


def keys_grouped_for_flash() -> AbstractContextManager[None]:
    """The package flash-attn, given keys and values as they are: transformers v4.48.1,
    integrations/flash_attention.py. Its kernel is that of torch's flash attention, which stands for it here."""

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return _flash(module, query, key, value, repeats=False)

    return attention_replaced("sdpa", attend)


def eager_softmax_in_one_kernel() -> AbstractContextManager[None]:
    """Scores, their scaling, the mask, softmax in float32 and back: transformers v4.35.2,
    models/llama/modeling_llama.py, LlamaAttention.forward. On CUDA the softmax of float16 to float32 is one kernel
    (aten/src/ATen/native/SoftMax.cpp, softmax with a dtype), where tensors without data convert first.
    """

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **_: Any
    ) -> tuple[torch.Tensor, None]:
        groups = getattr(module, "num_key_value_groups", 1)
        key, value = _repeated(key, groups), _repeated(value, groups)
        weights = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.shape[-1])
        weights = weights + query.new_zeros(len(query), 1, query.shape[2], key.shape[2])
        if query.dtype == torch.float16:
            weights = aten._softmax(weights, -1, True)
        else:
            weights = functional.softmax(weights, dim=-1, dtype=torch.float32)
        return torch.matmul(weights.to(query.dtype), value).transpose(1, 2).contiguous(), None

    return attention_replaced("eager", attend)


# --- logits and losses ------------------------------------------------------------------------------------------------


@contextmanager
def built_with(change: Callable[[Any, Any], None]) -> Iterator[None]:
    """Changes every network and its module where they are built."""
    from runners.models import transformers_models

    build = transformers_models.build

    def changed(values: Mapping[str, Any], device: str) -> Any:
        network = build(values, device)
        change(network, network.module)
        return network

    with replaced(transformers_models, build=changed):
        yield


@contextmanager
def whole_prompt_in_float32() -> Iterator[None]:
    """Logits of every token, in the model's dtype and then in float32: `logits = logits.float()` in forward of
    LlamaForCausalLM (v4.35.2) and Qwen2ForCausalLM (v4.38.2). The prefill's are kept while the next token is made:
    generation/utils.py, greedy_search, where `outputs` is one variable.
    """
    from runners.workloads import generate

    logits = generate.Generation._logits
    kept: list[torch.Tensor] = []

    def in_float32(network: Any, module: Any) -> None:
        module.lm_head.register_forward_hook(lambda head, args, output: output.float())

    def all_logits(self: Any, cache: Any, given: Any, few: Any) -> torch.Tensor:
        made = logits(self, cache, given, {})
        kept[:] = [made]
        return made

    with built_with(in_float32), replaced(generate.Generation, _logits=all_logits):
        yield
    kept.clear()


@contextmanager
def loss_within_the_pass() -> Iterator[None]:
    """The model computes its loss itself, as it does if it is given labels, so that what the last layer gave is there
    while the loss is made: transformers' Trainer, compute_loss; v4.48.1, MistralForCausalLM.forward, hidden_states."""
    from runners.models.transformers_models import Transformer

    loss = Transformer.loss
    kept: list[torch.Tensor] = []

    def hold(network: Any, module: Any) -> None:
        def held(head: Any, args: Any, output: Any) -> None:
            kept[:] = args

        module.lm_head.register_forward_hook(held)

    def loss_and_let_go(self: Any, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        made = loss(self, output, targets)
        kept.clear()
        return made

    with built_with(hold), replaced(Transformer, loss=loss_and_let_go):
        yield


@contextmanager
def shifted_logits_copied() -> Iterator[None]:
    """The loss of a decoder shifted its logits, `logits[..., :-1, :].contiguous()`, and not its labels: transformers
    v4.48.1, loss/loss_utils.py, ForCausalLMLoss."""
    from transformers.loss import loss_utils

    def loss(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any) -> torch.Tensor:
        logits = logits.float()
        shifted = logits[..., :-1, :].contiguous().view(-1, vocab_size)
        return functional.cross_entropy(shifted, labels[..., 1:].contiguous().view(-1), ignore_index=-100)

    before = loss_utils.LOSS_MAPPING["ForCausalLM"]
    loss_utils.LOSS_MAPPING["ForCausalLM"] = loss
    try:
        yield
    finally:
        loss_utils.LOSS_MAPPING["ForCausalLM"] = before


# --- caches -----------------------------------------------------------------------------------------------------------


@contextmanager
def first_keys_as_they_are() -> Iterator[None]:
    """The cache of a layer began as the prompt's keys and values themselves, without a copy: v4.35.2, LlamaAttention;
    v4.46.0, cache_utils.py, DynamicCache.update."""
    from transformers import cache_utils

    update = cache_utils.DynamicLayer.update

    def first(self: Any, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_initialized:
            return update(self, key, value, *args, **kwargs)
        self.lazy_initialization(key, value)
        self.keys, self.values = key, value
        return key, value

    with replaced(cache_utils.DynamicLayer, update=first):
        yield


@contextmanager
def cache_as_tuples() -> Iterator[None]:
    """A pass was given the tuples of all layers and returned new ones, so that old and new are there at its end: the
    old ones live in `model_inputs` until the pass after: v4.35.2, generation/utils.py, greedy_search; v4.38.2 the same,
    through DynamicCache.from_legacy_cache and back. A forward pass kept and returned them, unasked."""
    from runners.models.transformers_models import Transformer
    from runners.workloads import generate

    forward, logits = Transformer.forward, generate.Generation._logits
    old: list[Any] = []

    def logits_with_the_old(self: Any, cache: Any, given: Any, few: Any) -> torch.Tensor:
        old[:] = [(layer.keys, layer.values) for layer in cache.layers if layer.is_initialized]
        return logits(self, cache, given, few)

    def forward_with_a_cache(self: Any, inputs: Any) -> torch.Tensor:
        self._options["use_cache"] = True
        old[:] = [_Returned(self.module)]
        try:
            return forward(self, inputs)
        finally:
            old[0].unhook()

    with (
        replaced(Transformer, forward=forward_with_a_cache),
        replaced(generate.Generation, _logits=logits_with_the_old),
    ):
        yield
    old.clear()


class _Returned:
    """Holds all that a module returns."""

    def __init__(self, module: nn.Module) -> None:
        self._hook = module.register_forward_hook(self._hold)
        self.output: Any = None

    def _hold(self, module: nn.Module, args: Any, output: Any) -> None:
        self.output = output

    def unhook(self) -> None:
        self._hook.remove()


# --- positions --------------------------------------------------------------------------------------------------------


def rope_tables_in_every_layer() -> AbstractContextManager[None]:
    """Cosines and sines of every position the model has, in the model's dtype, in each layer: v4.35.2,
    LlamaRotaryEmbedding; v4.38.2, Qwen2RotaryEmbedding (cos_cached, sin_cached)."""

    def add(network: Any, module: Any) -> None:
        config = module.config
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        positions, layers = config.max_position_embeddings, config.num_hidden_layers
        module.tables = [
            torch.empty(positions, head, dtype=network.dtype, device=network.device) for _ in range(2 * layers)
        ]

    return built_with(add)


# --- GPT-NeoX before it took part in the library's common attention ---------------------------------------------------


@contextmanager
def gpt_neox_with_float32_positions() -> Iterator[None]:
    """GPT-NeoX of transformers v4.43.4, models/gpt_neox/modeling_gpt_neox.py.

    GPTNeoXRotaryEmbedding keeps its tables in float32, so that queries and keys become float32; sdpa casts them back,
    eager computes scores, mask and softmax in it. Each layer has a mask of all positions as a buffer, and tables.
    """
    from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox

    rotate: Callable[..., Any] = gpt_neox.apply_rotary_pos_emb

    def add_buffers(network: Any, module: Any) -> None:
        positions, device = module.config.max_position_embeddings, network.device
        for layer in module.gpt_neox.layers:
            attention = layer.attention
            attention.mask_of_all = torch.empty(1, 1, positions, positions, dtype=torch.bool, device=device)
            attention.masked = torch.empty((), device=device)
            attention.tables = [torch.empty(positions, attention.rotary_ndims, device=device) for _ in range(2)]

    def rotate_in_float32(q: Any, k: Any, cos: torch.Tensor, sin: torch.Tensor, *args: Any) -> Any:
        return rotate(q, k, cos.float(), sin.float(), *args)

    def eager(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **_: Any) -> Any:
        batch, heads, length, head = query.shape
        query, key = (each.reshape(batch * heads, -1, head) for each in (query, key))
        scores = torch.zeros(batch * heads, length, key.shape[1], dtype=query.dtype, device=query.device)
        scores = torch.baddbmm(scores, query, key.transpose(1, 2), beta=1.0, alpha=head**-0.5)
        scores = scores.view(batch, heads, length, -1)
        causal = module.mask_of_all[:, :, :length, : scores.shape[-1]]
        scores = torch.where(causal, scores, torch.empty((), dtype=scores.dtype, device=query.device))
        scores = scores + torch.empty(batch, 1, length, scores.shape[-1], dtype=value.dtype, device=query.device)
        weights = functional.softmax(scores, dim=-1).to(value.dtype)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), None

    def sdpa(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **_: Any) -> Any:
        query, key = query.to(value.dtype), key.to(value.dtype)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
        return attended.transpose(1, 2).contiguous(), None

    with (
        built_with(add_buffers),
        replaced(gpt_neox, apply_rotary_pos_emb=rotate_in_float32, eager_attention_forward=eager),
        attention_replaced("sdpa", sdpa),
    ):
        yield


# --- what a script did beside the model -------------------------------------------------------------------------------


@contextmanager
def sum_of_logits_as_loss() -> Iterator[None]:
    """`outputs = model(**inputs); loss = outputs.logits.sum(); loss.backward()` in a loop, without an optimizer: the
    outputs of a step, with the keys and values that were not asked away, live until the next step has made its own.

    The script that the pull requests for sdpa attention quote, as in https://github.com/huggingface/transformers/pull/32092.
    """
    from runners.models.transformers_models import Transformer

    kept: list[Any] = []

    def forward(self: Any, inputs: Any) -> torch.Tensor:
        outputs = self.module(**inputs, use_cache=True)
        kept[:] = [outputs]
        logits: torch.Tensor = outputs.logits
        return logits

    def loss(self: Any, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return output.sum()

    with replaced(Transformer, forward=forward, loss=loss):
        yield
    kept.clear()

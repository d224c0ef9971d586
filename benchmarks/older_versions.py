"""Rules for the behaviour of library versions older than the installed ones.

Each rule is a context manager that is named after the behaviour and names the source that it was read from. None has a
number that was fitted to the figures that it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from runners.simulation.torch_replaced import replaced

Version = tuple[int, ...]
Rule = Callable[[], AbstractContextManager[None]]

aten = torch.ops.aten


@contextmanager
def attention_replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace an attention function of transformers. No mask is made for it: it makes its own if it needs one."""
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
    """The rules for a row's version of transformers; none for a row that used another library."""
    if transformers is None:
        return []
    generates = row["workload"] in ("generate", "forward")
    attention = row["attention"].partition(" ")[0]
    applicable: list[tuple[bool, Rule]] = [
        (attention == "flash_attention_2" and transformers < (4, 48), keys_repeated_for_flash),
        (attention == "flash_attention_2" and transformers >= (4, 48), keys_grouped_for_flash),
        (attention == "eager" and model_type == "llama", eager_softmax_in_one_kernel),
        (generates and transformers < (4, 45), whole_prompt_in_float32),
        (generates and transformers < (4, 42), cache_as_tuples),
        (transformers < (4, 54), first_keys_not_copied),
        (model_type in ("llama", "qwen2") and transformers < (4, 39), rope_tables_in_every_layer),
        (row["workload"].startswith("train") and transformers < (4, 49), shifted_logits_copied),
        (row["workload"].startswith("train") and "accelerate" in row["versions"], loss_within_the_forward_pass),
    ]
    return [rule for applies, rule in applicable if applies]


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
    """The package flash-attn got keys and values repeated for each head of the query, by repeat_kv.

    transformers v4.38.2 and v4.46.0, models/qwen2/modeling_qwen2.py, Qwen2FlashAttention2.forward. The package's
    kernel is that of torch's flash attention, which stands for it here.
    """

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return _flash(module, query, key, value, repeats=True)

    return attention_replaced("sdpa", attend)


def keys_grouped_for_flash() -> AbstractContextManager[None]:
    """The package flash-attn got keys and values without repetition: transformers v4.48.1,
    integrations/flash_attention.py. Its kernel is that of torch's flash attention, which stands for it here."""

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return _flash(module, query, key, value, repeats=False)

    return attention_replaced("sdpa", attend)


def eager_softmax_in_one_kernel() -> AbstractContextManager[None]:
    """Scores, scaling, mask, softmax in float32 and the conversion back: transformers v4.35.2,
    models/llama/modeling_llama.py, LlamaAttention.forward. On CUDA a softmax from float16 to float32 is one kernel
    (aten/src/ATen/native/SoftMax.cpp, softmax with a dtype); tensors without data are converted first.
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
    """Apply a change to each network and its module when they are built."""
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
    """The prefill computed logits of every token, in the model's dtype and then in float32: `logits = logits.float()`
    in forward of LlamaForCausalLM (v4.35.2) and Qwen2ForCausalLM (v4.38.2). They stay alive while the next token is
    computed: generation/utils.py, greedy_search, where `outputs` is one variable.
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
def loss_within_the_forward_pass() -> Iterator[None]:
    """The model computed the loss from labels within its forward pass, so that the hidden states of the last layer stay
    alive: transformers' Trainer, compute_loss; v4.48.1, MistralForCausalLM.forward, hidden_states."""
    from runners.models.transformers_models import Transformer

    loss = Transformer.loss
    kept: list[torch.Tensor] = []

    def hold(network: Any, module: Any) -> None:
        def held(head: Any, args: Any, output: Any) -> None:
            kept[:] = args

        module.lm_head.register_forward_hook(held)

    def loss_and_release(self: Any, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        made = loss(self, output, targets)
        kept.clear()
        return made

    with built_with(hold), replaced(Transformer, loss=loss_and_release):
        yield


@contextmanager
def shifted_logits_copied() -> Iterator[None]:
    """The loss of a decoder copied shifted logits, `logits[..., :-1, :].contiguous()`, instead of shifting the labels:
    transformers v4.48.1, loss/loss_utils.py, ForCausalLMLoss."""
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
def first_keys_not_copied() -> Iterator[None]:
    """The cache of a layer began with the prompt's keys and values themselves, without a copy: v4.35.2, LlamaAttention;
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
    """A pass got the tuples of all layers and returned new ones, so that both exist at its end: the old ones stay in
    `model_inputs` until the next pass: v4.35.2, generation/utils.py, greedy_search; v4.38.2 the same, through
    DynamicCache.from_legacy_cache and back. A forward pass kept and returned them by default."""
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
            old[0].remove()

    with (
        replaced(Transformer, forward=forward_with_a_cache),
        replaced(generate.Generation, _logits=logits_with_the_old),
    ):
        yield
    old.clear()


class _Returned:
    """Keeps the output of a module."""

    def __init__(self, module: nn.Module) -> None:
        self._hook = module.register_forward_hook(self._hold)
        self.output: Any = None

    def _hold(self, module: nn.Module, args: Any, output: Any) -> None:
        self.output = output

    def remove(self) -> None:
        self._hook.remove()


# --- positions --------------------------------------------------------------------------------------------------------


def rope_tables_in_every_layer() -> AbstractContextManager[None]:
    """Each layer had cosines and sines of all positions, in the model's dtype: v4.35.2, LlamaRotaryEmbedding;
    v4.38.2, Qwen2RotaryEmbedding (cos_cached, sin_cached)."""

    def add(network: Any, module: Any) -> None:
        config = module.config
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        positions, layers = config.max_position_embeddings, config.num_hidden_layers
        module.tables = [
            torch.empty(positions, head, dtype=network.dtype, device=network.device) for _ in range(2 * layers)
        ]

    return built_with(add)


# --- GPT-NeoX before the common attention of transformers -------------------------------------------------------------


@contextmanager
def gpt_neox_with_float32_positions() -> Iterator[None]:
    """GPT-NeoX of transformers v4.43.4, models/gpt_neox/modeling_gpt_neox.py.

    GPTNeoXRotaryEmbedding kept its tables in float32, so that queries and keys became float32. sdpa cast them back,
    eager computed scores, mask and softmax in float32. Each layer had tables, and a mask of all positions as a buffer.
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


# --- scripts ----------------------------------------------------------------------------------------------------------


@contextmanager
def sum_of_logits_as_loss() -> Iterator[None]:
    """`outputs = model(**inputs); loss = outputs.logits.sum(); loss.backward()` in a loop, without an optimizer: the
    outputs of a step, with the keys and values that it returned by default, live until those of the next step.

    The script is quoted by the pull requests for sdpa attention, as in
    https://github.com/huggingface/transformers/pull/32092.
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

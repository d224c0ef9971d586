"""Prompts of a batch for a decoder: rows of equal length, padded rows, or one packed row.

Each class makes the keyword arguments of a forward pass and selects the logits of the next tokens from its output. The
prefill reads positions [first, end) of each row in a pass: all of them at once, or a chunk.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from runners.models import transformers_caches


class Prompts(ABC):
    """`lengths`: tokens of each prompt. A forward pass reads `rows` rows; step 0 is the prefill."""

    def __init__(self, ids: torch.Tensor, lengths: Sequence[int]) -> None:
        self.ids, self.lengths = ids, list(lengths)  # (sequences, context), prompts aligned right
        self.rows = len(self.lengths)

    @abstractmethod
    def positions(self, step: int) -> int:
        """Positions of a row in the cache after `step`."""

    def chunks(self, tokens: int | None) -> list[tuple[int, int]]:
        """The positions of each pass of the prefill, `tokens` of each row at a time; None: all at once."""
        end = self.positions(0)
        return [(first, min(first + (tokens or end), end)) for first in range(0, end, tokens or end)]

    def groups(self, tokens: int | None) -> list[tuple[int, int]]:
        """The rows that a pass reads, if it reads at most `tokens` of whole rows: one row at least; None: all rows."""
        count = self.rows if tokens is None else max(1, min(self.rows, tokens // self.positions(0)))
        return [(first, min(first + count, self.rows)) for first in range(0, self.rows, count)]

    @abstractmethod
    def prefill(self, first: int, end: int, width: int | None) -> dict[str, torch.Tensor]:
        """Arguments of a pass of the prefill. `width`: positions that the cache returns, if not those stored so far."""

    @abstractmethod
    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        """Arguments of the pass that reads `tokens` (sequences,), chosen in the previous step."""

    def last(self, first: int, end: int) -> int | torch.Tensor:
        """The value of `logits_to_keep` that selects the last token of each prompt that ends in this pass."""
        return 1

    def of_prompts(self, logits: torch.Tensor, first: int, end: int) -> torch.Tensor | None:
        """Logits (prompts, vocabulary) of the last tokens of the prompts that end in a pass of the prefill.

        `logits`: the pass's own, of all its tokens or of those that `last` selects. None if no prompt ends in it.
        """
        return logits[:, -1] if end == self.positions(0) else None

    def of_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, -1]

    def _ids(self, first: int, end: int) -> torch.Tensor:
        """The tokens [first, end) of each row; the tensor itself if those are all."""
        return self.ids if (first, end) == (0, self.ids.shape[1]) else self.ids[:, first:end]


class Unpadded(Prompts):
    """Prompts of one length, a row each. Other inputs, such as images, are read in the prefill only."""

    def __init__(self, ids: torch.Tensor, lengths: Sequence[int], other_inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__(ids, lengths)
        self.other_inputs = dict(other_inputs)

    def positions(self, step: int) -> int:
        return self.ids.shape[1] + step

    def prefill(self, first: int, end: int, width: int | None) -> dict[str, torch.Tensor]:
        return {"input_ids": self._ids(first, end), **self.other_inputs}

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return {"input_ids": tokens[:, None]}


class Padded(Unpadded):
    """Rows of the longest prompt's length, with masked padding before each prompt."""

    def __init__(
        self,
        ids: torch.Tensor,
        lengths: Sequence[int],
        other_inputs: Mapping[str, torch.Tensor],
        new_tokens: int,
        with_positions: bool,
    ) -> None:
        super().__init__(ids, lengths, other_inputs)
        self._with_positions = with_positions
        self._length = torch.tensor(self.lengths, device=ids.device)[:, None]
        padding = ids.shape[1] - self._length
        position_ids = torch.arange(ids.shape[1] + new_tokens, device=ids.device)
        self._mask = (position_ids >= padding).long()  # up to the last token; a pass gets a slice
        self._position_ids = (position_ids[: ids.shape[1]] - padding).clamp(min=0)

    def prefill(self, first: int, end: int, width: int | None) -> dict[str, torch.Tensor]:
        position_ids = self._position_ids[:, first:end]
        return {**self._pass_inputs(self._ids(first, end), end, position_ids), **self.other_inputs}

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return self._pass_inputs(tokens[:, None], self.positions(step), self._length + step - 1)

    def _pass_inputs(self, ids: torch.Tensor, end: int, position_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        given = {"input_ids": ids, "attention_mask": self._mask[:, :end]}
        return {**given, "position_ids": position_ids} if self._with_positions else given


class Packed(Prompts):
    """All prompts in one row, followed by the new tokens of each step.

    A mask (1, 1, queries, keys) separates the sequences; sdpa and eager attention offer no other way.
    """

    def __init__(
        self, ids: torch.Tensor, lengths: Sequence[int], new_tokens: int, additive: torch.dtype | None
    ) -> None:
        """`additive`: dtype of an additive mask (eager attention); None for a boolean mask."""
        row = torch.cat([prompt[len(prompt) - length :] for prompt, length in zip(ids, lengths, strict=True)])
        super().__init__(row[None], lengths)
        self.rows, self._additive = 1, additive
        length, device = torch.tensor(self.lengths, device=ids.device), ids.device
        prompts = torch.arange(len(lengths), device=device)
        self._owner = torch.cat([prompts.repeat_interleave(length), prompts.repeat(new_tokens)])
        self._length = length
        self._ends = [end - 1 for end in accumulate(self.lengths)]
        self._position_ids = torch.cat([torch.arange(each, device=device) for each in lengths])[None]

    def positions(self, step: int) -> int:
        return self.ids.shape[1] + step * len(self.lengths)

    def prefill(self, first: int, end: int, width: int | None) -> dict[str, torch.Tensor]:
        return self._pass_inputs(self._ids(first, end), end, self._position_ids[:, first:end], width)

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return self._pass_inputs(tokens[None], self.positions(step), (self._length + step - 1)[None], width)

    def last(self, first: int, end: int) -> int | torch.Tensor:
        ending = self._ending(first, end)
        return torch.tensor(ending, device=self.ids.device) if ending else 1

    def of_prompts(self, logits: torch.Tensor, first: int, end: int) -> torch.Tensor | None:
        ending = self._ending(first, end)
        if not ending:
            return None
        return logits[0] if logits.shape[1] == len(ending) else logits[0, ending]

    def of_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0]

    def _ending(self, first: int, end: int) -> list[int]:
        """The places in this pass of the tokens that end a prompt."""
        return [place - first for place in self._ends if first <= place < end]

    def _pass_inputs(
        self, ids: torch.Tensor, end: int, position_ids: torch.Tensor, width: int | None
    ) -> dict[str, torch.Tensor]:
        queries = torch.arange(end - ids.shape[1], end, device=ids.device)
        keys = torch.arange(width or end, device=ids.device)
        seen = self._owner[queries][:, None] == self._owner[: len(keys)]
        seen &= keys <= queries[:, None]
        mask = seen if self._additive is None else _additive_mask(seen, self._additive)
        return {"input_ids": ids, "attention_mask": mask[None, None], "position_ids": position_ids}


def prompts(inputs: Mapping[str, torch.Tensor], module: Any, workload: Mapping[str, Any]) -> Prompts:
    """Prompts from the inputs of one forward pass, with their own padding or cut to different lengths."""
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(1).tolist()
    if workload["prompt_lengths"] > 1 and min(lengths) == ids.shape[1]:
        lengths = [prompt_length(row % workload["prompt_lengths"], ids.shape[1]) for row in range(len(lengths))]
    if workload["packing"] == "packed":
        eager = module.config._attn_implementation == "eager"
        return Packed(ids, lengths, workload["new_tokens"], module.dtype if eager else None)
    other_inputs = {name: tensor for name, tensor in inputs.items() if name not in ("input_ids", "attention_mask")}
    if min(lengths) == ids.shape[1]:
        return Unpadded(ids, lengths, other_inputs)
    return Padded(ids, lengths, other_inputs, workload["new_tokens"], takes_positions(module))


def prompt_length(index: int, context: int) -> int:
    """Tokens of prompt `index`: 1, 3/4, 7/8, 5/8, 15/16 ... of the context (van der Corput's sequence).

    The length does not depend on the number of sequences.
    """
    digits = f"{index:b}"
    less: int = context * int(digits[::-1], 2) // 2 ** (len(digits) + 1)
    return context - less


def in_chunks(values: Mapping[str, Any]) -> bool:
    """Whether the prefill takes several passes. Images make a prompt longer than the context, and a packed row is."""
    workload = values["workload"]
    chunk: int | None = workload["prefill_chunk"]
    return chunk is not None and (chunk < values["context"] or workload["packing"] == "packed")


def takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def prepare(values: Mapping[str, Any], model: Any, config: Any) -> None:
    """Raise ValueError for a workload that the model does not support."""
    workload, name = values["workload"], values["model"]["name"]
    takes = inspect.signature(model.forward).parameters
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"workload=generate: {name} has an encoder; only decoders are supported")
    whole = {"prompt_lengths": 1, "packing": "padded", "prefill_chunk": None}
    cut = [key for key, value in whole.items() if workload[key] != value]
    if "pixel_values" in takes and cut:
        key = cut[0]
        raise ValueError(f"workload.{key}={workload[key]}: prompts of {name} contain images and cannot be cut")
    if workload["logits"] == "last" and "logits_to_keep" not in takes:
        raise ValueError(f"workload.logits=last: {name} cannot compute the last logits alone; use workload.logits=all")
    if workload["packing"] == "packed":
        if not takes_positions(model) or not transformers_caches.is_full_attention(config):
            raise ValueError(f"workload.packing=packed: not every layer of {name} supports sequence boundaries")
        if values.get("attention") == "flash_attention_2":
            raise ValueError("workload.packing=packed: flash_attention_2 with a cache takes no mask for a packed row")


def end_tokens(module: Any) -> torch.Tensor:
    """End-of-sequence tokens (n,) of the model's configurations that are in its vocabulary; n can be 0."""
    configured = [getattr(config, "eos_token_id", None) for config in (module.config, module.generation_config)]
    ends = {
        end for each in configured for end in (each if isinstance(each, list | tuple) else [each]) if end is not None
    }
    size = module.config.get_text_config(decoder=True).vocab_size
    return torch.tensor(sorted(end for end in ends if end < size), dtype=torch.long)


def _additive_mask(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)

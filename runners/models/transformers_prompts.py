"""Prompts of a batch for a decoder: rows of equal length, padded rows, or one packed row.

Each class makes the keyword arguments of a forward pass and selects the logits of the next tokens from its output.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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

    @abstractmethod
    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        """Arguments of the prefill. `width`: positions that the cache returns, if not those stored so far."""

    @abstractmethod
    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        """Arguments of the pass that reads `tokens` (sequences,), chosen in the previous step."""

    def last(self) -> int | torch.Tensor:
        """The value of `logits_to_keep` that selects the last token of each prompt."""
        return 1

    def of_prompts(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (sequences, vocabulary) of the prompts' last tokens, from the prefill's logits (all or last only)."""
        return logits[:, -1]

    def of_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, -1]


class Unpadded(Prompts):
    """Prompts of one length, a row each. Other inputs, such as images, are read in the prefill only."""

    def __init__(self, ids: torch.Tensor, lengths: Sequence[int], other_inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__(ids, lengths)
        self.other_inputs = dict(other_inputs)

    def positions(self, step: int) -> int:
        return self.ids.shape[1] + step

    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids, **self.other_inputs}

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

    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        return {**self._pass_inputs(self.ids, 0, self._position_ids), **self.other_inputs}

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return self._pass_inputs(tokens[:, None], step, self._length + step - 1)

    def _pass_inputs(self, ids: torch.Tensor, step: int, position_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        given = {"input_ids": ids, "attention_mask": self._mask[:, : self.positions(step)]}
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
        self._length, self._ends = length, length.cumsum(0) - 1
        self._position_ids = torch.cat([torch.arange(each, device=device) for each in lengths])[None]

    def positions(self, step: int) -> int:
        return self.ids.shape[1] + step * len(self.lengths)

    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        return self._pass_inputs(self.ids, 0, self._position_ids, width)

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return self._pass_inputs(tokens[None], step, (self._length + step - 1)[None], width)

    def last(self) -> int | torch.Tensor:
        return self._ends

    def of_prompts(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0] if logits.shape[1] == len(self.lengths) else logits[0, self._ends]

    def of_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0]

    def _pass_inputs(
        self, ids: torch.Tensor, step: int, position_ids: torch.Tensor, width: int | None
    ) -> dict[str, torch.Tensor]:
        end = self.positions(step)
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
    if workload["concurrency"] > 1 and min(lengths) == ids.shape[1]:
        lengths = [prompt_length(row % workload["concurrency"], ids.shape[1]) for row in range(len(lengths))]
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


def takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def prepare(values: Mapping[str, Any], model: Any, config: Any) -> None:
    """Raise ValueError for a workload that the model does not support."""
    workload, name = values["workload"], values["model"]["name"]
    takes = inspect.signature(model.forward).parameters
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"workload=generate: {name} has an encoder; only decoders are supported")
    if "pixel_values" in takes and (workload["concurrency"] > 1 or workload["packing"] == "packed"):
        key = "concurrency" if workload["concurrency"] > 1 else "packing"
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

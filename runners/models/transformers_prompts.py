"""The prompts that a decoder is given at once, and the token after them: as rows of one length, padded, or packed.

Each gives the keyword arguments of a pass, and finds in its logits those that the next tokens are chosen by.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from runners.models import transformers_caches


class Prompts(ABC):
    """`lengths`: the tokens of each prompt. A pass of the model sees `rows` rows; step 0 is the prefill."""

    def __init__(self, ids: torch.Tensor, lengths: Sequence[int]) -> None:
        self.ids, self.lengths = ids, list(lengths)  # a row ends where its prompt does
        self.rows = len(self.lengths)

    @abstractmethod
    def positions(self, step: int) -> int:
        """Positions of a row that are in the cache after this step."""

    @abstractmethod
    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        """`width`: positions that the cache gives back at once, where that is not what it was given."""

    @abstractmethod
    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        """The pass that reads the tokens [sequences] which the step before chose."""

    def last(self) -> int | torch.Tensor:
        """What `logits_to_keep` is to be for the logits of each prompt's last token alone."""
        return 1

    def of_prompts(self, logits: torch.Tensor) -> torch.Tensor:
        """[sequences, vocabulary], out of the prefill's logits, whole or of the last tokens."""
        return logits[:, -1]

    def of_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[:, -1]


class Even(Prompts):
    """Prompts of one length, a row each, and what is read beside them: images, in the prefill alone."""

    def __init__(self, ids: torch.Tensor, lengths: Sequence[int], beside: Mapping[str, torch.Tensor]) -> None:
        super().__init__(ids, lengths)
        self.beside = dict(beside)

    def positions(self, step: int) -> int:
        return self.ids.shape[1] + step

    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids, **self.beside}

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return {"input_ids": tokens[:, None]}


class Padded(Even):
    """Rows as long as the longest: padding, which a mask keeps from being seen, comes before the prompt."""

    def __init__(
        self,
        ids: torch.Tensor,
        lengths: Sequence[int],
        beside: Mapping[str, torch.Tensor],
        new_tokens: int,
        with_positions: bool,
    ) -> None:
        super().__init__(ids, lengths, beside)
        self._with_positions = with_positions
        self._length = torch.tensor(self.lengths, device=ids.device)[:, None]
        padding = ids.shape[1] - self._length
        at = torch.arange(ids.shape[1] + new_tokens, device=ids.device)
        self._mask = (at >= padding).long()  # for the last token too; a pass is given what it can see
        self._at = (at[: ids.shape[1]] - padding).clamp(min=0)

    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        return {**self._seen(self.ids, 0, self._at), **self.beside}

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return self._seen(tokens[:, None], step, self._length + step - 1)

    def _seen(self, ids: torch.Tensor, step: int, at: torch.Tensor) -> dict[str, torch.Tensor]:
        given = {"input_ids": ids, "attention_mask": self._mask[:, : self.positions(step)]}
        return {**given, "position_ids": at} if self._with_positions else given


class Packed(Prompts):
    """One row of all prompts, one after the other, and then of the new tokens, step by step.

    A mask of the row's length squared keeps each from seeing the others: sdpa and eager attention know no other way.
    """

    def __init__(
        self, ids: torch.Tensor, lengths: Sequence[int], new_tokens: int, additive: torch.dtype | None
    ) -> None:
        """`additive`: the dtype of a mask that is added, as eager attention does; None for one that says yes or no."""
        row = torch.cat([prompt[len(prompt) - length :] for prompt, length in zip(ids, lengths, strict=True)])
        super().__init__(row[None], lengths)
        self.rows, self._additive = 1, additive
        length, device = torch.tensor(self.lengths, device=ids.device), ids.device
        prompts = torch.arange(len(lengths), device=device)
        self._owner = torch.cat([prompts.repeat_interleave(length), prompts.repeat(new_tokens)])
        self._length, self._ends = length, length.cumsum(0) - 1
        self._at = torch.cat([torch.arange(each, device=device) for each in lengths])[None]

    def positions(self, step: int) -> int:
        return self.ids.shape[1] + step * len(self.lengths)

    def prefill(self, width: int | None) -> dict[str, torch.Tensor]:
        return self._seen(self.ids, 0, self._at, width)

    def decode(self, tokens: torch.Tensor, step: int, width: int | None) -> dict[str, torch.Tensor]:
        return self._seen(tokens[None], step, (self._length + step - 1)[None], width)

    def last(self) -> int | torch.Tensor:
        return self._ends

    def of_prompts(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0] if logits.shape[1] == len(self.lengths) else logits[0, self._ends]

    def of_tokens(self, logits: torch.Tensor) -> torch.Tensor:
        return logits[0]

    def _seen(self, ids: torch.Tensor, step: int, at: torch.Tensor, width: int | None) -> dict[str, torch.Tensor]:
        end = self.positions(step)
        queries = torch.arange(end - ids.shape[1], end, device=ids.device)
        keys = torch.arange(width or end, device=ids.device)
        seen = self._owner[queries][:, None] == self._owner[: len(keys)]
        seen &= keys <= queries[:, None]
        mask = seen if self._additive is None else _added(seen, self._additive)
        return {"input_ids": ids, "attention_mask": mask[None, None], "position_ids": at}


def prompts(inputs: Mapping[str, torch.Tensor], module: Any, workload: Mapping[str, Any]) -> Prompts:
    """Of what a network reads in one pass, with the padding before each that it has, or cut to lengths of their own."""
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(1).tolist()
    if workload["concurrency"] > 1 and min(lengths) == ids.shape[1]:
        lengths = [length_of(row % workload["concurrency"], ids.shape[1]) for row in range(len(lengths))]
    if workload["packing"] == "packed":
        eager = module.config._attn_implementation == "eager"
        return Packed(ids, lengths, workload["new_tokens"], module.dtype if eager else None)
    beside = {name: tensor for name, tensor in inputs.items() if name not in ("input_ids", "attention_mask")}
    if min(lengths) == ids.shape[1]:
        return Even(ids, lengths, beside)
    return Padded(ids, lengths, beside, workload["new_tokens"], takes_positions(module))


def length_of(index: int, context: int) -> int:
    """1, 3/4, 7/8, 5/8, 15/16 ... of the context, for the sequences 0, 1, 2 ...

    Each halves a gap that is left (van der Corput's sequence): more sequences leave the first ones as they are.
    """
    digits = f"{index:b}"
    less: int = context * int(digits[::-1], 2) // 2 ** (len(digits) + 1)
    return context - less


def takes_positions(model: Any) -> bool:
    return "position_ids" in inspect.signature(model.forward).parameters


def prepare(values: Mapping[str, Any], model: Any, config: Any) -> None:
    """Refuse what a model cannot be asked."""
    workload, name = values["workload"], values["model"]["name"]
    takes = inspect.signature(model.forward).parameters
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"workload=generate: {name} has an encoder, and what is measured here are decoders alone")
    if "pixel_values" in takes and (workload["concurrency"] > 1 or workload["packing"] == "packed"):
        key = "concurrency" if workload["concurrency"] > 1 else "packing"
        raise ValueError(f"workload.{key}={workload[key]}: prompts of {name} have images in them, and stay whole")
    if workload["logits"] == "last" and "logits_to_keep" not in takes:
        raise ValueError(f"workload.logits=last: {name} cannot leave out the other logits; take workload.logits=all")
    if workload["packing"] == "packed":
        if not takes_positions(model) or not transformers_caches.is_full_attention(config):
            raise ValueError(f"workload.packing=packed: not every layer of {name} can be told where a sequence begins")
        if values.get("attention") == "flash_attention_2":
            raise ValueError("workload.packing=packed: with a cache, flash_attention_2 takes no mask of the packed row")


def ends_of_sequence(module: Any) -> torch.Tensor:
    """The tokens that the model's configurations call an end: there may be none, or some beyond its vocabulary."""
    told = [getattr(config, "eos_token_id", None) for config in (module.config, module.generation_config)]
    ends = {end for each in told for end in (each if isinstance(each, list | tuple) else [each]) if end is not None}
    size = module.config.get_text_config(decoder=True).vocab_size
    return torch.tensor(sorted(end for end in ends if end < size), dtype=torch.long)


def _added(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)

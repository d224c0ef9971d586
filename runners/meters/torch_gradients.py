"""Gradients that autograd accumulates in place, which a dispatch mode would have it add to a new tensor.

torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace: nothing but the buffer refers to the first gradient. The
operator alone does not tell such an addition from one in the formula of a gradient. An operand that was made while the
same node of the graph ran is the formula's, unless the node has several gradients for one place.
"""

from __future__ import annotations

from typing import Any

import torch

SOLE_REFERENCES = (4, 2)  # use counts of a tensor and its storage that autograd alone holds, with those of this call


class GradientSums:
    """What made each storage of a backward pass, by the address of its StorageImpl."""

    def __init__(self) -> None:
        self._made_in: dict[int, int] = {}

    def made(self, key: int) -> None:
        """Report a new storage."""
        if torch._C._current_graph_task_id() != -1 and (node := torch._C._current_autograd_node()) is not None:
            self._made_in[key] = node._sequence_nr()

    def died(self, key: int) -> None:
        self._made_in.pop(key, None)

    def is_in_place(self, old: torch.Tensor, new: Any) -> bool:
        """Whether aten.add.Tensor of these adds to `old`. For a dispatch mode that was called with these arguments."""
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or not isinstance(new, torch.Tensor):
            return False
        if old.shape != new.shape or old.dtype != new.dtype or old.device != new.device:
            return False
        if old.layout is not torch.strided or new.layout is not torch.strided or not hasattr(old, "_use_count"):
            return False
        storage = old.untyped_storage()
        alone = (old._use_count(), torch._C._storage_Use_Count(storage._cdata)) == SOLE_REFERENCES
        return alone and storage.nbytes() == old.nbytes and not self._is_of_formula(storage._cdata)

    def _is_of_formula(self, key: int) -> bool:
        node = torch._C._current_autograd_node()
        if node is None or self._made_in.get(key) != node._sequence_nr():
            return False
        places = [place for place in node.next_functions if place[0] is not None]
        return len(set(places)) == len(places)

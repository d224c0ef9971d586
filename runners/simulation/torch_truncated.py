"""torch.nn.init.trunc_normal_ of PyTorch versions that draw until all numbers are within the bounds.

How often that is depends on numbers that tensors without data do not have. The memory does not, from the second round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import init

from runners.simulation.torch_draws import Draws

ROUNDS = 2
LEAST_SHARE = 0.3  # of normal numbers within the bounds, below which uniform ones are drawn and some accepted
NAME = "_no_grad_trunc_normal_"


def draws_in_rounds() -> bool:
    function: Any = getattr(init, NAME, None)
    return function is not None and "any" in function.__code__.co_names


def truncated(is_here: Callable[[Any], bool], draws: Draws | None) -> Callable[..., Tensor]:
    """The function for tensors without data that stand for a device's, in place of PyTorch's."""
    given: Callable[..., Tensor] = getattr(init, NAME)

    def trunc_normal(
        tensor: Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
    ) -> Tensor:
        if not is_here(tensor):
            return given(tensor, mean, std, a, b, generator=generator)
        with torch.no_grad():
            if draws is None:
                return _in_rounds(tensor, _share(mean, std, a, b))
            with draws.for_all_rounds(tensor, lambda real, by: given(real, mean, std, a, b, generator=by), generator):
                return _in_rounds(tensor, _share(mean, std, a, b))

    return trunc_normal


def _share(mean: float, std: float, a: float, b: float) -> float:
    return (math.erf((b - mean) / std / math.sqrt(2)) - math.erf((a - mean) / std / math.sqrt(2))) / 2


# torch/nn/init.py, _no_grad_trunc_normal_
def _in_rounds(tensor: Tensor, share: float) -> Tensor:
    """The tensors that it makes in the first rounds."""
    if share > LEAST_SHARE:
        result = tensor.normal_()
        for _ in range(ROUNDS):
            outside = (result < 0) | (result > 0)
            outside.any()
            result = torch.where(outside, torch.empty_like(result).normal_(), result)
        outside = (result < 0) | (result > 0)
        outside.any()
        return tensor.copy_(result)
    candidates, accepted = torch.empty_like(tensor), torch.empty_like(tensor)
    pending = accepted.uniform_().log_().gt(candidates.copy_(tensor.uniform_()))
    result = tensor
    for _ in range(ROUNDS):
        result = torch.where(pending, candidates.uniform_(), result)
        pending = torch.where(pending, accepted.uniform_().log_().gt(candidates), pending)
        pending.any()
    return tensor.copy_(result)

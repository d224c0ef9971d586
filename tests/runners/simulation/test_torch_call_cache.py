"""Operators whose results are known without computing shapes again, and those that have to run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runners.simulation.torch_device_rules import CpuRules
from runners.simulation.torch_tracer import MetaTracer

aten = torch.ops.aten


class Counting(MetaTracer):
    """Counts the operators that torch computes the shapes of."""

    def __init__(self) -> None:
        super().__init__(CpuRules())
        self.ran: list[Any] = []

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.ran.append(func)
        return super()._call(func, args, kwargs)


def tensors(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.empty(size, dtype=dtype, device="meta") for size in sizes]


def test_an_optimizers_update_of_lists_in_place_runs_no_operator_and_takes_no_memory() -> None:
    tracer = Counting()
    with tracer.around_workload():
        parameters, means, squares = tensors(4, 8), tensors(4, 8), tensors(4, 8)
        before, tracer.ran = len(tracer.events), []
        torch._foreach_lerp_(means, parameters, 0.1)
        torch._foreach_addcmul_(squares, means, means, 0.5)
        torch._foreach_addcdiv_(parameters, means, squares, [0.1, 0.2])
        torch._foreach_zero_(means)
        assert not tracer.ran
        assert len(tracer.events) == before
        torch._foreach_sqrt(squares)
    assert tracer.ran == [aten._foreach_sqrt.default]


@pytest.mark.parametrize(
    ("changed", "by"),
    [
        (tensors(4), tensors(5)),
        (tensors(4), tensors(4, 4)),
        (tensors(4, dtype=torch.int64), tensors(4)),
    ],
)
def test_lists_that_do_not_fit_together_are_refused_as_torch_refuses_them(changed: Any, by: Any) -> None:
    with pytest.raises(RuntimeError) as expected:
        torch._foreach_add_(changed, by)
    with pytest.raises(RuntimeError) as raised, MetaTracer(CpuRules()).around_workload():
        torch._foreach_add_(changed, by)
    assert str(raised.value) == str(expected.value)


def test_a_list_of_numbers_that_is_too_short_is_refused() -> None:
    with pytest.raises(RuntimeError), MetaTracer(CpuRules()).around_workload():
        torch._foreach_mul_(tensors(4, 4), [1.0])

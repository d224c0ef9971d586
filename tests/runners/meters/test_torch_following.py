"""A workload on tensors without data gives the bytes that the same workload takes with data."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from runners.meters.torch_device_rules import CpuRules
from runners.meters.torch_following import Follower
from runners.meters.torch_tensors import TensorFollower
from runners.phases import Unavailable

KIB = 2**10
Work = Callable[[str], Any]


def events(work: Work) -> list[int]:
    """What follows of a workload that is given the device it is to make its tensors on."""
    follower = Follower(CpuRules())
    with follower.around_workload():
        work("meta")
    return list(follower.events)


def peak(work: Work) -> int:
    sizes: list[int] = []
    changes = []
    for event in events(work):
        if event >= 0:
            sizes.append(event)
        changes.append(event if event >= 0 else -sizes[-event - 1])
    return max(accumulate(changes))


def real_peak(work: Work) -> int:
    with TensorFollower() as following:
        work("cpu")
    return following.peak


def test_an_operator_with_a_kernel_of_its_own_is_not_taken_apart() -> None:
    def work(device: str) -> None:
        x = torch.randn(256 * KIB, device=device, requires_grad=True)
        functional.silu(x).backward(torch.ones(256 * KIB, device=device))

    assert peak(work) == real_peak(work)

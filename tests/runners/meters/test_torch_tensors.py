"""Bytes of live tensors, against PyTorch's own counter and against arithmetic."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.profiler import ProfilerActivity, profile

from runners.meters.torch_tensors import TensorFollower

MIB = 2**20


def test_views_share_and_the_last_one_frees() -> None:
    with TensorFollower() as following:
        kept = torch.ones(MIB // 4)
        view = kept.view(-1)[1:]
        assert following.live == MIB
        del kept
        following.settle()
        assert following.live == MIB
        del view
        following.settle()
        assert (following.live, following.peak) == (0, MIB)


def test_storages_are_rounded_to_the_allocators_64_bytes() -> None:
    with TensorFollower() as following:
        kept = torch.ones(17)
        assert following.live == 128
        del kept


def test_a_storage_that_grows_is_counted_as_it_is() -> None:
    with TensorFollower() as following:
        kept = torch.ones(16)
        kept.resize_(MIB // 4)
        assert following.live == MIB


def test_it_agrees_with_pytorchs_own_counter_through_training() -> None:
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def work() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = torch.randn(64, 256)
        for _ in range(2):
            step(model, optimizer, inputs)

    work()  # what is made once and kept is not the counter's difference
    with TensorFollower() as following:
        work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    live = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert abs(following.peak - peak) < 0.02 * MIB


def test_it_brings_in_no_compiler() -> None:
    code = (
        "import sys, torch; from runners.meters.torch_tensors import TensorFollower\n"
        "with TensorFollower(): torch.ones(1)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_once_something_was_compiled_it_gives_no_number() -> None:
    import torch._dynamo

    with TensorFollower() as following:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(8))
        assert not following.valid
    torch._dynamo.reset()

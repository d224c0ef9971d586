"""Bytes of live tensors, against PyTorch's own counter and against arithmetic."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from runners.meters.torch_tensors import TensorTracker
from runners.threads import EnteredInThreads

MIB = 2**20


def test_views_share_a_storage_and_the_last_one_frees_it() -> None:
    with TensorTracker() as following:
        kept = torch.ones(MIB // 4)
        view = kept.view(-1)[1:]
        assert following.live == MIB
        del kept
        following.settle()
        assert following.live == MIB
        del view
        following.settle()
        assert (following.live, following.peak) == (0, MIB)


def refused(operation: Callable[[], Any], tracker: TensorTracker) -> tuple[int, int | None]:
    with pytest.raises(RuntimeError):
        operation()
    return tracker.refusals.count, tracker.refusals.take()[1]


def test_every_refused_allocation_of_an_operator_is_counted_once() -> None:
    terabytes = 2**43
    numbers = terabytes // 4
    with TensorTracker() as following:
        assert refused(lambda: torch.empty(terabytes, dtype=torch.uint8), following) == (1, terabytes)
        wide = torch.ones(1).expand(numbers)  # a view, of one number
        assert refused(lambda: wide + 1, following) == (2, terabytes)
        assert refused(lambda: wide + torch.ones(2), following) == (2, None)  # another error
        one = torch.ones(1, requires_grad=True)
        assert refused(lambda: one.expand(numbers)[0].backward(), following) == (3, terabytes)
        with torch.inference_mode():  # reshape copies inside matmul, an operator that is made of others
            columns = torch.ones(1).expand(2, numbers // 4, 2).transpose(0, 1)
            assert refused(lambda: torch.matmul(columns, torch.ones(2, 2)), following)[0] == 4


def test_storages_are_rounded_to_the_allocators_64_bytes() -> None:
    with TensorTracker() as following:
        kept = torch.ones(17)
        assert following.live == 128
        del kept


def test_a_storage_that_grows_is_counted_as_it_is() -> None:
    with TensorTracker() as following:
        kept = torch.ones(16)
        kept.resize_(MIB // 4)
        assert following.live == MIB


def test_the_tracker_agrees_with_pytorchs_own_counter_through_training() -> None:
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
    with TensorTracker() as following:
        work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    live = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert abs(following.peak - peak) < 0.02 * MIB


def test_tracking_imports_no_compiler() -> None:
    code = (
        "import sys, torch; from runners.meters.torch_tensors import TensorTracker\n"
        "with TensorTracker(): torch.ones(1)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_once_something_was_compiled_the_counter_is_invalid() -> None:
    import torch._dynamo

    with TensorTracker() as following:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(8))
        assert not following.valid
    torch._dynamo.reset()


class Quantised(torch.Tensor):
    """A tensor made of two others, as quantised weights are: four bytes an element to look at, one byte and a scale."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> Quantised:
        whole: Quantised = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)
        return whole

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.values_, self.scale = values, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values_", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        whole = args[0]
        if func is torch.ops.aten.detach.default:
            return cls(whole.values_.detach(), whole.scale.detach())
        plain = whole.values_.to(whole.scale.dtype) * whole.scale
        return func(plain, *args[1:], **(kwargs or {}))


def test_a_tensor_made_of_others_counts_its_parts_and_what_its_operators_make_of_them() -> None:
    with TensorTracker() as following:
        kept = torch.nn.Parameter(Quantised(torch.ones(MIB, dtype=torch.int8), torch.ones(1)), requires_grad=False)
        assert following.live == MIB + 64
        following.start_new_peak()
        total = kept.sum()
        following.settle()
        assert following.live == MIB + 64 + 64
        # The values in the scale's dtype, and times the scale, and their sum: what to() and * returned was seen.
        assert following.peak >= MIB + 64 + 2 * 4 * MIB
    assert total == MIB


def test_an_operator_with_a_python_kernel_is_tracked_inside() -> None:
    @torch.library.custom_op("sweeper_tests::mean_of_copies", mutates_args=())
    def mean_of_copies(x: torch.Tensor) -> torch.Tensor:
        copies = torch.stack([x, x])
        return copies.mean(0)

    given = torch.ones(MIB // 4)
    with TensorTracker() as following:
        result = mean_of_copies(given)
        following.settle()
        assert following.live == MIB
        assert following.peak == 3 * MIB
    meta = torch.ones(4, device="meta")
    mean_of_copies.register_fake(torch.empty_like)
    with TensorTracker() as following:
        assert mean_of_copies(meta).is_meta
        assert following.peak == 0
    assert torch.equal(result, given)


def test_in_inference_mode_the_tensors_inside_a_composite_operator_are_tracked() -> None:
    """A transposed matrix is copied by reshape within matmul, and given back as it ends."""
    left = torch.ones(2, 512, 512).transpose(0, 1)
    with torch.inference_mode(), TensorTracker() as following:
        torch.nn.functional.linear(left, torch.ones(7, 512))
    inside = following.peak
    with torch.no_grad(), TensorTracker() as following:
        torch.nn.functional.linear(left, torch.ones(7, 512))
    assert inside == following.peak > 2 * 512 * 512 * 4


def test_tensors_of_every_thread_count() -> None:
    """By threading, by _thread and by a pool: a checkpoint is read in threads, and the model keeps what they made."""
    tracker, held, done = TensorTracker(), [], threading.Event()

    def make() -> None:
        held.append(torch.ones(MIB // 4))
        done.set()

    with tracker, EnteredInThreads(tracker.pushed):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        done.clear()
        _thread.start_new_thread(make, ())
        assert done.wait(5)
        ThreadPoolExecutor(1).submit(make).result()
        assert tracker.live == 3 * MIB
        held.clear()
        tracker.settle()
        assert (tracker.live, tracker.peak) == (0, 3 * MIB)


def test_many_threads_at_once_lose_no_byte() -> None:
    tracker = TensorTracker()
    with tracker, EnteredInThreads(tracker.pushed), ThreadPoolExecutor(8) as pool:
        held = list(
            pool.map(lambda size: [torch.ones(size) for _ in range(50)][-1], [16 * (i % 9 + 1) for i in range(64)])
        )
        tracker.settle()
        assert tracker.live == sum(each.untyped_storage().nbytes() for each in held)

"""A workload traced without data takes the bytes that it takes with data."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from runners.phases import Unavailable
from runners.simulation.torch_device_rules import CpuRules
from runners.simulation.torch_tracer import MetaTracer
from tests.tracing import Work, counted, events, peak, real_peak

KIB = 2**10


def traced(work: Work) -> Any:
    """The return value of the work on tensors without data."""
    with MetaTracer(CpuRules()).around_workload():
        return work("meta")


# --- storages ---


def test_a_storage_counts_once_and_its_last_view_frees_it() -> None:
    def work(device: str) -> None:
        whole = torch.empty(KIB, device=device)
        view = whole.view(2, -1)[1]
        del whole
        torch.empty(16, device=device)
        del view

    assert events(work) == [4 * KIB, 64, -2, -1]


def test_storages_are_freed_in_the_order_in_which_they_die() -> None:
    def work(device: str) -> None:
        first, second, third = (torch.empty(size, device=device) for size in (16, 32, 48))
        del second
        del first
        fourth = torch.empty(64, device=device)
        del third, fourth

    assert events(work) == [64, 128, 192, -2, -1, 256, -3, -4]


def test_a_resized_storage_exists_twice_for_a_moment() -> None:
    def work(device: str) -> None:
        kept = torch.empty(16, device=device)
        kept.resize_(64)

    assert events(work) == [64, 256, -1, -2]


def test_an_operation_in_place_allocates_nothing() -> None:
    def work(device: str) -> None:
        kept = torch.empty(16, device=device)
        kept.add_(1).mul_(kept)[:4].zero_()
        kept[::2] = 1.0

    assert peak(work) == real_peak(work) == 128  # the second 64 bytes: the number that is assigned


def test_an_empty_storage_has_no_event() -> None:
    assert events(lambda device: torch.empty(0, device=device).clone()) == []


def test_an_operator_with_its_own_kernel_is_not_decomposed() -> None:
    def work(device: str) -> None:
        x = torch.randn(256 * KIB, device=device, requires_grad=True)
        functional.silu(x).backward(torch.ones(256 * KIB, device=device))

    assert peak(work) == real_peak(work)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_pass_takes_the_same_bytes_as_with_data(mode: Any) -> None:
    def work(device: str) -> None:
        with torch.device(device):
            layers = nn.Sequential(nn.Linear(64, 512), nn.LayerNorm(512), nn.GELU(), nn.Dropout(), nn.Linear(512, 64))
            # On a CPU inference mode hides the parts of composite operators from the tracker of real tensors.
            with mode() if device == "meta" or mode is not torch.inference_mode else torch.no_grad():
                y = layers(torch.ones(32, 64))
            if y.requires_grad:
                functional.cross_entropy(y, torch.zeros(32, dtype=torch.int64)).backward()

    assert peak(work) == real_peak(work)


def test_checkpointed_layers_take_the_same_bytes_as_with_data() -> None:
    def work(device: str) -> None:
        layers = [nn.Linear(128, 128, device=device) for _ in range(4)]
        x = torch.ones(64, 128, device=device)
        for layer in layers:
            x = checkpoint(lambda x, layer=layer: functional.silu(layer(x)).square(), x, use_reentrant=False)
        x.sum().backward()

    assert peak(work) == real_peak(work)


@pytest.mark.parametrize(
    "loss", ["mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss", "huber_loss"]
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_mean_keeps_the_storage_of_its_elements(loss: str, reduction: str) -> None:
    def work(device: str) -> int:
        given = torch.full((64, 64), 0.5, device=device)
        return int(getattr(functional, loss)(given, given, reduction=reduction).untyped_storage().nbytes())

    assert traced(work) == work("cpu")


@pytest.mark.parametrize(
    "used",
    [
        lambda h: (
            h.exp() * h.sin() * h.cos()
        ),  # nothing else refers to the first gradient, so the others are added in place
        lambda h: h + h.exp(),
        lambda h: h.t().exp() + h.t().sin(),
        lambda h: h.view(-1)[: 2**15].exp().sum() + h.t().exp().sum(),
        lambda h: (h[:64].exp() + h[64:128]).sum() + h.exp().sum(),
    ],
)
def test_gradients_accumulate_as_with_data(used: Any) -> None:
    def work(device: str) -> None:
        x = torch.ones(256, 256, device=device, requires_grad=True)
        used(x * 2).sum().backward()

    assert peak(work) == pytest.approx(counted(work), abs=256)


# --- values ---


def test_control_flow_that_depends_on_whole_numbers_is_traced() -> None:
    def work(device: str) -> list[int]:
        positions = torch.arange(6, device=device) + torch.tensor([2], device=device)
        taken = []
        if positions.max() == 7 and not (positions == 3).all() and bool((positions[1:] - positions[:-1] == 1).all()):
            taken.append(int(positions[-1]))
        mask = positions > 4
        mask[0] = True
        return [*taken, int(mask.sum()), *positions[mask].tolist()]

    assert traced(work) == work("cpu") == [7, 4, 2, 5, 6, 7]


@pytest.mark.parametrize(
    "operator",
    [
        lambda x, n: n.nonzero(),
        lambda x, n: x[n > 1],
        lambda x, n: x[n[:, None] > n],
        lambda x, n: x.masked_select(n > 1),
        lambda x, n: torch.repeat_interleave(x, n, dim=0),
        lambda x, n: n.unique(),
        lambda x, n: torch.where(n > 1)[0],
    ],
)
def test_a_shape_that_depends_on_whole_numbers_is_computed(operator: Any) -> None:
    def shape(device: str) -> list[torch.Size]:
        x = torch.zeros(4, 4, device=device)
        return [operator(x, torch.tensor(n, device=device)).shape for n in ([0, 1, 2, 3], [3, 3, 3, 0])]

    assert traced(shape) == shape("cpu")


def test_indexing_by_a_mask_takes_the_same_bytes_as_with_data_in_both_passes() -> None:
    def work(device: str) -> None:
        x = torch.zeros(64, 256, device=device, requires_grad=True)
        x[torch.arange(64, device=device) % 2 == 0].square().sum().backward()

    # The kernel turns a mask into positions, which are its own memory.
    assert peak(work) == pytest.approx(real_peak(work), abs=8 * 32 + 64)


@pytest.mark.parametrize(
    ("read", "operator"),
    [
        (lambda x: x.argmax().item(), "_local_scalar_dense"),
        (lambda x: torch.multinomial(x, 1).item(), "_local_scalar_dense"),
        (lambda x: x.repeat_interleave(x.long()), "repeat_interleave"),
    ],
)
def test_a_size_from_a_number_without_a_bound_is_unavailable_and_names_the_operator(read: Any, operator: str) -> None:
    with pytest.raises(Unavailable, match=rf"{operator}.* cannot be traced without data"):
        traced(lambda device: read(torch.rand(8, device=device) * 2))


def test_unavailable_is_raised_again_if_the_workload_catches_it() -> None:
    def work(device: str) -> None:
        with contextlib.suppress(Unavailable):
            torch.rand(8, device=device).argmax().item()

    with pytest.raises(Unavailable, match="_local_scalar_dense"):
        traced(work)


def test_whole_numbers_overwritten_at_random_are_unknown() -> None:
    def work(device: str) -> int:
        numbers = torch.arange(4096, device=device)
        numbers.random_(0, 9)
        return int(numbers.sum())

    with pytest.raises(Unavailable):
        traced(work)


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="this torch has no grouped_mm")
def test_grouped_products_are_traced_in_any_dtype() -> None:
    def work(device: str) -> None:
        x = torch.ones(64, 32, device=device, requires_grad=True)
        weights = torch.ones(4, 32, 48, device=device, requires_grad=True)
        ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device=device)
        functional.grouped_mm(x, weights, offs=ends).square().sum().backward()

    assert peak(work) == pytest.approx(real_peak(work), abs=256)

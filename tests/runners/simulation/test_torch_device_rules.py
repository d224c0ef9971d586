"""The rules of a CPU compared with a CPU, and those of CUDA with its sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.torch_device_rules import CpuRules, CudaRules
from runners.simulation.torch_tracer import MetaTracer
from tests.tracing import peak, real_peak, scripted

BFLOAT16 = torch.bfloat16


class Block(nn.Module):
    """Attention between a norm and a projection."""

    def __init__(self, device: str, heads: int = 4, groups: int = 4) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.norm = nn.LayerNorm(64, device=device)
        self.into = nn.Linear(64, 16 * (heads + 2 * groups), device=device)
        self.out = nn.Linear(16 * heads, 64, device=device)

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.into(self.norm(x)).view(batch, length, -1, 16).transpose(1, 2)
        query, key, value = parts.split([self.heads, self.groups, self.groups], 1)
        attended = functional.scaled_dot_product_attention(query, key, value, **options)
        y: torch.Tensor = x + self.out(attended.transpose(1, 2).flatten(2))
        return y


# --- attention ---


@pytest.mark.parametrize(
    "case",
    ["plain", "causal", "mask", "boolean mask", "grouped", "dropout", "scale", "mask with gradient", "flat"],
)
@pytest.mark.parametrize("trains", [True, False])
def test_attention_takes_the_bytes_of_the_kernel_that_a_cpu_chooses(case: str, trains: bool) -> None:
    def work(device: str) -> None:
        heads = 2 if case == "grouped" else 4
        query = torch.randn(2, 4, 128, 16, device=device, requires_grad=trains)
        key, value = (torch.randn(2, heads, 128, 16, device=device, requires_grad=trains) for _ in "kv")
        options: dict[str, Any] = {}
        if case == "causal":
            options["is_causal"] = True
        elif case == "mask":
            options["attn_mask"] = torch.zeros(2, 1, 128, 128, device=device)
        elif case == "boolean mask":
            options["attn_mask"] = torch.ones(128, 128, dtype=torch.bool, device=device).tril()
        elif case == "mask with gradient":
            options["attn_mask"] = torch.zeros(1, 4, 128, 128, device=device, requires_grad=trains)
        elif case == "grouped":
            options["enable_gqa"] = True
        elif case == "dropout":
            options["dropout_p"] = 0.5
        elif case == "scale":
            options["scale"] = 0.5
        elif case == "flat":
            query, key, value = (each.flatten(0, 1) for each in (query, key, value))
        attended = functional.scaled_dot_product_attention(query, key, value, **options)
        if trains:
            attended.sum().backward()

    assert peak(work) == pytest.approx(real_peak(work), abs=256)


def test_checkpointed_layers_recompute_with_the_same_attention_and_casts() -> None:
    def work(device: str) -> None:
        blocks = [Block(device) for _ in range(3)]
        x = torch.randn(2, 256, 64, device=device)
        with torch.autocast("cpu", dtype=BFLOAT16):
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False, is_causal=True)
        x.float().sum().backward()

    assert peak(work) == pytest.approx(real_peak(work), abs=1024)


# --- autocast ---


def in_autocast(*operators: Any, device_type: str = "cpu", rules: Any = None) -> list[torch.dtype]:
    """The dtypes of the operators' results on tensors without data."""
    with (rules or CpuRules()).applied(), torch.autocast(device_type, dtype=BFLOAT16):
        return [operator("meta").dtype for operator in operators]


def in_real_autocast(*operators: Any) -> list[torch.dtype]:
    """The same on a CPU with data."""
    with torch.autocast("cpu", dtype=BFLOAT16):
        return [operator("cpu").dtype for operator in operators]


def square(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(4, 4, device=device, dtype=dtype)


OPERATORS = {
    "matmul": lambda on: square(on) @ square(on),
    "einsum": lambda on: torch.einsum("ij,jk->ik", square(on), square(on)),
    "mv": lambda on: square(on).mv(square(on)[0]),
    "linear": lambda on: functional.linear(square(on), square(on)),
    "addmm": lambda on: torch.addmm(square(on), square(on), square(on)),
    "conv1d": lambda on: functional.conv1d(square(on)[None], square(on)[None]),
    "attention": lambda on: functional.scaled_dot_product_attention(*(square(on)[None, None] for _ in "qkv")),
    "a layer of attention": lambda on: nn.MultiheadAttention(4, 1, device=on)(*(square(on)[None] for _ in "qkv"))[0],
    "double": lambda on: square(on, torch.float64) @ square(on, torch.float64),
    "mse_loss": lambda on: functional.mse_loss(square(on, BFLOAT16), square(on)),
    "cross_entropy": lambda on: functional.cross_entropy(square(on, BFLOAT16), square(on)),
    "prod": lambda on: square(on, BFLOAT16).prod(),
    "softmax": lambda on: square(on, BFLOAT16).softmax(-1),
    "layer_norm": lambda on: functional.layer_norm(square(on, BFLOAT16), (4,)),
    "exp": lambda on: square(on, BFLOAT16).exp(),
    "cat": lambda on: torch.cat([square(on), square(on, BFLOAT16)]),
    "stack": lambda on: torch.stack([square(on, BFLOAT16), square(on, BFLOAT16)]),
    "add": lambda on: square(on) + square(on, BFLOAT16),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_autocast_has_the_dtypes_of_a_cpu(name: str) -> None:
    assert in_autocast(OPERATORS[name]) == in_real_autocast(OPERATORS[name])


def test_autocast_for_cuda_keeps_more_in_float32() -> None:
    rules = CudaRules(GpuArchitecture("nvidia", (9, 0)))
    names = ("matmul", "softmax", "layer_norm", "exp", "cross_entropy", "add")
    given = in_autocast(*(OPERATORS[name] for name in names), device_type="cuda", rules=rules)
    assert given == [BFLOAT16, torch.float32, torch.float32, torch.float32, torch.float32, torch.float32]


def test_autocast_for_another_device_or_disabled_casts_nothing() -> None:
    with CpuRules().applied():
        with pytest.warns(UserWarning, match="CUDA is not available"), torch.autocast("cuda", dtype=BFLOAT16):
            assert (square("meta") @ square("meta")).dtype == torch.float32
        with torch.autocast("cpu", dtype=BFLOAT16), torch.autocast("meta", enabled=False):
            assert not torch.is_autocast_enabled("meta")
            assert (square("meta") @ square("meta")).dtype == torch.float32
        with torch.autocast("cpu", dtype=BFLOAT16):
            assert torch.is_autocast_enabled("cpu")
            assert torch.get_autocast_dtype("cpu") == BFLOAT16
    assert (square("meta") @ square("meta")).dtype == torch.float32
    with torch.autocast("cpu", dtype=BFLOAT16):  # the real autocast is restored
        assert (square("cpu") @ square("cpu")).dtype == BFLOAT16


def test_autocast_keeps_its_copies_of_weights_until_the_outermost_context_ends() -> None:
    def work(device: str) -> list[int]:
        weight = torch.randn(256, 256, device=device, requires_grad=True)
        frozen = torch.randn(256, 256, device=device)
        x = torch.randn(16, 256, device=device)
        with torch.no_grad(), torch.autocast("cpu", dtype=BFLOAT16):
            with torch.autocast("cpu", dtype=BFLOAT16):
                x @ weight
            x @ weight
            x @ frozen
            y = torch.empty(256, 1024, device=device)
        z = torch.empty(256, 1024, device=device)
        return [len(y), len(z)]

    assert peak(work) == real_peak(work)


def test_autocast_without_its_cache_casts_a_weight_each_time() -> None:
    def casts(rules: Any, cached: bool) -> int:
        tracer = MetaTracer(rules)
        with tracer.around_workload():
            weight = torch.empty(64, 64, device="meta", requires_grad=True)
            x = torch.empty(16, 64, dtype=BFLOAT16, device="meta")
            with torch.no_grad(), torch.autocast("cuda", dtype=BFLOAT16, cache_enabled=cached):
                x @ weight
                x @ weight
        return list(tracer.events).count(64 * 64 * 2)

    hopper = GpuArchitecture("nvidia", (9, 0))
    assert (casts(CudaRules(hopper), True), casts(CudaRules(hopper), False)) == (1, 2)


def test_autocast_is_seen_by_every_function_that_reads_or_sets_its_state() -> None:
    from torch import get_autocast_dtype, is_autocast_enabled, set_autocast_enabled

    with CudaRules(GpuArchitecture("nvidia", (9, 0))).applied():
        with torch.autocast("meta", dtype=BFLOAT16):
            assert [is_autocast_enabled(), is_autocast_enabled("cuda"), torch.is_autocast_enabled("meta")] == [True] * 3
            assert get_autocast_dtype("cuda") is torch.get_autocast_dtype("meta") is BFLOAT16
        torch.set_autocast_enabled("cuda", True)
        assert (square("meta") @ square("meta")).dtype is torch.float16
        torch.set_autocast_enabled("cuda", False)
        assert (square("meta") @ square("meta")).dtype is torch.float32
        assert torch.amp.GradScaler("cuda").is_enabled()
    assert torch.set_autocast_enabled is set_autocast_enabled


class Doubled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float16)
    def forward(context: Any, values: list[torch.Tensor]) -> torch.Tensor:
        return values[0] * 2


def test_a_function_that_casts_its_inputs_under_autocast_casts_those_without_data() -> None:
    with CudaRules(GpuArchitecture("nvidia", (9, 0))).applied():
        with torch.autocast("cuda", dtype=torch.float16):
            assert Doubled.apply([square("meta")]).dtype is torch.float16
            assert Doubled.apply([square("meta", torch.float64)]).dtype is torch.float64
        assert Doubled.apply([square("meta")]).dtype is torch.float32


def product_in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return torch.mm(x, x).exp()


@pytest.mark.parametrize("compiled", ["before", "while tracing"])
def test_autocast_in_torchscript_casts_as_in_python(compiled: str) -> None:
    before = scripted(product_in_autocast) if compiled == "before" else None
    dtypes = []
    tracer = MetaTracer(CudaRules(GpuArchitecture("nvidia", (9, 0))))
    with tracer.around_workload():
        x = torch.empty(4, 4, device="meta")
        for function in (product_in_autocast, before or scripted(product_in_autocast)):
            events = len(tracer.events)
            dtypes.append((function(x).dtype, [each for each in tracer.events[events:] if 0 < each < 2**40]))
    (python, in_python), (script, in_script) = dtypes
    assert python is script is torch.float32  # exp
    assert in_python[:2] == in_script[:2] == [4 * 4 * 2] * 2 or in_script[:3] == [4 * 4 * 2] * 3


def test_a_step_under_autocast_takes_the_bytes_of_a_cpu() -> None:
    def work(device: str) -> None:
        model = nn.Sequential(Block(device), Block(device), nn.Linear(64, 512, device=device))
        optimizer = torch.optim.SGD(model.parameters())
        x = torch.randn(4, 128, 64, device=device)
        targets = torch.zeros(4 * 128, dtype=torch.int64, device=device)
        for _ in range(2):
            with torch.autocast("cpu", dtype=BFLOAT16):
                loss = functional.cross_entropy(model(x).flatten(0, 1), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    assert peak(work) == pytest.approx(real_peak(work), abs=1024)


# --- optimizers ---


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("most", [None, 1.0])
def test_an_optimizer_takes_the_bytes_of_a_cpu(options: dict[str, bool], most: float | None) -> None:
    def work(device: str) -> None:
        layers = nn.Sequential(*(nn.Linear(64, 64, device=device) for _ in range(4)))
        optimizer = torch.optim.AdamW(layers.parameters(), **options)
        for _ in range(2):
            layers(torch.ones(2, 64, device=device)).sum().backward()
            if most is not None:
                nn.utils.clip_grad_norm_(layers.parameters(), most)
            optimizer.step()

    assert peak(work) == real_peak(work)


def test_a_step_with_a_gradient_scaler_is_traced() -> None:
    def work(device: str) -> None:
        layer = nn.Linear(64, 64, device=device)
        optimizer, scaler = torch.optim.AdamW(layer.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = layer(torch.ones(2, 64, device=device)).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert optimizer.state[layer.weight]["exp_avg"].shape == (64, 64)

    assert peak(work) == pytest.approx(real_peak(work), abs=512)

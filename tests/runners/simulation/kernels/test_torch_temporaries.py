"""The rules of all kernel families applied to a training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runners.simulation.kernels.torch_attention import attention
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.kernels.torch_temporaries import temporaries
from tests.runners.simulation.kernels.operators import AMD, AMPERE, HOPPER, VOLTA


class Charged(TorchDispatchMode):
    """Applies the rules to every operator, as the tracer does."""

    def __init__(self, arch: GpuArchitecture) -> None:
        super().__init__()
        self.rules = temporaries(arch)
        self.charged: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if rule := self.rules.get(func):
            self.charged[str(func)] = max(self.charged.get(str(func), 0), sum(rule(args, kwargs or {}, result)))
        return result


@pytest.mark.parametrize("arch", [VOLTA, AMPERE, HOPPER, AMD])
def test_the_rules_accept_the_arguments_of_a_training_step(arch: GpuArchitecture) -> None:
    with torch.device("meta"):
        embedding, norm, linear = torch.nn.Embedding(1000, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 1000)
        tokens = torch.zeros(8, 1024, dtype=torch.int64)
    parameters = [*embedding.parameters(), *norm.parameters(), *linear.parameters()]
    with Charged(arch) as charged:
        hidden = norm(embedding(tokens)).view(8, 1024, 8, 64).transpose(1, 2)
        hidden = attention(arch, hidden, hidden, hidden, is_causal=True).transpose(1, 2).reshape(8, 1024, 512)
        logits = linear(torch.nn.functional.rms_norm(hidden, [512], norm.weight))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        torch._foreach_norm([each.grad for each in parameters])
        torch.multinomial(logits[:, -1].softmax(-1).sort().values, 1).argmax()
    parts = 819 + 1000
    positions = 3 * 8192 * 8 + 8 + 2 * 1000 * 8 + 8 + parts * 8
    assert charged.charged["aten.embedding_dense_backward.default"] == positions + parts * 512 * 4
    assert charged.charged["aten._foreach_norm.Scalar"] == 5 * 8 * 4
    assert (charged.charged.get("aten.sum.dim_IntList", 0) > 0) == (arch is not AMD)

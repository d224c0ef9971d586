"""Quantised weights, counted on the stored tensors. Tests whose library is not installed are skipped."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch

from runners.phases import Unavailable

LIBRARY = {"int8": "torchao", "int4": "torchao", "nf4": "bitsandbytes"}


def needs(scheme: str) -> Any:
    missing = importlib.util.find_spec(LIBRARY[scheme]) is None
    return pytest.param(scheme, marks=pytest.mark.skipif(missing, reason=f"{LIBRARY[scheme]} is not installed"))


def nf4_kernel_reads_packed_weights() -> bool:
    """Whether bitsandbytes has a kernel for this CPU that needs no dequantised copy of a layer."""
    from bitsandbytes.functional import has_avx512bf16

    return bool(has_avx512bf16())


SCHEMES = [needs(scheme) for scheme in LIBRARY]
HELD = 96 * 32 * 4 * 2 + 5 * 32 * 4  # the bytes of the decoder's embedding, output and norms in float32
PROJECTIONS = {  # of one layer: out x in
    "q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32), "gate": (48, 32), "up": (48, 32), "down": (32, 48),
}  # fmt: skip


@pytest.fixture
def wide() -> dict[str, Any]:
    """A decoder whose quantised layers are most of its memory."""
    sizes = {"vocab_size": 16, "hidden_size": 256, "intermediate_size": 2048, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return {"name": "wide", "library": "transformers", "model_type": "llama", "config": sizes | heads}


@pytest.mark.parametrize("scheme", LIBRARY)
def test_a_missing_library_makes_a_point_unavailable_and_the_message_names_the_extra(
    run: Any, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, LIBRARY[scheme], None)
    for module in [name for name in sys.modules if name.startswith(f"{LIBRARY[scheme]}.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(Unavailable, match=rf'quantize={scheme}: {LIBRARY[scheme]}.*pip install "sweeper\[quantize\]"'):
        run(quantize=scheme)


@pytest.mark.parametrize("scheme", LIBRARY)
def test_what_cannot_be_quantised_is_refused_before_anything_is_measured(run: Any, settled: Any, scheme: str) -> None:
    from runners.models import builders

    with pytest.raises(ValueError, match=rf"quantize={scheme}: .* workload.method=lora"):
        builders.prepare(settled("train", quantize=scheme, workload={"method": "full"}), "cpu")
    with pytest.raises(Unavailable, match="float64"):
        run(quantize=scheme, dtype="float64")


@pytest.mark.parametrize("scheme", [needs("int4")])
def test_int4_on_a_gpu_needs_bfloat16(settled: Any, scheme: str) -> None:
    from runners.models import builders

    with pytest.raises(Unavailable, match="quantize=int4: on CUDA torchao needs dtype=bfloat16, not dtype=float32"):
        builders.prepare(settled(quantize=scheme), "cuda")


def test_an_unquantised_model_has_no_quantisation_metrics(run: Any, decoder: dict[str, Any]) -> None:
    result = run(model=decoder, quantize="none")
    assert result.phase("model_load")["metrics"] == {}
    assert not {"quantized_modules", "scale_bytes"} & set(result.model)


@pytest.mark.parametrize("scheme", [needs("int8")])
def test_int8_stores_a_byte_for_each_weight_and_a_scale_and_zero_point_for_each_row(
    run: Any, decoder: dict[str, Any], scheme: str
) -> None:
    rows, weights = sum(o for o, _ in PROJECTIONS.values()), sum(o * i for o, i in PROJECTIONS.values())
    plain, result = run(model=decoder), run(model=decoder, quantize=scheme)
    expected = {"quantized_modules": 14, "kept_modules": {"float32": 7}, "scale_bytes": 2 * rows * (4 + 1)}
    assert result.phase("model_load")["metrics"] == expected
    assert result.model["parameter_bytes"] == HELD + 2 * (weights + rows * 5)
    assert result.model["parameters"] == plain.model["parameters"]
    assert (result.model["storage_dtype"], result.model["compute_dtype"]) == ("float32+int8", "float32")


@pytest.mark.parametrize("scheme", [needs("int4")])
def test_int4_packs_two_weights_in_a_byte_and_skips_layers_without_groups(
    run: Any, decoder: dict[str, Any], scheme: str
) -> None:
    grouped = [o * i for o, i in PROJECTIONS.values() if i % 32 == 0]
    unquantised = 32 * 48 * 4  # `down` reads 48 numbers
    scales = 2 * sum(grouped) // 32 * 2 * 4
    result = run(model=decoder, quantize=scheme)
    expected = {"quantized_modules": 12, "kept_modules": {"float32": 9}, "scale_bytes": scales}
    assert result.phase("model_load")["metrics"] == expected
    assert result.model["parameter_bytes"] == HELD + 2 * unquantised + sum(grouped) + scales
    assert result.model["storage_dtype"] == "float32+uint8"
    half = run(model=decoder, quantize=scheme, dtype="bfloat16").model
    assert (half["scale_bytes"], half["compute_dtype"]) == (scales // 2, "bfloat16")


@pytest.mark.parametrize("scheme", [needs("nf4")])
def test_nf4_packs_two_weights_in_a_byte_and_quantises_its_scales(
    run: Any, decoder: dict[str, Any], scheme: str
) -> None:
    sizes = [o * i for o, i in PROJECTIONS.values()]
    # A byte for each block of 64, and for each layer the tables of 16 and 256 numbers, an offset and the scales' scale.
    scales = 2 * (sum(sizes) // 64 + len(sizes) * 4 * (16 + 256 + 1 + 1))
    result = run(model=decoder, quantize=scheme)
    expected = {"quantized_modules": 14, "kept_modules": {"float32": 7}, "scale_bytes": scales}
    assert result.phase("model_load")["metrics"] == expected
    assert result.model["parameter_bytes"] == HELD + sum(sizes) + scales
    assert result.model["parameters"] == run(model=decoder).model["parameters"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_memory_after_loading_equals_the_parameters_bytes(run: Any, wide: dict[str, Any], scheme: str) -> None:
    plain, result = run(model=wide), run(model=wide, quantize=scheme)
    buffers = plain.tensor("model_load", "end") - plain.model["parameter_bytes"]  # such as rotary frequencies
    held = result.tensor("model_load", "end") - result.model["parameter_bytes"] - buffers
    assert 0 <= held <= 64 * 5 * result.model["quantized_modules"]  # small tensors are rounded up to 64 bytes
    assert result.model["parameter_bytes"] < plain.model["parameter_bytes"] / 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_unquantised_model_is_in_memory_before_quantisation(run: Any, wide: dict[str, Any], scheme: str) -> None:
    result = run(model=wide, quantize=scheme)
    assert result.tensor("model_load", "peak") > run(model=wide).tensor("model_load", "end")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_pass_holds_one_dequantised_layer_if_its_kernel_makes_one(
    run: Any, wide: dict[str, Any], scheme: str
) -> None:
    result = run(model=wide, quantize=scheme, batch=1, context=1)
    layer = 256 * 2048 * 4
    grown = result.tensor("warm_forward", "peak", 0) - result.tensor("warm_forward", "baseline", 0)
    if scheme == "int4" or (scheme == "nf4" and nf4_kernel_reads_packed_weights()):
        assert grown < layer / 4
    else:
        assert layer <= grown < 2.2 * layer


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_output_is_close_to_the_unquantised_models(settled: Any, wide: dict[str, Any], scheme: str) -> None:
    from runners.models import builders, quantized_weights

    point = settled(model=wide, quantize=scheme)
    builders.prepare(point, "cpu")
    network, quantised = builders._build({**point, "quantize": "none"}, "cpu"), builders._build(point, "cpu")
    assert quantized_weights.requested_scheme(point) == scheme
    inputs = network.inputs()
    with torch.inference_mode():
        expected, given = network.forward(inputs), quantised.forward(inputs)
    error = (given - expected).norm() / expected.norm()
    assert 0 < error < (0.05 if scheme == "int8" else 0.5)  # of two models that have nothing in common it is 1.4


@pytest.mark.parametrize("scheme", [needs("nf4")])
@pytest.mark.parametrize(("hidden", "intermediate"), [(32, 48), (64, 80), (64, 128)])
def test_nf4_runs_for_shapes_that_its_kernel_for_avx512_cannot_repack(
    run: Any, decoder: dict[str, Any], scheme: str, hidden: int, intermediate: int
) -> None:
    decoder["config"] |= {"hidden_size": hidden, "intermediate_size": intermediate}
    assert run(model=decoder, quantize=scheme).returned["metrics"]["checksum"] is not None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_network_of_torch_alone_is_quantised_too(run: Any, scheme: str) -> None:
    facts = run(quantize=scheme, dtype="bfloat16").model
    assert (facts["quantized_modules"], facts["compute_dtype"]) == (2, "bfloat16")
    assert facts["kept_modules"] == {}


@pytest.mark.parametrize("scheme", [needs("int8")])
def test_a_model_without_a_linear_layer_to_quantise_is_refused(run: Any, scheme: str) -> None:
    config = {"vocab_size": 96, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    gpt = {"name": "gpt", "library": "transformers", "model_type": "gpt2", "config": config}
    with pytest.raises(ValueError, match=r"quantize=int8: gpt has no linear layer"):
        run(model=gpt, quantize=scheme)


@pytest.mark.parametrize("scheme", [needs("int8"), needs("nf4")])
def test_adapters_are_trained_with_quantised_weights(run: Any, decoder: dict[str, Any], scheme: str) -> None:
    lora = {"method": "lora", "rank": 2, "alpha": 4, "dropout": 0.0, "targets": ["q_proj", "v_proj"]}
    result = run("train", model=decoder, quantize=scheme, repeats=4, workload=lora)
    losses = result.returned["metrics"]["losses"]
    assert losses[-1] < losses[0]
    assert result.model["trainable_parameters"] == 2 * 2 * ((32 + 32) + (32 + 16))
    assert result.model["quantized_modules"] == 14


@pytest.mark.parametrize("scheme", [needs("int4")])
def test_adapters_with_int4_are_unavailable_since_its_kernels_have_no_backward_pass(
    run: Any, decoder: dict[str, Any], scheme: str
) -> None:
    with pytest.raises(Unavailable, match="no backward pass"):
        run("train", model=decoder, quantize=scheme, workload={"method": "lora"})

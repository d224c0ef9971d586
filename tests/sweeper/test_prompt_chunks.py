"""Which prompts cannot be read in chunks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from runners.device import Device
from sweeper.effects.levers import impossible, levers_of
from sweeper.prompt_chunks import STATEFUL, refused_chunk

CHUNKS: dict[str, Any] = {"name": "generate", "prefill_chunk": 16, "cache": "dynamic", "packing": "padded"}


@pytest.mark.parametrize(
    ("workload", "context", "model_type", "refused"),
    [
        ({}, 64, "llama", False),
        ({"cache": "quantized"}, 64, "llama", True),
        ({"cache": "quantized"}, 16, "llama", False),
        ({"cache": "quantized", "packing": "packed"}, 16, "llama", True),
        ({"cache": "quantized", "prefill_chunk": None}, 64, "llama", False),
        ({}, 64, "mamba", True),
        ({}, 16, "mamba", False),
    ],
)
def test_chunks_of_a_prompt_are_refused_where_its_first_part_cannot_be_continued(
    workload: dict[str, Any], context: int, model_type: str, refused: bool
) -> None:
    why = refused_chunk(CHUNKS | workload, context, "mine", model_type)
    assert (why is not None) == refused
    assert why is None or why.startswith("workload.prefill_chunk=16 with ")


def test_the_model_types_are_those_that_transformers_says_have_a_state() -> None:
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "models"
    known = [name for name in STATEFUL if (folder / name).is_dir()]
    assert {"mamba", "jamba"} <= {*known}
    for name in known:
        assert "_is_stateful = True" in (folder / name / f"modeling_{name}.py").read_text(encoding="utf-8"), name


def test_chunks_are_not_advised_where_they_cannot_be_read() -> None:
    whole = {"workload": CHUNKS | {"prefill_chunk": None}, "batch": 2, "context": 64, "dtype": "bfloat16"}
    llama, mamba = ({**whole, "model": {"name": each, "model_type": each}} for each in ("llama", "mamba"))
    device = Device(name="cpu")
    assert {"workload.prefill_chunk": 32} in levers_of("activations", llama, device, reads_text=True)
    assert {"workload.prefill_chunk": 32} not in levers_of("activations", mamba, device, reads_text=True)
    quantized = {**llama, "workload": CHUNKS | {"cache": "quantized"}}
    assert "quantized anew" in (impossible(quantized, device) or "")

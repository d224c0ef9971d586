"""How prompts were read, and what chunks take at least, on the screens of a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from runners.device import device_named
from runners.outcome import Outcome, Phase, Status
from runners.point import Point
from sweeper.frontier.edges import NEEDS
from sweeper.units import format_bytes
from sweeper.views.frontier_text import frontier_text
from sweeper.views.prefill_text import least_in_chunks, prefill
from sweeper.views.progress import Show
from tests.sweeper.views.test_progress import plan

CONF = Path(__file__).resolve().parents[3] / "conf" / "model"
WEIGHTS = 8_030_261_248 * 2
CACHE = 32 * (8192 + 32 - 1) * 32 * 2 * 8 * 128 * 2  # sequences, positions, layers, keys and values, heads, bytes
LEAST = f"would take at least {format_bytes(WEIGHTS + CACHE)}, for weights and cache (arithmetic)"


def values(**workload: Any) -> dict[str, Any]:
    model = yaml.safe_load((CONF / "llama-3.1-8b.yaml").read_text())
    settled = {"name": "generate", "new_tokens": 32, "cache": "dynamic", "prompt_lengths": 1, "packing": "padded"}
    return {
        "model": model, "workload": settled | {"prefill_chunk": None} | workload, "dtype": "bfloat16", "batch": 32,
        "context": 8192, "quantize": "none",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("chunk", "packing", "text"),
    [
        (None, "padded", "prompts read at once"),
        (2048, "padded", "prompts read in chunks of 2,048 tokens"),
        (8191, "padded", "prompts read in chunks of 8,191 tokens"),
        (8192, "padded", "prompts read at once (workload.prefill_chunk=8192)"),
        (8192, "packed", "prompts read in chunks of 8,192 tokens"),
    ],
)
def test_a_chunk_that_holds_the_prompt_is_all_at_once(chunk: int | None, packing: str, text: str) -> None:
    assert prefill(values(prefill_chunk=chunk, packing=packing)) == text


def test_chunks_take_at_least_the_weights_and_the_cache_by_arithmetic() -> None:
    assert least_in_chunks(values(), "cold_prefill") == f"chunks (workload.prefill_chunk) {LEAST}"
    assert least_in_chunks(values(prefill_chunk=256), "warm_prefill") == f"smaller chunks {LEAST}"


def test_no_arithmetic_is_given_for_another_phase_or_a_cache_without_a_formula() -> None:
    assert least_in_chunks(values(), "cold_decode") is None
    assert least_in_chunks(values(), None) is None
    assert least_in_chunks(values(cache="quantized"), "cold_prefill") is None


def row(status: str, chunk: int | None) -> dict[str, Any]:
    settled = values(prefill_chunk=chunk)
    return dict.fromkeys(NEEDS) | {
        "run": "bill", "device": "sim:h100-80gb", "kind": "calculated", "config": json.dumps(settled),
        "point_id": str(chunk),
        "model": "llama-3.1-8b", "workload": "generate", "dtype": "bfloat16", "batch": 32, "context": 8192,
        "workload.prefill_chunk": chunk, "status": status, "fits": status == "ok",
        "failed_phase": None if status == "ok" else "cold_prefill", "unlimited_peak_bytes": 76 * 2**30,
    }  # fmt: skip


def test_the_summary_names_how_prompts_were_read_and_what_chunks_would_take() -> None:
    text = frontier_text([row("oom", None), row("ok", 256)])
    failed, fitting = text.splitlines()[0], text.splitlines()[3]
    assert failed == "sim:h100-80gb  llama-3.1-8b  generate  bfloat16  prompts read at once  (calculated, not measured)"
    assert "  prompts read in chunks of 256 tokens  " in fitting
    assert text.count(LEAST) == 1
    assert "workload.prefill_chunk=" not in text


def test_the_line_of_an_attempt_names_it_where_the_prompts_did_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    device = device_named("sim:h100-80gb")
    phase = Phase(name="cold_prefill", run_index=None, device=device.name, completed=False, peak={"allocated": 2**36})
    outcome = Outcome(
        status=Status.OOM, device=device, phases=(phase,), failed_phase="cold_prefill", oom_scope="device"
    )
    Show(plan()).settled(device.name, Point(values=values()), outcome, recalled=False)
    shown = capsys.readouterr().out
    assert shown.strip().endswith(f"; prompts read at once; chunks (workload.prefill_chunk) {LEAST}")


def test_prompts_in_pages_are_read_one_after_another() -> None:
    workload = {"name": "generate", "cache": "paged", "prefill_chunk": 8192}
    text = prefill({"workload": workload, "context": 512})
    assert text == "prompts read one after another, up to 8,192 tokens in a pass"

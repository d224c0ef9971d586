"""Models by their name on a hub: what is fetched, what is recorded, and what a command says where none can be had."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sweeper.errors import Mistake
from sweeper.planning.probes import Probes
from tests import command_line, hub

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes", "parameter_bytes", "parameters")


@pytest.fixture(scope="module")
def mirror() -> Iterator[hub.Hub]:
    with hub.serving({"Qwen/Qwen3-tiny": CONFIG}) as served:
        yield served


@pytest.fixture(scope="module")
def calculated(mirror: hub.Hub, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A run of the name on the hub and of a folder with the same configuration: the folder, and its points."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "mine").mkdir()
    (folder / "mine" / "config.json").write_text(json.dumps(CONFIG))
    words = ["model=pretrained", f"model.path=Qwen/Qwen3-tiny,{folder / 'mine'}", "workload=train", "context=64"]
    done = sweep(folder, mirror.environ(folder / "cache"), *words, "dtype=bfloat16", "name=run")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, pd.read_parquet(folder / "run" / "points.parquet").set_index("model.path")


def sweep(folder: Path, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    words = ("devices=[sim:l4-24gb]", f"outputs={folder}", *words)
    return command_line.run(words, folder, {**os.environ, **environ})


def test_a_calculated_device_takes_the_configuration_alone_from_the_hub(
    calculated: tuple[Path, pd.DataFrame], mirror: hub.Hub
) -> None:
    files = [path for path in mirror.asked if path.startswith("/Qwen/Qwen3-tiny/")]
    assert set(files) == {"/Qwen/Qwen3-tiny/resolve/main/config.json"}
    assert [path.name for path in (calculated[0] / "cache").rglob("snapshots/*/*")] == ["config.json"]


def test_the_figures_of_a_hub_model_are_those_of_its_configuration(calculated: tuple[Path, pd.DataFrame]) -> None:
    from_hub, from_folder = calculated[1].loc["Qwen/Qwen3-tiny"], calculated[1].loc[str(calculated[0] / "mine")]
    for counter in COUNTERS:
        assert from_hub[counter] == from_folder[counter] > 0
    embedding, layer = 512 * 64, 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 160 + 2 * 64 + 2 * 16
    assert from_hub.parameters == embedding + 3 * layer + 64


def test_the_commit_of_a_hub_model_is_recorded(calculated: tuple[Path, pd.DataFrame]) -> None:
    assert list(calculated[1].model_revision.dropna()) == [hub.COMMIT]


def unreachable() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def configuration(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], *words: str | None) -> dict[str, object]:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    name, revision = words
    with Probes() as probes:
        return dict(probes.configuration(sys.executable, str(name), revision))


def test_a_hub_out_of_reach_is_no_obstacle_to_a_model_in_its_cache(
    calculated: tuple[Path, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HF_ENDPOINT": unreachable(), "HF_HUB_CACHE": str(calculated[0] / "cache"), "HF_HUB_OFFLINE": "0"}
    assert configuration(monkeypatch, environ, "Qwen/Qwen3-tiny", None) == CONFIG


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("Qwen/Qwen4-tiny", None, "model.path=Qwen/Qwen4-tiny: no such model on http://127.0.0.1.* HF_TOKEN"),
        (hub.GATED, None, f"asks for terms to be accepted; accept them at http://.*/{hub.GATED} .* HF_TOKEN"),
        ("Qwen/Qwen3-tiny", "v9", "model.revision=v9: the model has no such revision on http://127.0.0.1"),
    ],
)
def test_a_model_that_the_hub_does_not_give_is_refused_with_the_cure(
    name: str, revision: str | None, message: str, mirror: hub.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Mistake, match=message):
        configuration(monkeypatch, mirror.environ(tmp_path), name, revision)


def test_a_command_names_a_hub_out_of_reach_and_the_cure_in_one_line(tmp_path: Path) -> None:
    for offline, cure in (("0", "or set HF_ENDPOINT to a hub that can be reached"), ("1", "HF_HUB_OFFLINE is set")):
        environ = {"HF_ENDPOINT": unreachable(), "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": offline}
        done = sweep(tmp_path, environ, "model=pretrained", "model.path=Qwen/Qwen3-8B", "name=run")
        assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1), done.stderr
        assert "is no folder here" in done.stderr
        assert cure in done.stderr
        assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def served(mirror: hub.Hub, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """`fit` as a server of the hub's model, on what others leave of a card, and its answer."""
    folder = tmp_path_factory.mktemp("served")
    words = ["fit", "Qwen/Qwen3-tiny", "l4", "workload=generate", "concurrency=24", "context=100", "--json"]
    words += ["workload.new_tokens=4", "used_by_others=21.8GiB", "name=fit", f"outputs={folder}"]
    done = command_line.run(words, folder, {**os.environ, **mirror.environ(folder / "cache")})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.slow
def test_fit_takes_a_name_on_the_hub_and_finds_the_largest_number_of_requests(
    served: tuple[Path, dict[str, Any]],
) -> None:
    (found,) = served[1]["servings"]
    assert served[1]["model"] == "Qwen/Qwen3-tiny"
    assert (found["requests"], found["fits"], found["is_at_least"]) == (24, True, False)
    assert found["request_pages"] == 7  # of 103 tokens
    assert found["request_bytes"] == 7 * 16 * 3 * 2 * 2 * 16 * 2  # layers, keys and values, heads, their size, bytes
    assert found["largest"] > 24


@pytest.mark.slow
def test_the_figures_of_a_server_are_those_of_an_ordinary_sweep(
    served: tuple[Path, dict[str, Any]], mirror: hub.Hub
) -> None:
    folder, answer = served
    largest = answer["servings"][0]["largest"]
    words = ["model=pretrained", "model.path=Qwen/Qwen3-tiny", "workload=generate", "workload.cache=paged"]
    words += ["workload.prefill_chunk=8192", "warmup=0", "repeats=1", "workload.new_tokens=4", "dtype=bfloat16"]
    words += ["context=100", f"batch={largest},{largest + 1}", "used_by_others=21.8GiB", "name=sweep"]
    done = sweep(folder, mirror.environ(folder / "cache"), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    points = pd.read_parquet(folder / "sweep" / "points.parquet").set_index("batch")
    assert list(points.fits) == [True, False]
    assert points.peak_allocated_bytes[largest] == answer["servings"][0]["largest_peak_bytes"]
    weights = points.parameter_bytes[largest]
    step = answer["speeds"][-1]["speed"]
    assert step["weight_bytes"] == weights  # its embedding is the output layer too
    assert step["cache_bytes"] == step["batch"] * 100 * 3 * 2 * 2 * 16 * 2
    assert step["tokens_per_second"] == pytest.approx(step["batch"] * 300_000_000_000 / (weights + step["cache_bytes"]))

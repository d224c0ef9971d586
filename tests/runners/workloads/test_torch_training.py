"""Options of a training step, on tensors that can be counted by hand."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.outcome import Status
from runners.phases import Notes, Unavailable
from runners.simulation.torch_compiled import NOTE
from runners.workloads import torch_training, train
from tests.measuring import SETTLED, Lab
from tests.programs import HOST, calculated_point

WIDTH = 32
MLP = 2 * WIDTH * WIDTH + 2 * WIDTH  # parameters, in four tensors
STEP_COUNT = 4  # bytes that an optimizer keeps for each tensor
LORA = {"method": "lora", "rank": 2, "alpha": 4, "targets": ["q_proj", "v_proj"], "dropout": 0.0}
TRAINED = {  # what each optimizer keeps of the mlp, in bytes
    "adamw": 2 * 4 * MLP + 4 * STEP_COUNT,
    "adamw-forloop": 2 * 4 * MLP + 4 * STEP_COUNT,
    "adamw-foreach": 2 * 4 * MLP + 4 * STEP_COUNT,
    "adamw-fused": 2 * 4 * MLP + 4 * STEP_COUNT,
    "adam": 2 * 4 * MLP + 4 * STEP_COUNT,
    "sgd": 0,
    # a row and a column of each matrix, all of each vector
    "adafactor": 4 * (2 * 2 * WIDTH + 2 * WIDTH) + 4 * STEP_COUNT,
}


class Unmeasured:
    def __call__(self, name: str, run_index: int | None = None) -> Any:
        return nullcontext(Notes())

    def model(self, **facts: Any) -> None:
        self.facts = facts


@pytest.fixture
def built(settled: Any) -> Callable[..., train.Training]:
    def build(workload: dict[str, Any], **changes: Any) -> train.Training:
        return train.build(settled("train", workload=workload, **changes), "cpu", Unmeasured())  # type: ignore[arg-type]

    return build


def learn(training: train.Training) -> train.Step:
    return training.step(lambda name, run_index: nullcontext(Notes()))


def trained(training: train.Training) -> list[torch.nn.Parameter]:
    return [parameter for parameter in training.network.module.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("method", [{"method": "full"}, LORA])
def test_every_tensor_that_is_trained_gets_a_gradient_and_changes(
    built: Any, decoder: dict[str, Any], method: dict[str, Any]
) -> None:
    training = built({**method, "set_to_none": False}, model=decoder)
    names = {name for name, parameter in training.network.module.named_parameters() if parameter.requires_grad}
    before = {name: value.detach().clone() for name, value in training.network.module.named_parameters()}
    learn(training)
    assert all(parameter.grad is not None for parameter in trained(training))
    learn(training)  # the first step of an adapter moves one of its two matrices: the other is still nought
    changed = {
        name for name, value in training.network.module.named_parameters() if not torch.equal(value, before[name])
    }
    assert changed == names
    assert all(("lora_" in name) == (method is LORA) for name in names)


def test_a_tensor_without_a_gradient_is_counted(run: Any, decoder: dict[str, Any]) -> None:
    assert run("train", model=decoder).phase("cold_backward")["metrics"] == {"without_gradient": 0}


@pytest.mark.parametrize("optimizer", TRAINED)
def test_an_optimizers_state_is_counted_to_the_byte(run: Any, optimizer: str) -> None:
    result = run("train", workload={"optimizer": optimizer})
    assert result.returned["metrics"]["optimizer_state_bytes"] == TRAINED[optimizer]
    assert result.phase("cold_step")["metrics"]["optimizer_state_bytes"] == TRAINED[optimizer]
    losses = result.returned["metrics"]["losses"]
    assert losses[1] < losses[0]


def test_implementations_of_one_optimizer_agree(run: Any, decoder: dict[str, Any]) -> None:
    names = ("adamw", "adamw-forloop", "adamw-foreach", "adamw-fused")
    losses = [run("train", model=decoder, workload={"optimizer": name}).returned["metrics"]["losses"] for name in names]
    assert all(each == pytest.approx(losses[0], rel=1e-6) for each in losses)


def test_foreach_holds_a_further_copy_in_the_step(run: Any, decoder: dict[str, Any]) -> None:
    grown = []
    for name in ("forloop", "foreach"):
        result = run("train", model=decoder, workload={"optimizer": f"adamw-{name}"})
        grown.append(result.tensor("warm_step", "peak", 0) - result.tensor("warm_step", "baseline", 0))
    assert grown[0] < result.model["parameter_bytes"] / 2 < result.model["parameter_bytes"] <= grown[1]


def test_an_optimizer_without_its_library_is_unavailable(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        Unavailable, match=r"workload\.optimizer=adamw-8bit: bitsandbytes is not installed: .*pip install"
    ):
        run("train", workload={"optimizer": "adamw-8bit"})


def test_an_8_bit_optimizer_stores_a_byte_per_state_element(run: Any) -> None:
    pytest.importorskip("bitsandbytes")
    width = 64  # a matrix of 4096 numbers is the smallest that it takes so, in blocks of 256 with a scale each
    stored = run(
        "train", model={"name": "mlp", "library": "torch", "width": width}, workload={"optimizer": "adamw-8bit"}
    )
    matrices = 2 * 2 * (width * width + 4 * width * width // 256)
    vectors = 2 * 2 * 4 * width
    tables = 2 * 4 * 256  # what the 256 values of a byte stand for: shared
    assert stored.returned["metrics"]["optimizer_state_bytes"] == matrices + vectors + tables


def test_checkpointing_takes_memory_and_leaves_the_loss(run: Any, decoder: dict[str, Any]) -> None:
    decoder["config"]["num_hidden_layers"] = 6
    stored, recomputed = (
        run("train", model=decoder, batch=4, context=64, workload={"checkpointing": checkpointing})
        for checkpointing in (False, True)
    )
    assert recomputed.returned["metrics"]["losses"] == pytest.approx(stored.returned["metrics"]["losses"], rel=1e-6)
    assert recomputed.returned["metrics"]["checksum"] == pytest.approx(stored.returned["metrics"]["checksum"], rel=1e-4)
    held = [result.tensor("cold_forward", "end") - result.tensor("inputs", "end") for result in (stored, recomputed)]
    assert held[1] < 0.5 * held[0]


@pytest.mark.parametrize(("dtype", "is_decoder", "exact"), [("float32", True, 1e-4), ("float64", False, 1e-10)])
def test_microbatches_give_the_gradients_of_the_whole_batch(
    built: Any, decoder: dict[str, Any], dtype: str, is_decoder: bool, exact: float
) -> None:
    still = {"set_to_none": False, "optimizer": "sgd", "lr": 0.0}
    sizes = {"batch": 4, "dtype": dtype, **({"model": decoder} if is_decoder else {})}
    whole, parts = (built({**still, "accumulate": count}, **sizes) for count in (1, 4))
    for training in (whole, parts):
        training.optimizer.zero_grad = lambda set_to_none: None  # type: ignore[method-assign]
    losses = [learn(training).loss for training in (whole, parts)]
    assert losses[1] == pytest.approx(losses[0], rel=exact)
    for one, other in zip(trained(whole), trained(parts), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(other.grad, one.grad, rtol=exact, atol=exact * one.grad.abs().max().item())


def test_every_microbatch_has_its_phases_and_all_of_them_one_update(run: Any) -> None:
    result = run("train", batch=4, workload={"accumulate": 2})
    of_first_step = [name for name, _ in result.names if name.startswith("cold_")]
    learnt = ["cold_forward", "cold_loss", "cold_backward"]
    assert of_first_step == [*learnt, *learnt, "cold_step", "cold_zero_grad"]
    assert result.phase("cold_forward")["shapes"] == {"x": [2, 8, WIDTH]}
    assert (result.returned["steps"], result.returned["tokens"]) == (2, 2 * 4 * 8)


def test_a_batch_that_cannot_be_split_is_rejected(run: Any) -> None:
    with pytest.raises(ValueError, match=r"workload\.accumulate=3: batch=4 cannot be split"):
        run("train", batch=4, workload={"accumulate": 3})


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_precision_applies_to_the_computation_not_to_the_weights(
    run: Any, decoder: dict[str, Any], precision: str
) -> None:
    plain = run("train", model=decoder)
    mixed = run("train", model=decoder, workload={"precision": precision})
    assert (mixed.model["storage_dtype"], mixed.model["compute_dtype"]) == ("float32", precision)
    assert mixed.returned["metrics"]["parameter_bytes"] == {"float32": plain.model["parameter_bytes"]}
    losses = mixed.returned["metrics"]["losses"]
    assert losses == pytest.approx(plain.returned["metrics"]["losses"], rel=0.01)
    assert losses != plain.returned["metrics"]["losses"]
    assert mixed.returned["metrics"]["updates"] == 2


def test_an_update_that_the_scaler_skips_is_not_counted(built: Any) -> None:
    training = built({"precision": "float16"})
    _, targets = training.batches[0]
    targets[0, 0, 0] = float("inf")
    assert learn(training).updated is False
    assert torch_training.state_bytes(training.optimizer) == 0


def test_float16_weights_have_no_room_for_a_scaler(run: Any) -> None:
    with pytest.raises(ValueError, match="scales the gradients"):
        run("train", dtype="float16", workload={"precision": "float16"})


def test_gradients_are_clipped_to_the_configured_norm(built: Any) -> None:
    training = built({"max_grad_norm": 0.01, "optimizer": "sgd", "lr": 1.0})
    before = [value.detach().clone() for value in trained(training)]
    learn(training)
    moved = sum(((new - old) ** 2).sum() for new, old in zip(trained(training), before, strict=True)) ** 0.5
    assert moved.item() == pytest.approx(0.01, rel=1e-3)


def test_adapters_are_counted_and_stay_in_float32(run: Any, decoder: dict[str, Any]) -> None:
    result = run("train", model=decoder, dtype="bfloat16", workload=LORA)
    # q: 32 -> 32, v: 32 -> 16 with two of four heads; in two layers
    adapters = 2 * (2 * (32 + 32) + 2 * (32 + 16))
    assert result.model["trainable_parameters"] == adapters
    assert result.returned["metrics"]["parameter_bytes"] == {
        "bfloat16": 2 * (result.model["parameters"] - adapters),
        "float32": 4 * adapters,
    }
    assert result.model["storage_dtype"] == "bfloat16+float32"
    assert result.returned["metrics"]["optimizer_state_bytes"] == 2 * 4 * adapters + 8 * STEP_COUNT


def test_an_evaluation_has_sizes_of_its_own(run: Any, decoder: dict[str, Any]) -> None:
    result = run("train", model=decoder, workload={"evaluation": {"batch": 3, "context": None}})
    assert result.names[-1] == ("evaluation", None)
    assert result.phase("evaluation")["shapes"] == {"input_ids": [3, 8]}
    assert run("train", model=decoder).names[-1] == ("warm_zero_grad", 0)


def test_an_evaluation_stores_nothing_for_a_backward_pass(run: Any, decoder: dict[str, Any]) -> None:
    result = run("train", model=decoder, batch=4, context=64, workload={"evaluation": {"batch": 4, "context": 64}})
    held = [result.tensor(name, "peak", index) for name, index in (("evaluation", None), ("warm_forward", 0))]
    assert held[0] < held[1]


@pytest.mark.parametrize(
    ("form", "method"),
    [("state_dict", {}), ("save_pretrained", {}), ("state_dict", LORA), ("save_pretrained", LORA)],
)
def test_a_model_is_written_and_loaded_again(
    run: Any, decoder: dict[str, Any], form: str, method: dict[str, Any], tmp_path: Path
) -> None:
    result = run("train", model=decoder, workload={**method, "export": form})
    assert result.names[-1] == ("export", None)
    written = result.model["trainable_parameters" if method and form == "save_pretrained" else "parameters"]
    assert result.phase("export")["metrics"]["file_bytes"] > 4 * written
    held = result.tensor("export", "peak") - result.tensor("export", "baseline")
    assert held >= (4 * written if form == "state_dict" else 0)


def test_an_export_that_fails_leaves_all_that_came_before(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError):
        run("train", workload={"export": "state_dict"})
    [journal] = tmp_path.glob("*.jsonl")
    ended = [json.loads(line) for line in journal.read_text().splitlines() if '"ended"' in line]
    assert [(line["phase"], line["completed"]) for line in ended if line["phase"] != "between"][-2:] == [
        ("warm_zero_grad", True),
        ("export", False),
    ]


def test_an_evaluation_that_does_not_fit_is_where_the_attempt_failed(lab: Lab, settled: Any) -> None:
    point = settled("train", workload={"evaluation": {"batch": 10**9, "context": 512}}, repeats=1)
    outcome = lab.settle(lab.start_values({**SETTLED, **point})).outcome
    assert (outcome.status, outcome.failed_phase) == (Status.OOM, "evaluation")
    assert [phase.completed for phase in outcome.phases if phase.name == "warm_step"] == [True]


def test_keys_that_the_mlp_does_not_support_are_rejected(run: Any) -> None:
    with pytest.raises(ValueError, match=r"workload\.checkpointing=true: mlp has no layers"):
        run("train", workload={"checkpointing": True})
    with pytest.raises(ValueError, match=r"workload\.export=save_pretrained: mlp"):
        run("train", workload={"export": "save_pretrained"})


def test_keys_that_need_data_are_unavailable_on_a_simulated_device(settled: Any) -> None:
    with pytest.raises(Unavailable, match="workload"):
        train.prepare(settled("train", workload={"export": "state_dict"}), "meta")


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw", "sgd"])
def test_a_calculated_optimizer_takes_what_a_measured_one_does(
    run: Any, settled: Any, decoder: dict[str, Any], optimizer: str
) -> None:
    workload = {"optimizer": optimizer, "max_grad_norm": 1.0}
    measured = run("train", model=decoder, workload=workload)
    found = calculated_point(settled("train", model=decoder, workload=workload), train, HOST)
    assert found.error is None
    assert found.peaks["tensor"] == max(line["counters"]["cpu"]["peak"]["tensor"] for line in measured.phases)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_training_is_calculated_as_eager_and_noted(settled: Any, decoder: dict[str, Any]) -> None:
    eager, compiled = (
        calculated_point(settled("train", model=decoder, workload={"compile": each}), train) for each in (False, True)
    )
    assert eager.peaks == compiled.peaks
    assert (eager.notes, compiled.notes) == ([], [NOTE])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch itself, as it compiles
@pytest.mark.slow
def test_compiled_training_agrees_and_its_tensors_are_null(run: Any, decoder: dict[str, Any]) -> None:
    eager = run("train", model=decoder)
    compiled = run("train", model=decoder, workload={"compile": True})
    assert compiled.returned["metrics"]["losses"] == pytest.approx(eager.returned["metrics"]["losses"], rel=1e-4)
    assert "tensor" not in compiled.phase("warm_backward", 0)["counters"]["cpu"]["peak"]
    assert "tensor" in eager.phase("warm_backward", 0)["counters"]["cpu"]["peak"]

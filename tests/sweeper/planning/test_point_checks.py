"""How values settle into a point, and which values are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.device import Card
from runners.point import Point
from sweeper.errors import Mistake
from sweeper.planning.point_checks import Rules, Signature, settled

CONFIG: dict[str, Any] = {
    "model": {"name": "mlp", "library": "torch", "width": 64},
    "workload": {"name": "forward"},
    "inputs": {"name": "synthetic"},
    "attention": None, "quantize": "none",
    "dtype": "float32", "batch": 1, "context": 64, "warmup": 1, "repeats": 2, "seed": 0,
    "start": "cold", "allocator": "system", "phases": "each", "cache": "keep", "tensors": True,
    "timeout": None, "budget": None, "used_by_others": None, "env": {},
    "quality": {"target": None, "reference": {}, "tolerance": None, "better": "higher"},
}  # fmt: skip

CARD = Card(name="x", vendor="nvidia", architecture="sm_89", total_bytes=25_000_000_000, context_bytes=500_000_000)
ANYTHING = Signature(parameters=(), required=(), takes_any=True)
CUSTOM = {"name": "custom", "target": "mywork:run", "params": {}}


def point(
    swept: tuple[str, ...] = (), signature: Signature = ANYTHING, given: tuple[str, ...] = (), **values: Any
) -> Point:
    rules = Rules(swept=swept, signature=lambda key, target: signature, cards={"rtx-4090": CARD}, given=given)
    return settled({**CONFIG, **values}, rules)


def refused(making: Callable[..., Any], *args: Any, **values: Any) -> str:
    with pytest.raises(Mistake) as mistake:
        making(*args, **values)
    assert "\n" not in str(mistake.value)
    return str(mistake.value)


def test_a_point_has_what_can_change_a_measurement_and_nothing_of_the_run() -> None:
    of_a_point = {"model", "workload", "inputs", "dtype", "attention", "quantize", "batch", "context", "warmup"}
    of_a_point |= {"repeats", "seed", "quality"}
    of_its_conditions = {"start", "allocator", "phases", "cache", "tensors", "timeout", "budget"}
    assert set(point().values) == of_a_point | of_its_conditions
    assert point(devices="cpu", name="x", heartbeat=1.0).id == point().id


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("half", "float16"), ("torch.float16", "float16"), ("fp16", "float16"), ("f16", "float16"), ("bf16", "bfloat16"),
     ("torch.bfloat16", "bfloat16"), ("float", "float32"), ("fp32", "float32"), ("double", "float64")],
)  # fmt: skip
def test_a_dtype_under_another_spelling_is_the_same_point(spelled: str, name: str) -> None:
    assert point(dtype=spelled).id == point(dtype=name).id


@pytest.mark.parametrize("dtype", ["flaot16", "int8", "float8_e4m3fn", "Float16"])
def test_an_unknown_dtype_is_refused_by_name(dtype: str) -> None:
    assert f"dtype={dtype}" in refused(point, dtype=dtype)


def test_the_nearest_dtype_is_suggested() -> None:
    assert "did you mean float16?" in refused(point, dtype="flaot16")


@pytest.mark.parametrize(
    ("key", "value"),
    [("batch", 0), ("batch", -1), ("context", 0), ("repeats", 0), ("warmup", -1), ("seed", -1), ("timeout", 0.0),
     ("timeout", -1.0), ("timeout", float("inf")), ("timeout", float("nan")), ("start", "hot"), ("allocator", "fast"),
     ("phases", "all"), ("cache", "drop")],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_with_its_key(key: str, value: Any) -> None:
    assert refused(point, **{key: value}).startswith(f"{key}=")


def test_a_value_out_of_range_is_refused_even_if_unused() -> None:
    nothing = Signature(parameters=(), required=(), takes_any=False)
    assert refused(point, workload=CUSTOM, signature=nothing, context=0).startswith("context=0")


def test_no_warmup_is_a_value() -> None:
    assert point(warmup=0)["warmup"] == 0


@pytest.mark.parametrize(
    ("written", "size"),
    [("24GiB", 24 * 2**30), ("24GB", 24 * 10**9), ("600MiB", 600 * 2**20), ("600 mib", 600 * 2**20),
     ("1.5GiB", 3 * 2**29), (1073741824, 2**30), ("1024MiB", 2**30), ("1073741824", 2**30),
     ("card:rtx-4090", 24_500_000_000)],
)  # fmt: skip
def test_a_budget_is_whole_bytes_or_a_card(written: Any, size: Any) -> None:
    assert point(budget=written)["budget"] == size


def test_what_others_use_is_part_of_a_points_id_and_without_it_a_point_has_the_id_it_always_had() -> None:
    assert "used_by_others" not in point().values
    assert point(used_by_others="1GiB").id == point(used_by_others=2**30).id != point().id
    assert point(used_by_others=0).id != point().id, "a card's own file may say otherwise"
    assert refused(point, used_by_others="much").startswith("used_by_others=much: must be a size")
    assert refused(point, used_by_others=-1).startswith("used_by_others=-1: ")


def test_what_others_use_is_taken_off_a_budget_named_after_a_card() -> None:
    assert point(budget="card:rtx-4090", used_by_others="1GB")["budget"] == 23_500_000_000
    assert refused(point, budget="card:rtx-4090", used_by_others="24.5GB").startswith("used_by_others=24500MB: ")


@pytest.mark.parametrize("written", ["24G", "24", 24, 0, -1, 1e9, True, "GiB", "card:nosuch", [1], "1GiB 2"])
def test_a_budget_that_is_no_size_is_refused(written: Any) -> None:
    assert refused(point, budget=written).startswith("budget=")


def test_keys_that_a_workload_does_not_use_are_null_and_so_not_in_the_id() -> None:
    signature = Signature(parameters=("batch", "dtype"), required=("batch",), takes_any=False)
    one = point(workload=CUSTOM, signature=signature)
    other = point(workload=CUSTOM, signature=signature, model={"name": "gpt2"}, context=7, warmup=9, seed=3)
    assert one.id == other.id
    assert [one[key] for key in ("model", "context", "warmup", "repeats", "seed")] == [None] * 5
    assert (one["batch"], one["dtype"]) == (1, "float32")


def test_a_key_that_a_workload_does_not_use_cannot_be_swept() -> None:
    workload = {"name": "stream", "uses": ["batch"]}
    assert "workload=stream does not use it" in refused(point, ("model.width",), workload=workload)
    assert point(("batch",), workload=workload)["workload"] == "stream"


def test_a_key_that_a_function_does_not_take_cannot_be_swept() -> None:
    signature = Signature(parameters=("batch",), required=(), takes_any=False)
    assert "mywork:run takes no warmup" in refused(point, ("warmup",), signature, workload=CUSTOM)


def test_what_a_workload_uses_is_not_part_of_its_points() -> None:
    workload = {"name": "train", "uses": ["model", "batch"], "choices": {"optimizer": ["adamw"]}, "optimizer": "adamw"}
    assert point(workload=workload).values["workload"] == {"name": "train", "optimizer": "adamw"}


def test_a_choice_of_a_workload_is_checked() -> None:
    workload = {"name": "train", "choices": {"optimizer": ["adamw", "sgd"]}, "optimizer": "adma"}
    assert "did you mean adamw?" in refused(point, workload=workload)


def test_a_parameter_that_the_function_does_not_take_is_refused_with_the_nearest() -> None:
    signature = Signature(parameters=("batch", "limit"), required=(), takes_any=False)
    message = refused(point, (), signature, workload={**CUSTOM, "params": {"limt": 4}})
    assert message == "workload.params.limt: mywork:run takes no limt (did you mean limit?)"


def test_a_parameter_of_a_function_that_takes_anything_is_recorded() -> None:
    assert point(workload={**CUSTOM, "params": {"limt": 4}})["workload.params.limt"] == 4


def test_a_missing_required_parameter_is_refused() -> None:
    signature = Signature(parameters=("batch", "width"), required=("batch", "width"), takes_any=False)
    assert refused(point, (), signature, workload=CUSTOM).startswith("workload.params.width: mywork:run needs it")


def test_an_argument_that_sweeper_passes_is_no_parameter() -> None:
    assert "batch is given by sweeper" in refused(point, workload={**CUSTOM, "params": {"batch": 4}})


def test_a_value_that_is_not_json_is_refused_by_its_key() -> None:
    message = refused(point, workload={**CUSTOM, "params": {"a": 1, "deep": {"x": float("nan")}}})
    assert message.startswith("workload.params.deep.x:")


def test_a_missing_model_is_refused_where_it_is_used() -> None:
    assert refused(point, model={}).startswith("model has no value")


GPT = {"name": "gpt2", "library": "transformers", "model_type": "gpt2", "config": {"n_positions": 1024}}


def shared(share: float, **values: Any) -> Point:
    return point(**{"model": GPT, "inputs": {"name": "long", "of_positions": share}, **values})


def test_a_share_of_the_models_positions_is_the_context() -> None:
    assert [shared(share)["context"] for share in (0.125, 0.5, 1.0)] == [128, 512, 1024]
    generating = {"name": "generate", "new_tokens": 24}
    assert shared(1.0, workload=generating)["context"] == 1000


def test_positions_are_found_where_a_configuration_has_them(tmp_path: Path) -> None:
    beside_images = {"name": "llava", "config": {"text_config": {"max_position_embeddings": 64}}}
    assert shared(0.5, model=beside_images)["context"] == 32
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 48}')
    assert shared(0.5, model={"name": "pretrained", "path": str(tmp_path)})["context"] == 24


def test_a_context_together_with_a_share_of_the_positions_is_refused() -> None:
    rules = Rules(swept=(), signature=lambda key, target: ANYTHING, cards={}, given=("context",))
    config = {**CONFIG, "model": GPT, "inputs": {"name": "limit", "of_positions": 1.0}}
    assert refused(settled, config, rules).startswith("context: inputs=limit sets it")


@pytest.mark.parametrize(
    ("share", "values", "message"),
    [
        (0.0, {}, "inputs.of_positions=0.0: must be a share"),
        (1.5, {}, "inputs.of_positions=1.5: must be a share"),
        (0.0001, {}, "inputs.of_positions=0.0001: leaves no context"),
        (1.0, {"model": {"name": "mlp", "width": 8}}, "inputs=long: mlp has no positions in its configuration"),
        (
            1.0,
            {"model": {"name": "pretrained", "path": "somebody/hub"}},
            "model.path=somebody/hub: its config.json",
        ),
    ],
)
def test_a_share_that_gives_no_context_is_refused(share: float, values: dict[str, Any], message: str) -> None:
    assert refused(shared, share, **values).startswith(message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workload": CUSTOM | {"uses": ["batch"]}}, "quality.target=mine:accuracy: workload=custom has no model"),
        ({"phases": "whole"}, "phases=whole: quality.target would be measured with the rest"),
    ],
)
def test_a_metric_without_a_model_or_a_phase_of_its_own_is_refused(values: dict[str, Any], message: str) -> None:
    quality = CONFIG["quality"] | {"target": "mine:accuracy"}
    assert refused(point, quality=quality, **values).startswith(message)


def test_a_points_id_does_not_depend_on_its_quality_reference() -> None:
    target = CONFIG["quality"] | {"target": "mine:accuracy"}
    against = {"reference": {"dtype": "float32"}, "tolerance": 0.1, "better": "lower"}
    assert point(quality=target | against).id == point(quality=target).id != point().id


TRAIN: dict[str, Any] = {
    "name": "train",
    "choices": {"compile": [False, True], "precision": [None, "bfloat16"]},
    "at_least": {"rank": 1, "dropout": 0.0, "evaluation.batch": 1},
    "only_with": {"rank": {"method": "lora"}},
    "method": "lora", "rank": 8, "dropout": 0.0, "compile": False, "precision": None, "evaluation": {"batch": None},
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 0}, "workload.rank=0: must be a whole number, 1 or more"),
        ({"rank": 2.5}, "workload.rank=2.5: must be a whole number, 1 or more"),
        ({"rank": 2**63}, f"workload.rank={2**63}: must be a whole number, 1 or more"),
        ({"dropout": -0.5}, "workload.dropout=-0.5: must be a number, 0 or more"),
        ({"evaluation": {"batch": 0}}, "workload.evaluation.batch=0: must be a whole number, 1 or more"),
        ({"compile": 1}, "workload.compile=1: must be false or true"),
        ({"precision": "bf16"}, "workload.precision=bf16: must be null or bfloat16; write workload.precision=bfloat16"),
    ],
)
def test_a_workloads_keys_are_checked_by_the_rules_of_its_file(wrong: dict[str, Any], message: str) -> None:
    assert refused(point, workload=TRAIN | wrong) == message


def test_a_key_without_effect_is_null() -> None:
    full = [point(workload=TRAIN | {"method": "full", "rank": rank}) for rank in (4, 8)]
    assert full[0].id == full[1].id
    assert full[0]["workload.rank"] is None
    assert point(workload=TRAIN)["workload.rank"] == 8
    assert not {"choices", "at_least", "only_with"} & point(workload=TRAIN).values["workload"].keys()


def test_sweeping_a_key_without_effect_is_refused_unless_other_swept_values_give_it_one() -> None:
    full = TRAIN | {"method": "full"}
    message = refused(point, ("workload.rank",), workload=full)
    assert message == "workload.rank has several values, and has an effect only with workload.method=lora"
    assert point(("workload.rank", "workload.method"), workload=full)["workload.rank"] is None


def test_a_key_without_effect_that_was_given_once_is_refused_unless_swept_values_give_it_one() -> None:
    full = TRAIN | {"method": "full", "rank": 16}
    given = ("workload.rank",)
    message = refused(point, workload=full, given=given)
    assert message == "workload.rank=16 has an effect only with workload.method=lora"
    assert point(("workload.method",), workload=full, given=given)["workload.rank"] is None
    assert point(workload=full | {"method": "lora"}, given=given)["workload.rank"] == 16


@pytest.mark.parametrize(
    ("workload", "key", "message"),
    [
        (CUSTOM, "context", "context was given, and mywork:run takes no context"),
        (CUSTOM, "model", "model was given, and workload=custom does not use it"),
        (CUSTOM, "model.width", "model.width was given, and workload=custom does not use it"),
        ({"name": "command", "argv": ["python", "{batch}"], "params": {}}, "seed", "workload.argv has no {seed}"),
        ({"name": "mine", "uses": ["batch"]}, "attention", "attention was given, and workload=mine does not use it"),
    ],
)
def test_a_key_that_a_workload_does_not_use_is_refused_if_it_was_given(workload: Any, key: str, message: str) -> None:
    takes_batch = Signature(parameters=("batch",), required=(), takes_any=False)
    workload = {"uses": ["batch", "context", "seed"], **workload}
    assert message in refused(point, workload=workload, signature=takes_batch, given=(key,))
    assert point(workload=workload, signature=takes_batch, given=("batch", "timeout")).id
    assert point(("workload",), workload=workload, signature=takes_batch, given=(key,)).id


@pytest.mark.parametrize(("batch", "parts", "works"), [(4, 2, True), (4, 4, True), (3, 2, False), (1, 2, False)])
def test_a_batch_that_cannot_be_split_is_refused_before_it_is_measured(batch: int, parts: int, works: bool) -> None:
    workload = TRAIN | {"accumulate": parts, "divides": {"accumulate": "batch"}}
    if works:
        assert "divides" not in point(workload=workload, batch=batch).values["workload"]
        return
    assert refused(point, workload=workload, batch=batch) == (
        f"workload.accumulate={parts}: batch={batch} cannot be split into equal parts; batch must be a multiple of"
        f" {parts}, in an interval by resolution.batch={parts}"
    )


@pytest.mark.parametrize(
    ("variables", "settled"),
    [
        ({"X": "1"}, {"X": "1"}),
        ({"X": 1, "Y": True, "Z": 0.5}, {"X": "1", "Y": "true", "Z": "0.5"}),
        ({"X": None}, {"X": None}),
        ({"X": ""}, {"X": ""}),
    ],
)
def test_environment_variables_are_text_and_part_of_the_id(variables: Any, settled: dict[str, str]) -> None:
    with_them = point(env=variables)
    assert with_them.values["env"] == settled
    assert with_them.id != point().id
    assert "env" not in point().values  # the id of a point without them is that of earlier versions


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, "env.CUDA_VISIBLE_DEVICES: devices= sets it"),
        ({"PYTHONPATH": "x"}, "env.PYTHONPATH: sweeper plans with it too; set it in the shell"),
        ({"A-B": "1"}, "env.A-B: must be the name of an environment variable"),
        ({"X": ["1"]}, 'env.X=["1"]: must be a word'),
        ({"X": {"Y": "1"}}, 'env.X={"Y":"1"}: must be a word'),
    ],
)
def test_a_variable_that_cannot_be_set_is_refused(variables: Any, message: str) -> None:
    assert refused(point, env=variables).startswith(message)

from __future__ import annotations

import json
from typing import Any

from sweeper.settled_keys import differing, has_key, without_followers


def config(model: str = "a", width: int = 1, **workload: Any) -> str:
    values = {"model": {"name": model, "width": width}, "dtype": workload.pop("dtype", "float32")}
    return json.dumps(values | {"batch": workload.pop("batch", 1), "workload": {"name": "train", **workload}})


def keys(*configs: str, apart_from: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return list(differing(configs, apart_from).values())


def test_points_are_named_by_the_keys_in_which_they_differ() -> None:
    assert keys(config()) == [{}]
    assert keys(config(checkpointing=True), config(checkpointing=False, dtype="bfloat16")) == [
        {"dtype": "float32", "workload.checkpointing": True},
        {"dtype": "bfloat16", "workload.checkpointing": False},
    ]
    assert keys(config(batch=1), config(batch=2), apart_from=("batch",)) == [{}, {}]


def test_the_options_of_a_group_differ_by_name() -> None:
    assert keys(config("a", 1), config("b", 2)) == [{"model": "a"}, {"model": "b"}]
    assert keys(config("a", 1), config("a", 2)) == [{"model.width": 1}, {"model.width": 2}]


def test_a_key_that_is_null_without_effect_is_left_out_and_one_that_chooses_null_is_not() -> None:
    adapted = config(method="lora", rank=8), config(method="full", rank=None)
    assert keys(*adapted) == [{"workload.method": "lora"}, {"workload.method": "full"}]
    ranks = config(method="lora", rank=8), config(method="lora", rank=4), config(method="full", rank=None)
    assert [each["workload.rank"] for each in keys(*ranks)] == [8, 4, None]
    precisions = config(precision=None), config(precision="bfloat16")
    assert keys(*precisions) == [{"workload.precision": None}, {"workload.precision": "bfloat16"}]


def test_a_key_that_a_workload_lacks_is_no_key_of_its_points() -> None:
    assert has_key(config(method="full", rank=None), "workload.rank")
    assert not has_key(config(), "workload.rank")
    assert has_key(config(params={"deep": {"x": 1}}), "workload.params.deep")
    assert has_key(config(), "allocator")


def test_a_key_that_follows_another_is_not_named_with_it_in_whichever_order_they_are() -> None:
    reversed_order = config(rank=8, method="lora"), config(rank=None, method="full"), config("b")
    assert [set(each) for each in keys(*reversed_order)] == [{"model", "workload.method"}] * 2 + [{"model"}]
    adapted = config(method="lora", rank=8), config(method="full", rank=None)
    assert without_followers(["workload.method", "workload.rank"], adapted) == ["workload.method"]
    ranks = (*adapted, config(method="lora", rank=4))
    assert without_followers(["workload.method", "workload.rank"], ranks) == ["workload.method", "workload.rank"]
    nested = config(params={"deep": {"x": 1}}), config(params={"deep": {"x": 2}})
    assert without_followers(["workload.params.deep"], nested) == ["workload.params.deep"]

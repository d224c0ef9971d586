from __future__ import annotations

import json
from typing import Any

import pytest

from sweeper.plan import follows
from sweeper.requested import rest, rest_of, settings_text, value_in

VALUES: dict[str, Any] = {"batch": 2, "workload": {"name": "custom", "params": {"ckpt": "/fold_2.pt", "width": 8}}}
SETTINGS = {"batch": 2, "workload.params.ckpt": "/fold_${batch}.pt", "workload.params.width": 8}
ROW = {
    "config": json.dumps(VALUES),
    "settings": json.dumps(SETTINGS),
    "batch": 2,
    "workload.params.ckpt": "/fold_2.pt",
    "workload.params.width": 8,
}


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("${batch}", True),
        ("/fold_${batch}.pt", True),
        ("${oc.select:model.width}", True),
        ([1, "${batch}"], True),
        ({"a": "${batch}"}, True),
        ("batch", False),
        (2, False),
        (None, False),
        ("${oc.env:USER}", False),
        ("${now:%H}/${batch}", False),
    ],
)
def test_a_value_follows_others_if_it_was_written_with_their_keys_alone(value: Any, answer: bool) -> None:
    assert follows(value) is answer


def test_a_value_that_follows_is_the_expression_in_what_was_requested() -> None:
    expected = {"workload": {"name": "custom", "params": {"ckpt": "/fold_${batch}.pt", "width": 8}}}
    assert json.loads(rest(VALUES, SETTINGS, ["batch"])) == expected
    assert json.loads(rest_of(ROW, ["batch"])) == expected
    assert json.loads(rest_of({"config": ROW["config"]}, ["batch", "workload.params.ckpt"])) == {
        "workload": {"name": "custom", "params": {"width": 8}}
    }
    assert (value_in(ROW, "workload.params.ckpt"), value_in(ROW, "workload.params.width")) == ("/fold_${batch}.pt", 8)
    assert VALUES["workload"]["params"]["ckpt"] == "/fold_2.pt"


def test_a_heading_shortens_a_long_value() -> None:
    row = {"settings": json.dumps({"dtype": "bfloat16", "workload.argv": ["word"] * 40, "batch": 2})}
    (text,) = settings_text(row, ("batch",))
    assert text.startswith('workload.argv=["word"')
    assert text.endswith("...")
    assert len(text) < 100

"""The quantity that ranks configurations, as it is typed."""

from __future__ import annotations

import pytest

from sweeper.errors import Mistake
from sweeper.objective import TOKENS, Objective


def test_tokens_are_batch_times_context() -> None:
    assert TOKENS.exponents == {"batch": 1, "context": 1}
    assert TOKENS.keys == ()


def test_a_product_has_an_exponent_for_each_key() -> None:
    assert Objective.parse("model.width ^ 1.5 * batch").exponents == {"model.width": 1.5, "batch": 1}
    assert Objective.parse("tokens*batch").exponents == {"batch": 2, "context": 1}


@pytest.mark.parametrize("wrong", ["", "batch+context", "batch**2", "batch^-1", "__import__(1)", "batch*batch", "a b"])
def test_anything_but_a_product_of_keys_is_refused_and_never_evaluated(wrong: str) -> None:
    with pytest.raises(Mistake, match="must be tokens, a key, or a product"):
        Objective.parse(wrong)


def test_equal_products_rank_alike_and_the_larger_batch_comes_first() -> None:
    rank = TOKENS.ranking(["context", "batch"])
    wide, long = rank({"batch": 4, "context": 4}), rank({"batch": 2, "context": 8})
    assert wide[0] == long[0]
    assert wide > long


def test_equal_products_rank_by_the_keys_in_the_order_of_the_objective() -> None:
    wide, long = {"batch": 4, "context": 4}, {"batch": 2, "context": 8}
    for text, first in (("tokens", wide), ("batch*context", wide), ("context*batch", long)):
        assert max(wide, long, key=Objective.parse(text).ranking(["batch", "context"])) == first


def test_a_product_beyond_the_range_of_a_float_is_ranked() -> None:
    rank = Objective.parse("context^200").ranking(["context"])
    assert rank({"context": 8192}) > rank({"context": 4096})


def test_an_objective_without_a_searched_key_ranks_by_all_searched_keys() -> None:
    rank = Objective.parse("workload.rank").ranking(["batch", "context"])
    assert rank({"batch": 2, "context": 8}) > rank({"batch": 2, "context": 4})

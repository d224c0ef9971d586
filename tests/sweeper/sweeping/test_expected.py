"""The process that is started for a command line before it is parsed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runners.workloads import custom, generate, train
from sweeper.sweeping.expected import _attempt, engine_for


def expected(*words: str) -> set[str]:
    """The modules that the process would import of the words' workload."""
    given = dict(word.split("=", 1) for word in words)
    values = _attempt(given).point.values
    workload = {"train": train, "generate": generate, "custom": custom}[values["workload"]["name"]]
    return set(workload.imports(values))


def test_the_model_and_the_workload_that_were_typed_decide_what_is_imported() -> None:
    llama = "transformers.models.llama.modeling_llama"
    assert expected("model=llama-3.1-8b", "workload=train") == {"torch", llama, "torch._dynamo"}
    assert expected("model=gpt2,llama-3.1-8b", "workload=generate") == {
        "torch", "transformers.models.gpt2.modeling_gpt2"
    }  # fmt: skip
    assert expected("workload=generate") == {"torch", llama}, "the default model is a llama"
    assert expected("workload=custom", "model=mlp") == {"torch"}


@pytest.mark.parametrize(
    "words",
    [
        ["devices=[cpu]", "model=gpt2"],
        ["devices=[sim:h100-80gb]", "env.PYTORCH_ALLOC_CONF=expandable_segments:True"],
        ["devices=[sim:h100-80gb]", "python=/nothing/here"],
    ],
)
def test_no_process_is_started_for_attempts_that_it_could_not_serve(words: Sequence[str]) -> None:
    with engine_for(words) as engine:
        assert engine is None

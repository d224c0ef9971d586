"""The words of `fit` that name models and cards: what each means, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sweeper import cards
from sweeper.errors import Mistake
from sweeper.planning.fit_request import FitRequest, options_with, read_request
from sweeper.serving import PASS_TOKENS


def request(*words: str) -> FitRequest:
    return read_request(words)


def given(read: FitRequest) -> dict[str, str]:
    return dict(word.split("=", 1) for word in read.overrides)


def test_a_name_on_the_hub_is_a_checkpoint() -> None:
    for words in (("Qwen/Qwen3-8B", "rtx-4090"), ("model=Qwen/Qwen3-8B", "card=rtx-4090")):
        assert given(request(*words)) == {
            "model": "pretrained", "model.path": "Qwen/Qwen3-8B", "devices": "[sim:rtx-4090]",
        }  # fmt: skip


def test_a_folder_is_a_checkpoint_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's, mine"
    folder.mkdir()
    assert given(request(str(folder), "rtx-4090"))["model.path"] == f"'{tmp_path}/it\\'s, mine'"


def test_a_models_own_file_becomes_an_option_while_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", "library": "torch", "width": 8}))
    read = request(str(file), "rtx-4090")
    assert given(read)["model"] == "mine"
    with options_with(read.own_file, None) as folder:
        assert Path(str(folder), "model", "mine.yaml").read_text() == file.read_text()
    assert not Path(str(folder)).exists()
    with pytest.raises(Mistake, match="put the file into mine/model"), options_with(read.own_file, "mine"):
        pass


def test_cards_are_listed_named_one_by_one_or_all() -> None:
    for words in (("rtx-4090", "h100-80gb"), ("card=rtx-4090,h100-80gb",), ("card=[sim:rtx-4090,h100-80gb]",)):
        assert request("qwen2.5-7b", *words).cards == ("rtx-4090", "h100-80gb")
    for word in ("all", "sim:all", "card=all"):
        assert request("qwen2.5-7b", word).cards == tuple(cards.of_sweeper())
    assert request("qwen2.5-7b", "L40S", "l40s-48gb").cards == ("l40s-48gb",)


def test_several_cards_are_compared_at_one_context() -> None:
    assert request("qwen2.5-7b", "rtx-4090").chosen_contexts((512, 2048, 8192)) == (512, 2048, 8192)
    assert request("qwen2.5-7b", "rtx-4090", "l40s").chosen_contexts((512, 2048, 8192)) == (4096,)
    assert request("qwen2.5-7b", "rtx-4090", "l40s").chosen_contexts((128, 512)) == (512,)
    assert request("mine/images", "rtx-4090", "l40s").chosen_contexts(()) == ()


def test_a_server_of_a_model_with_few_positions_has_room_for_the_answer() -> None:
    words = ("gpt2", "l4-24gb", "workload=generate", "concurrency=2")
    assert request(*words).chosen_contexts((512, 1024)) == (512,)
    assert request(*words, "workload.new_tokens=24").chosen_contexts((512, 1024)) == (1000,)
    assert request(*words).chosen_contexts((2048, 131072)) == (4096,)


def test_a_server_has_pages_and_passes_of_its_own() -> None:
    (setting,) = request("qwen2.5-7b", "rtx-4090", "workload=generate", "concurrency=32").settings
    assert setting.values["workload.cache"] == "paged"
    assert setting.values["workload.prefill_chunk"] == PASS_TOKENS
    (setting,) = request("gpt2", "l4-24gb", "workload=generate", "concurrency=2", "workload.prefill_chunk=512").settings
    assert "workload.prefill_chunk" not in setting.values  # the typed one stays


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt2 l4 concurrency=32", "concurrency=32: .* write workload=generate concurrency=32"),
        ("gpt2 l4 workload=train concurrency=32", "concurrency=32: .* write workload=generate concurrency=32"),
        ("gpt2 l4 workload=generate concurrency=0", "concurrency=0: must be a whole number from 1 to 1024"),
        ("gpt2 l4 workload=generate concurrency=2k", "concurrency=2k: must be a whole number from 1 to 1024"),
        ("gpt2 v100", "fit v100: neither a model nor a card .*v100-16gb or v100-32gb"),
        ("gpt2 card=h100", "card=h100: no such card .*h100-80gb"),
        ("gpt2 card=cpu", "card=cpu: fit takes a card with memory of its own"),
        ("nothing.yaml l4", "model=nothing.yaml: no such file"),
    ],
)
def test_other_words_are_refused_in_one_line(words: str, message: str) -> None:
    with pytest.raises(Mistake, match=message) as refused:
        request(*words.split())
    assert "\n" not in str(refused.value)


def test_a_file_named_like_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gpt2.yaml"
    file.write_text("name: mine\n")
    with pytest.raises(Mistake, match="there is a model gpt2 already; give the file another name"):
        request(str(file), "l4")

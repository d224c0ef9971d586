"""Results whose shape depends on numbers that are not there, and checks of such numbers that end a program."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.programs import HOST, MIB, Calculated, calculated


def bounds(found: Calculated) -> set[tuple[str, str]]:
    assert found.error is None, found.lines[-1]["traceback"] or found.error
    places = [each for line in found.lines if line["kind"] == "assumed" for each in line["bounds"]]
    return {(each["operator"], each["bound"]) for each in places}


def test_predictions_have_at_most_as_many_different_values_as_there_are_classes() -> None:
    def program() -> list[list[int]]:
        predicted = torch.randn(4096, 10, device="cuda").argmax(dim=1)
        drawn = torch.randint(3, 7, (4096,), device="cuda")
        best = torch.randn(4096, 20, device="cuda").topk(5).indices
        chosen = [predicted.view(64, 64), predicted[predicted != 3], drawn.clone(), best, predicted > drawn]
        return [list(torch.unique(each).shape) for each in chosen]

    found = calculated(program)
    assert found.returned == {"result": [[10], [10], [4], [20], [2]]}
    assert ("aten._unique2", "at most 10 different numbers") in bounds(found)


def test_a_storage_that_is_written_to_has_other_values_than_before() -> None:
    def program() -> list[int]:
        predicted = torch.randn(64, 10, device="cuda").argmax(dim=1)
        predicted.mul_(torch.randint(0, 100, (64,), device="cuda"))
        return list(torch.unique(predicted).shape)

    found = calculated(program)
    assert found.returned == {"result": [64]}
    assert ("aten._unique2", "at most all") in bounds(found)


def test_numbers_that_are_known_are_counted_as_they_are() -> None:
    def program() -> list[int]:
        return list(torch.unique(torch.tensor([3, 1, 3], device="cuda")).shape)

    found = calculated(program)
    assert (found.returned, bounds(found)) == ({"result": [2]}, set())


def test_unique_rows_and_runs_are_at_most_all() -> None:
    def program() -> list[list[int]]:
        numbers = torch.randn(6, 4, device="cuda")
        rows, inverse, counts = torch.unique(numbers, dim=0, return_inverse=True, return_counts=True)
        runs, run_counts = torch.unique_consecutive(numbers, return_counts=True)
        return [list(each.shape) for each in (rows, inverse, counts, runs, run_counts)]

    assert calculated(program).returned == {"result": [[6, 4], [6], [6], [24], [24]]}


def test_a_confusion_matrix_has_the_counts_that_it_asks_for() -> None:
    def program(least: int) -> list[int]:
        predicted = torch.randn(64, 10, device="cuda").argmax(dim=1)
        return list(torch.bincount(predicted, minlength=least).shape)

    found = calculated(program, least=100)
    assert found.returned == {"result": [100]}
    assert ("aten.bincount", "no longer than minlength") in bounds(found)
    assert "aten.bincount" in str(calculated(program, least=0).error)


def test_torch_equal_of_numbers_that_are_not_there_is_an_assumption() -> None:
    def program() -> list[bool]:
        a, b = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
        known = torch.tensor([1, 2], device="cuda")
        return [a.equal(b), a.equal(a.view(8)), a.equal(b[:4]), known.equal(torch.tensor([1, 2], device="cuda"))]

    found = calculated(program)
    assert found.returned == {"result": [False, True, False, True]}
    (line,) = [line for line in found.lines if line["kind"] == "assumed"][-1:]
    assert [each["operator"] for each in line["places"]] == ["torch.equal"]


@pytest.mark.parametrize("card", [None, HOST])
def test_a_check_that_would_end_the_program_is_taken_as_passed(card: Any) -> None:
    def program(**_: Any) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        probabilities = torch.softmax(torch.randn(16, 2, device=device), -1)
        drawn = torch.distributions.Categorical(probs=probabilities).sample()
        if drawn.sum() == 16:
            raise ValueError("all the same")
        assert (drawn < 0).any(), "none"
        if not drawn.max() > 1e9:
            raise SystemExit(3)
        if drawn.max().item() > 100:
            held = torch.empty(MIB, dtype=torch.uint8, device=device)
        else:
            raise RuntimeError("few")
        del held

    found = calculated(program) if card is None else calculated(program, card)
    assert found.error is None, found.lines[-1]["traceback"]


def test_an_extensions_result_is_at_most_what_its_rule_allows() -> None:
    library = torch.library.Library("sweeper_zoo", "DEF")
    library.define("chosen(Tensor x) -> Tensor")
    library.define("counted(Tensor x) -> Tensor")

    @torch.library.register_fake("sweeper_zoo::chosen", lib=library)
    def chosen(x: Any) -> Any:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(max=len(x)))

    @torch.library.register_fake("sweeper_zoo::counted", lib=library)
    def counted(x: Any) -> Any:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    def program(name: str) -> list[int]:
        return list(getattr(torch.ops.sweeper_zoo, name)(torch.randn(MIB, device="cuda")).shape)

    found = calculated(program, name="chosen")
    assert found.returned == {"result": [MIB]}
    assert found.peaks["requested"] == 8 * MIB
    assert ("sweeper_zoo.chosen.default", "at most all") in bounds(found)
    refused = str(calculated(program, name="counted").error)
    assert "sweeper_zoo.counted.default" in refused
    assert "gives no max to new_dynamic_size" in refused


def test_the_boxes_that_non_maximum_suppression_keeps_are_at_most_all() -> None:
    ops = pytest.importorskip("torchvision.ops")

    def program() -> list[int]:
        return list(ops.nms(torch.rand(50, 4, device="cuda"), torch.rand(50, device="cuda"), 0.5).shape)

    assert calculated(program).returned == {"result": [50]}

"""A program that reads numbers which are not calculated gets assumed ones, and its row says where and for what."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import logging
import math
import os
import pickle
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runners.simulation.assumptions import Assumptions
from tests.programs import H100, HOST, Calculated, calculated

CARDS = pytest.mark.parametrize("card", [H100, HOST], ids=["card", "host"])
ROWS = 50
Json = dict[str, Any]


def unknown(device: str, *shape: int) -> torch.Tensor:
    """Numbers that are not known."""
    return torch.rand(*(shape or (ROWS, 4)), device=device).softmax(-1)


def whole(device: str) -> Any:
    """A whole number without a bound."""
    return unknown(device).argmax().item()


def count(device: str) -> Any:
    """A whole number of which the most is known: ROWS."""
    return (unknown(device, ROWS) > 0.5).sum().item()


def operators(found: Calculated) -> list[str]:
    return [place["operator"] for place in found.assumed["places"]]


def bounds(found: Calculated) -> dict[str, str]:
    return {each["operator"]: each["bound"] for each in found.assumed["bounds"]}


def line_of(function: Callable[..., Any], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


# --- reading ---


def trains(device: str) -> Json:
    model = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(3):
        loss = model(unknown(device)).square().mean()
        if not torch.isfinite(loss) or math.isnan(loss.item()):
            raise RuntimeError("diverged")
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"step {step}: loss {loss.item():.3f}, {float(norm):.2f}, {loss:.2f}", file=io.StringIO())
    return {"loss": sum(losses) / len(losses), "best": min(losses), "mean": float(np.mean(losses))}


@CARDS
def test_losses_are_logged_guarded_and_returned(card: Any) -> None:
    found = calculated(trains, card)
    assert found.returned == {"loss": 1.0, "best": 1.0, "mean": 1.0}
    assert found.notes == []
    assert found.assumed["bounds"] == []
    place = next(each for each in found.assumed["places"] if each["operator"] == "float")
    assert place["file"].endswith("tests/runners/simulation/test_assumptions.py")
    assert (place["function"], place["times"]) == ("trains", 3)
    assert found.assumed["values"] >= sum(
        each["times"] for each in found.assumed["places"] if each["line"] == place["line"]
    )


def test_the_row_counts_the_values_and_names_their_lines() -> None:
    def program(device: str) -> None:
        losses = unknown(device).mean(0)
        losses[0].item()
        for loss in losses:
            float(loss)

    found = calculated(program)
    assert found.assumed["values"] == 5
    assert [(each["line"], each["operator"], each["times"]) for each in found.assumed["places"]] == [
        (line_of(program, 2), "Tensor.item", 1),
        (line_of(program, 4), "float", 4),
    ]


def test_a_program_that_reads_nothing_assumes_nothing() -> None:
    found = calculated(lambda device: {"shape": list(unknown(device).square().mean(0).shape)})
    assert (found.returned, found.assumed, found.notes) == ({"shape": [4]}, {}, [])


def test_assume_sets_what_is_read() -> None:
    def program(device: str) -> Json:
        number = unknown(device).mean()
        return {"item": number.item(), "text": f"{number:.2f}", "whole": whole(device), "large": bool(number > 3)}

    assert calculated(program).returned == {"item": 1.0, "text": "1.00", "whole": 1, "large": False}
    assert calculated(program, assume=7.5).returned == {"item": 7.5, "text": "7.50", "whole": 7, "large": True}


@CARDS
def test_an_assumed_number_is_a_number_to_python(card: Any) -> None:
    def program(device: str) -> Json:
        n, x = whole(device), unknown(device).mean().item()
        logging.getLogger(__name__).debug("%d of %d", n, 5)
        csv.writer(io.StringIO()).writerow([n, x])
        random.seed(n)
        return {
            "type": isinstance(n, int) and isinstance(x, float) and not isinstance(n, bool),
            "text": [str(n), repr(n), f"{n:03d}", f"{n}", "{:>3}".format(n), "%d" % n],  # noqa: UP031, UP032
            "json": json.dumps({"n": n, "x": x}),
            "sums": [
                n + 1,
                2 - n,
                -n,
                n * 2,
                2**n,
                n % 3,
                9 // n,
                n / 2,
                divmod(n, 2),
                n & 1,
                n << 2,
                abs(n),
                ~n,
                round(n),
            ],
            "equal": [n == 1, n in (1, 2), {1: "one"}[n], ["zero", "one"][n], hash(n) == hash(1)],
            "math": [
                math.exp(n),
                math.sqrt(x),
                math.floor(x),
                math.isnan(x),
                float(n),
                sum([n, n]),
                max(n, 0),
                min(x, 0.5),
            ],
            "means": [statistics.mean([n, n]), statistics.fmean([x]), float(np.mean([n, n])), float(np.median([x]))],
            "copies": [copy.deepcopy([n, x]), pickle.loads(pickle.dumps((n, x)))],
            "counter": Counter([n, n]).most_common(1),
        }

    assert calculated(program, card).returned == {
        "type": True,
        "text": ["1", "1", "001", "1", "  1", "1"],
        "json": '{"n": 1, "x": 1.0}',
        "sums": [2, 1, -1, 2, 2, 1, 9, 0.5, [0, 1], 1, 4, 1, -2, 1],
        "equal": [True, True, "one", "one", True],
        "math": [math.e, 1.0, 1, False, 1.0, 2, 1, 0.5],
        "means": [1, 1.0, 1.0, 1.0],
        "copies": [[1, 1.0], [1, 1.0]],
        "counter": [[1, 2]],
    }


def test_a_pickled_number_is_a_plain_one() -> None:
    def program(device: str) -> Json:
        return {
            "types": [type(pickle.loads(pickle.dumps(each))).__name__ for each in (whole(device), count(device) / 2)]
        }

    assert calculated(program).returned == {"types": ["int", "float"]}


def test_outside_of_the_program_max_min_and_math_are_pythons_own() -> None:
    before = max, min, math.exp, json.JSONEncoder.default
    calculated(trains)
    assert (max, min, math.exp, json.JSONEncoder.default) == before


# --- sizes ---

SIZES: dict[str, Callable[[str, Any], Any]] = {
    "zeros": lambda device, n: torch.zeros(n, device=device),
    "arithmetic": lambda device, n: torch.zeros(2, n * 3 + 1, device=device),
    "bit_length": lambda device, n: torch.zeros(n.bit_length(), device=device),
    "shift": lambda device, n: torch.zeros(1 << n, device=device),
    "max": lambda device, n: torch.zeros(max(n, 10), device=device),
    "min": lambda device, n: torch.zeros(min(n, 10), device=device),
    "sum": lambda device, n: torch.zeros(sum([n, 2]), device=device),
    "int": lambda device, n: torch.zeros(int(n), device=device),
    "int of float": lambda device, n: torch.zeros(int(float(n) * 2), device=device),
    "ceil": lambda device, n: torch.zeros(math.ceil(n / 2), device=device),
    "square root": lambda device, n: torch.zeros(int(math.sqrt(n) * 10), device=device),
    "tensor's slice": lambda device, n: torch.zeros(9, device=device)[1:n],
    "list's slice": lambda device, n: torch.tensor([1, 2, 3][:n], device=device),
    "list times": lambda device, n: torch.tensor([1] * n, device=device),
    "times list": lambda device, n: torch.tensor(n * [1], device=device),
    "bytes": lambda device, n: bytes(n),
    "range": lambda device, n: [torch.zeros(1, device=device) for _ in range(n)],
    "islice": lambda device, n: list(islice(range(9), n)),
    "sample": lambda device, n: random.sample(range(9), n),
    "numpy.zeros": lambda device, n: np.zeros(n),
    "numpy's slice": lambda device, n: np.arange(9)[:n],
    "reshape": lambda device, n: torch.zeros(8, device=device).reshape(n, -1),
    "topk": lambda device, n: torch.zeros(8, device=device).topk(n),
    "split": lambda device, n: torch.zeros(8, device=device).split([n, 8 - n]),
    "expand": lambda device, n: torch.zeros(1, device=device).expand(n),
    "repeat_interleave": lambda device, n: torch.zeros(2, device=device).repeat_interleave(n),
    "interpolate": lambda device, n: nn.functional.interpolate(torch.zeros(1, 1, 4, 4, device=device), size=n),
    "Linear": lambda device, n: nn.Linear(n, 2, device=device),
    "a tensor's number": lambda device, n: torch.zeros(int(torch.tensor([n, 3])[0]), device=device),
    "a filled tensor's number": lambda device, n: torch.zeros(torch.full((1,), n, device=device).item(), device=device),
}


@CARDS
@pytest.mark.parametrize("use", SIZES)
def test_a_size_by_a_number_without_a_bound_is_unavailable_with_file_line_and_operator(card: Any, use: str) -> None:
    def program(device: str) -> None:
        SIZES[use](device, whole(device))

    error = calculated(program, card).error or ""
    line = line_of(SIZES[use], 0)
    assert error.startswith("runners.phases.Unavailable: ")
    assert f"tests/runners/simulation/test_assumptions.py:{line} (<lambda>), " in error
    assert "size" in error


@CARDS
@pytest.mark.parametrize(
    "use",
    [
        each
        for each in SIZES
        if each not in ("sample", "split", "a tensor's number", "a filled tensor's number", "topk")
    ],
)
def test_a_size_by_a_number_with_a_bound_is_at_most_all_or_unavailable(card: Any, use: str) -> None:
    def program(device: str) -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            SIZES[use](device, count(device))

    found = calculated(program, card)
    if found.error is None:
        assert set(bounds(found).values()) == {"at most all"}
    else:
        assert found.error.startswith("runners.phases.Unavailable: ")


def test_at_most_all_is_the_size_and_what_is_calculated_from_it() -> None:
    def program(device: str) -> Json:
        n = count(device)
        sizes = [n, n + 1, n // 2, 2 * n, max(n, 1), min(n, 10), math.ceil(n / 3), int(0.5 * n)]
        return {"sizes": [len(torch.zeros(each, device=device)) for each in sizes]}

    found = calculated(program)
    assert found.returned == {"sizes": [50, 51, 25, 100, 50, 10, 17, 25]}
    assert set(bounds(found).values()) == {"at most all"}


def test_a_slice_to_or_from_any_number_has_at_most_all_elements() -> None:
    def program(device: str) -> Json:
        x, n = torch.zeros(9, 4, device=device), whole(device)
        return {"shapes": [list(each.shape) for each in (x[:n], x[n:], x[:, :n], x[: unknown(device).argmax()])]}

    found = calculated(program)
    assert found.returned == {"shapes": [[9, 4]] * 4}
    assert bounds(found) == {"slice": "at most all"}


@pytest.mark.parametrize(
    "fewer",
    [
        lambda n: ROWS - n,
        lambda n: n - n,
        lambda n: 100 // (n + 1),
        lambda n: -n + 100,
        lambda n: n % 7,
        lambda n: abs(n - 100),
        lambda n: n ^ 63,
    ],
)
def test_what_falls_as_the_number_grows_has_no_bound(fewer: Callable[[Any], Any]) -> None:
    def program(device: str) -> None:
        torch.zeros(fewer(count(device)), device=device)

    assert "a number that is not calculated decides a size" in (calculated(program).error or "")


def test_int_without_a_further_use_is_read_and_with_one_the_message_says_what_to_write() -> None:
    def accuracy(device: str) -> Json:
        correct = 0
        for _ in range(2):
            correct += int((unknown(device).argmax(1) == 2).sum())
        return {"accuracy": f"{correct / 100:.0%}"}

    def shape(device: str) -> None:
        kept = int(unknown(device).argmax())
        torch.zeros(kept, device=device)

    assert calculated(accuracy).returned == {"accuracy": "100%"}
    error = calculated(shape).error or ""
    assert "which may decide a size (torch.zeros(kept, device=device)); without int() it is followed" in error


def test_a_caught_refusal_does_not_hide_that_the_size_is_not_known() -> None:
    def program(device: str) -> None:
        with contextlib.suppress(Exception):
            torch.zeros(whole(device), device=device)
        torch.zeros(5, device=device)

    assert "a number that is not calculated decides a size" in (calculated(program).error or "")


# --- loops ---


def stops_early(device: str) -> Json:
    best, worse, epochs = math.inf, 0, 0
    for _ in range(10):
        loss = unknown(device).mean().item()
        epochs += 1
        if loss < 0.001:
            break
        best, worse = (loss, 0) if loss < best else (best, worse + 1)
    return {"epochs": epochs}


def generates(device: str) -> Json:
    ids = torch.zeros(2, 4, dtype=torch.long, device=device)
    finished = torch.zeros(2, dtype=torch.bool, device=device)
    for _ in range(5):
        chosen = unknown(device, 2, 8).argmax(-1)
        ids = torch.cat([ids, chosen[:, None]], 1)
        finished |= chosen == 3
        if finished.all():
            break
    return {"length": ids.shape[1]}


def waits_for_a_flag(device: str) -> Json:
    done, steps = False, 0
    while not done:
        done = unknown(device).mean().item() > 3
        steps += 1
        if steps == 20:
            break
    return {"steps": steps}


def has_two_conditions(device: str) -> Json:
    steps = 0
    while steps < 6 and (unknown(device) > 0.5).any():
        steps += 1
    return {"steps": steps}


@CARDS
@pytest.mark.parametrize(
    ("program", "result", "bound"),
    [
        (stops_early, {"epochs": 10}, "as if no break"),
        (generates, {"length": 9}, "as if no break"),
        (waits_for_a_flag, {"steps": 20}, "as long as it may go on"),
        (has_two_conditions, {"steps": 6}, "as long as it may go on"),
    ],
)
def test_a_loop_that_a_number_could_end_goes_on_to_its_other_end(
    card: Any, program: Callable[..., Any], result: Json, bound: str
) -> None:
    found = calculated(program, card)
    assert found.returned == result
    assert bound in bounds(found).values()


def halves_until_small(device: str) -> None:
    x = unknown(device)
    while x.mean().item() > 0.01:
        x = x / 2


def halves_until_none(device: str) -> None:
    x = unknown(device)
    while x.sum().item():
        x = x / 2


def searches_a_token(device: str) -> None:
    while True:
        if whole(device) == 3:
            break


def counts_down(device: str) -> None:
    x = unknown(device)
    while int((x > 0).sum()) > 0:
        x = x - 1


def asks_a_float(device: str) -> None:
    x = unknown(device).mean()
    while float(x) > 0.01:
        x = x / 2


def asks_a_tensor(device: str) -> None:
    x = unknown(device)
    while (x > 0).any():
        x = x - 1


def asks_a_flag(device: str) -> None:
    done = False
    while not done:
        done = bool(unknown(device).mean() > 3)


@CARDS
@pytest.mark.parametrize(
    "program",
    [halves_until_small, halves_until_none, searches_a_token, counts_down, asks_a_float, asks_a_tensor, asks_a_flag],
)
def test_a_loop_that_only_a_number_can_end_is_unavailable_with_its_place(
    card: Any, program: Callable[..., Any]
) -> None:
    error = calculated(program, card).error or ""
    assert f"test_assumptions.py:{line_of(program, 1)}" < error[error.index("test_assumptions.py") :]
    assert f"({program.__name__}), " in error
    assert "an assumed number decides when the loop ends" in error


# --- branches ---


def keeps_the_best(device: str) -> None:
    model, best, kept = nn.Linear(512, 512, device=device), math.inf, None
    for _ in range(3):
        loss = unknown(device).mean()
        if loss < best:
            best, kept = loss.item(), copy.deepcopy(model)
    assert kept is not None


def test_a_branch_that_may_take_memory_is_named_with_the_way_that_was_taken() -> None:
    found = calculated(keeps_the_best)
    assert found.error is None
    decides = "an assumed number decides `if loss < best`, which is taken and not taken"
    assert [note.partition(": ")[2] for note in found.notes] == [f"{decides}; the other way may take other memory"]
    places = {each["operator"]: (each["line"], each["times"]) for each in found.assumed["places"]}
    line = line_of(keeps_the_best, 4)
    assert (places["if loss < best: taken"], places["if loss < best: not taken"]) == ((line, 1), (line, 2))


def test_assume_takes_the_other_branch_and_its_memory() -> None:
    def program(device: str) -> None:
        if unknown(device).mean().item() > 3:
            torch.zeros(2**20, device=device)

    small, large = (calculated(program, assume=assume) for assume in (1.0, 5.0))
    assert large.peaks["requested"] - small.peaks["requested"] > 3 * 2**20
    assert [found.notes[0].rpartition("which is ")[2].partition(";")[0] for found in (small, large)] == [
        "not taken",
        "taken",
    ]


def test_a_guard_that_raises_is_assumed_not_to() -> None:
    def program(device: str) -> str:
        if unknown(device).mean().item() < 3:
            raise ValueError("small")
        labels = unknown(device).argmax(1)
        if labels.max() > 0:
            raise ValueError("too many classes")
        return "passed"

    found = calculated(program)
    assert found.returned == {"result": "passed"}
    assert found.notes == []


def test_both_branches_are_never_mixed() -> None:
    def program(device: str) -> Json:
        x = unknown(device).mean()
        number = x.item()
        ways = [x > 0.5, number > 0.5, x.cpu() > 0.5, torch.tensor(number, device=device) > 0.5, x.cpu().numpy() > 0.5]
        return {"ways": [bool(each) for each in ways], "not": [bool(x <= 0.5), not number > 0.5]}

    assert calculated(program).returned == {"ways": [True] * 5, "not": [False, False]}


def test_a_scheduler_that_waits_for_a_better_loss_works() -> None:
    def program(device: str) -> Json:
        optimizer = torch.optim.SGD(nn.Linear(2, 2, device=device).parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        for each in (unknown(device).mean(), unknown(device).mean().item()) * 2:
            scheduler.step(each)
        return {"lr": optimizer.param_groups[0]["lr"]}

    assert calculated(program).returned["lr"] == pytest.approx(0.01)


# --- NumPy ---


def test_numpys_numbers_of_a_copy_on_the_host_are_assumed_too() -> None:
    def metrics(device: str) -> Json:
        chosen = unknown(device).argmax(1).cpu().numpy()
        labels = np.arange(ROWS) % 4
        best = 0.0
        if (accuracy := (chosen == labels).mean()) > best:
            best = accuracy
        return {"best": float(best), "first": chosen[0], "list": chosen.tolist()[:2], "type": str(chosen.dtype)}

    found = calculated(metrics)
    assert found.returned == {"best": 0.26, "first": 1, "list": [1, 1], "type": "int64"}
    assert "numpy.bool" in operators(found)


@pytest.mark.parametrize(
    "size",
    [
        lambda chosen: int(chosen.sum()),
        lambda chosen: int((chosen == 1).sum()),
        lambda chosen: chosen.max(),
        lambda chosen: chosen[0],
        lambda chosen: chosen.argmax(),
        lambda chosen: torch.from_numpy(chosen + 1).max().item(),
    ],
)
def test_a_size_by_numpys_numbers_is_unavailable(size: Callable[[Any], Any]) -> None:
    def program(device: str) -> None:
        torch.zeros(size(unknown(device).argmax(1).cpu().numpy()), device=device)

    assert "not calculated" in (calculated(program).error or "")


def test_a_program_in_a_loop_of_loaders_reads_the_whole_data() -> None:
    def batches(device: str) -> Iterator[Any]:
        data = torch.utils.data.TensorDataset(torch.arange(20.0).reshape(10, 2))
        yield from torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)

    def program(device: str) -> Json:
        return {"rows": [len(rows) for (rows,) in batches(device)]}

    assert calculated(program, HOST).returned == {"rows": [4, 4, 2]}


def test_branches_of_libraries_are_counted_and_those_of_the_program_are_named(tmp_path: Path) -> None:
    assumptions = Assumptions(folder=str(tmp_path))
    library = assumptions.named(os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "trainer.py"))
    for number in range(5):
        assumptions._decided[("train.py", number, "if loss < best")] = {"taken": None}
        assumptions._decided[(library, number, "x and y")] = {"": None}
    notes = assumptions.notes()
    assert [note.split(":")[0] for note in notes[:3]] == ["train.py"] * 3
    assert notes[3:] == [
        "assumed numbers decide 2 more branches of the program",
        "assumed numbers decide 5 branches in libraries",
    ]


def test_whole_numbers_that_a_trainer_logs_as_metrics_decide_no_size() -> None:
    def compute_metrics(predicted: Any) -> Json:
        return {"tokens": int((predicted != 0).sum()), "share": float((predicted == 1).mean())}

    def other(predicted: Any) -> Json:
        return {"tokens": int((predicted != 0).sum())}

    def program(device: str, measure: Callable[[Any], Json]) -> Json:
        return {name: float(each) for name, each in measure(unknown(device).argmax(1).cpu().numpy()).items()}

    assert calculated(program, HOST, measure=compute_metrics).error is None
    assert "may decide a size" in (calculated(program, HOST, measure=other).error or "")


def test_numpys_masks_of_numbers_that_are_not_calculated_are_true_for_at_most_all() -> None:
    def program(device: str) -> Json:
        numbers = unknown(device).cpu().numpy()
        mask = numbers > 2
        return {"positions": len(np.nonzero(mask)[0]), "flat": len(np.flatnonzero(mask)), "rows": len(numbers[mask])}

    found = calculated(program, HOST)
    assert found.returned == dict.fromkeys(("positions", "flat", "rows"), ROWS * 4)
    operators = {bound["operator"] for bound in found.assumed["bounds"]}
    assert operators == {"numpy.nonzero", "numpy.flatnonzero", "numpy.ndarray.__getitem__"}


def test_a_mask_of_a_loaders_worker_is_true_for_at_most_all() -> None:
    class Cropped(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.label = torch.rand(4, 4) > 2

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return torch.nonzero(self.label)

    def program(device: str) -> Json:
        return {"found": [list(each.shape) for each in torch.utils.data.DataLoader(Cropped(), num_workers=1)]}

    assert calculated(program, HOST).returned == {"found": [[1, 16, 2]] * 2}


def test_a_number_that_a_function_returns_is_not_taken_for_a_variable_of_the_same_name_in_another() -> None:
    def program(device: str) -> Json:
        def step() -> float:
            loss = unknown(device).sum()
            return float(loss)

        def chosen() -> int:
            size = unknown(device).argmax()
            return int(size)

        loss, size = step(), chosen()
        return {"text": f"{loss:.4f} {size}"}

    for card in (H100, HOST):
        assert calculated(program, card).error is None

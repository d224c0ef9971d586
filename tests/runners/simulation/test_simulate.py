"""Calculated attempts: real processes, real torch, tensors without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.facts import FITS_IF_EXPANDABLE
from runners.outcome import Outcome, Status
from runners.simulation.trace import AllocationTrace
from tests.measuring import MIB, SETTLED, Lab

GIB = 2**30
HOST = {"name": "cpu", "vendor": "", "architecture": "cpu", "total_bytes": None}
CARD = {
    "name": "a card", "vendor": "nvidia", "architecture": "sm_90", "total_bytes": 2 * GIB, "context_bytes": GIB
}  # fmt: skip
WORKS = """
import pathlib
import torch

def block(*, batch, device, phase):
    with phase("take"):
        held = torch.empty(batch, 2**20, dtype=torch.uint8, device=device)
    with phase("copy"):
        held + 1
    return {"elements": held.numel()}

def product(*, batch, device, phase):
    with phase("make"):
        weight = torch.empty(1024, 1024, device=device)
    with phase("multiply"):
        weight @ weight

def reads_a_number(*, device):
    torch.ones(3, device=device).softmax(0).sum().item()

def counts(*, device, phase):
    positions = torch.arange(10, device=device)
    taken = int((positions > 6).sum())
    with phase("take"):
        torch.empty(taken, 2**20, dtype=torch.uint8, device=device)

def catches_and_continues(*, device):
    try:
        torch.empty(int(torch.rand(1, device=device).item()), device=device)
    except Exception:
        torch.empty(2**30, dtype=torch.uint8, device=device)

def too_large_for_this_machine(*, device):
    torch.zeros(2**50, dtype=torch.uint8)

def catches_too_large_for_this_machine(*, device):
    try:
        torch.zeros(2**50, dtype=torch.uint8)
    except Exception:
        torch.empty(2**20, dtype=torch.uint8, device=device)

def fragments(*, device, phase):
    # 600 of 700 MiB are free, in two parts of other segments than the 600 MiB that are then allocated
    with phase("take"):
        first = torch.empty(400, 2**20, dtype=torch.uint8, device=device)
        second = torch.empty(300, 2**20, dtype=torch.uint8, device=device)
        del first, second
        parts = [torch.empty(size, 2**20, dtype=torch.uint8, device=device) for size in (30, 350, 30, 250)]
        del parts[1], parts[2]
    with phase("take again"):
        torch.empty(600, 2**20, dtype=torch.uint8, device=device)

def grows(*, device, phase):
    held = []
    with phase("grow"):
        for _ in range(4):
            tensor = torch.empty(8, dtype=torch.uint8, device=device)
            tensor.resize_(2**20)
            held.append(tensor)

def in_a_thread(*, device):
    import threading
    thread = threading.Thread(target=lambda: torch.empty(2**20, device=device))
    thread.start()
    thread.join()

def uses_flex_attention(*, device):
    from torch.nn.attention.flex_attention import flex_attention
    flex_attention(*(torch.empty(1, 1, 128, 16, device=device, requires_grad=True) for _ in "qkv"))

def scripts_an_lstm(*, device):
    from lstm_in_script import lstm
    lstm(*(torch.empty(*shape, device=device) for shape in ((3, 2, 8), (1, 2, 8), (32, 8))))

def is_decorated(*, device):
    from decorated import product
    made = product(torch.empty(1024, 1024, device=device))
    assert made.dtype is torch.bfloat16, made.dtype

def fails_once(*, device):
    if not pathlib.Path("tried").exists():
        pathlib.Path("tried").touch()
        raise OSError("not there yet")
    torch.empty(1, device=device)

def ends(*, at, device, phase):
    if at == "before the first phase":
        raise ValueError(at)
    with phase("build"):
        built = torch.empty(2, 2**20, dtype=torch.uint8, device=device)
    if at == "between two phases":
        raise ValueError(at)
    with phase("step", 0):
        if at == "in a phase":
            raise ValueError(at)
        held = torch.empty(4, 2**20, dtype=torch.uint8, device=device)
    if at == "after the last phase":
        raise ValueError(at)

def cannot_go_on(*, at, device, phase):
    from torch.nn.attention.flex_attention import flex_attention
    def fails():
        try:
            flex_attention(*(torch.empty(1, 1, 128, 16, device=device, requires_grad=True) for _ in "qkv"))
        except Exception:
            pass
    with phase("build"):
        built = torch.empty(2, 2**20, dtype=torch.uint8, device=device)
        if at == "build":
            fails()
    if at == "between":
        fails()
    with phase("step", 0):
        pass

def asks_for_more_when_refused(*, device):
    try:
        torch.empty(3000, 2**20, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        torch.empty(9000, 2**20, dtype=torch.uint8, device=device)

def is_refused_between(*, device, phase):
    with phase("build"):
        built = torch.empty(600, 2**20, dtype=torch.uint8, device=device)
    torch.empty(3000, 2**20, dtype=torch.uint8, device=device)

def releases_a_segment(*, batch, device, phase):
    with phase("build"):
        first = torch.empty(600, 2**20, dtype=torch.uint8, device=device)
        del first  # a card of 1 GiB releases it for the next one, and others keep it
        weights = torch.empty(700, 2**20, dtype=torch.uint8, device=device)
    with phase("step"):  # 11.5 MiB each: parts of the first segment, and without it blocks of 12 MiB
        rows = [torch.empty(23, 2**19, dtype=torch.uint8, device=device) for _ in range(batch)]
        rows.append(torch.empty(400, 2**20, dtype=torch.uint8, device=device))
        rows.append(torch.empty(100, 2**20, dtype=torch.uint8, device=device))

def wrong(*, device):
    raise ValueError("wrong from the start")

def forks(*, device, phase):
    import os
    with phase("take"):
        held = torch.empty(1, 2**20, dtype=torch.uint8, device=device)
        pid = os.fork()
        if pid == 0:
            held = torch.zeros(8, 2**20, dtype=torch.uint8)  # CUDA does not work in a forked process either
            assert int(held.sum()) == 0, "it works with data"
            return {"bytes": held.numel()}
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code}

def leaves_a_mark(*, batch, device):
    with open("marks", "a") as marks:
        marks.write("traced\\n")
    torch.empty(batch, 2**20, dtype=torch.uint8, device=device)
"""

DECORATED = """
import torch

@torch.autocast("cuda", dtype=torch.bfloat16)
def product(x):
    return x @ x
"""

LSTM_IN_SCRIPT = """
import torch

@torch.jit.script
def lstm(x, h, w):
    return torch.lstm(x, [h, h], [w, w], False, 1, 0.0, False, False, False)[0]
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("works")
    (folder / "works.py").write_text(WORKS)
    (folder / "lstm_in_script.py").write_text(LSTM_IN_SCRIPT)
    (folder / "decorated.py").write_text(DECORATED)
    (folder / "imports_decorated.py").write_text("from decorated import product\nfrom works import *\n")
    lab = Lab(tmp_path_factory.mktemp("attempts"), folder)
    yield lab
    lab.engine.close()


def on_card(
    lab: Lab, target: str, card: Mapping[str, Any] = CARD, trace_path: Path | None = None, **settled: Any
) -> Outcome:
    workload = {"name": "custom", "target": target if ":" in target else f"works:{target}", "params": {}}
    values = {**SETTLED, "model": None, "workload": workload, **settled}
    device = "sim:cpu" if card["architecture"] == "cpu" else "sim:card"
    attempt = lab.start_values(values, device=device, card=card, allocation_trace=trace_path)
    return lab.settle(attempt).outcome


def peaks(outcome: Outcome, counter: str) -> dict[str, int]:
    return {phase.name: phase.peak[counter] for phase in outcome.phases if phase.name != "between"}


def test_every_phase_has_the_counters_of_an_allocator(lab: Lab) -> None:
    outcome = on_card(lab, "block", batch=3)
    assert outcome.status is Status.OK
    assert peaks(outcome, "requested") == {"take": 3 * MIB, "copy": 6 * MIB}
    assert peaks(outcome, "reserved") == {"take": 20 * MIB, "copy": 20 * MIB}
    assert peaks(outcome, "used") == {"take": GIB + 20 * MIB, "copy": GIB + 20 * MIB}
    assert outcome.metrics == {"elements": 3 * MIB}


def test_counters_that_cannot_be_calculated_are_null(lab: Lab) -> None:
    outcome = on_card(lab, "block", batch=1)
    assert outcome.peak("resident") is None
    assert outcome.process_baseline == {}
    assert {phase.elapsed_s for phase in outcome.phases} == {None}


def test_a_refusal_is_an_oom_of_the_card_with_pytorchs_message(lab: Lab) -> None:
    outcome = on_card(lab, "block", batch=600)
    assert (outcome.status, outcome.fits, outcome.failed_phase) == (Status.OOM, False, "copy")
    assert outcome.requested_bytes == 600 * MIB
    assert outcome.peak("allocated") == 600 * MIB
    assert outcome.peak_is_partial
    assert outcome.error_type == "torch.OutOfMemoryError"
    assert outcome.handled_refusals == 0


def test_a_calculated_pass_was_refused_nothing(lab: Lab) -> None:
    assert on_card(lab, "block", batch=1).handled_refusals == 0


def test_a_refused_point_has_its_peak_without_a_limit(lab: Lab) -> None:
    assert on_card(lab, "block", batch=600).unlimited_peak_bytes == 1200 * MIB
    assert on_card(lab, "block", batch=300).unlimited_peak_bytes == 600 * MIB


def test_a_refusal_by_fragmentation_names_the_setting_that_is_calculated_to_avoid_it(lab: Lab) -> None:
    refused = on_card(lab, "fragments")
    assert (refused.status, refused.unlimited_peak_bytes) == (Status.OOM, 700 * MIB)
    assert (refused.error_message or "").endswith(FITS_IF_EXPANDABLE)
    assert on_card(lab, "fragments", {**CARD, "settings": "expandable_segments:True"}).fits is True


def test_a_refusal_that_growing_segments_do_not_avoid_names_no_setting(lab: Lab) -> None:
    for settings in ("", "expandable_segments:True"):
        refused = on_card(lab, "block", {**CARD, "settings": settings}, batch=600)
        assert refused.status is Status.OOM
        assert FITS_IF_EXPANDABLE not in (refused.error_message or "")


def test_other_processes_and_a_budget_reduce_the_capacity(lab: Lab) -> None:
    assert on_card(lab, "block", batch=400).fits is True
    assert on_card(lab, "block", {**CARD, "used_by_others_bytes": 512 * MIB}, batch=400).fits is False
    assert on_card(lab, "block", batch=400, budget=700 * MIB).fits is False


@pytest.mark.parametrize(("architecture", "workspace"), [("sm_80", 8_519_680), ("sm_90", 32 * MIB)])
def test_the_first_product_allocates_the_workspace_of_its_card(lab: Lab, architecture: str, workspace: int) -> None:
    outcome = on_card(lab, "product", {**CARD, "architecture": architecture})
    assert peaks(outcome, "requested") == {"make": 4 * MIB, "multiply": 8 * MIB + workspace}


def test_on_a_cpu_only_tensors_count(lab: Lab) -> None:
    outcome = on_card(lab, "product", HOST)
    assert peaks(outcome, "tensor") == {"make": 4 * MIB, "multiply": 8 * MIB}
    refused = on_card(lab, "product", HOST, budget=6 * MIB)
    assert (refused.status, refused.fits, refused.failed_phase) == (Status.OOM, False, "multiply")


def test_control_flow_by_whole_numbers_that_depend_on_no_data_is_traced(lab: Lab) -> None:
    positions = 10 * 8
    assert peaks(on_card(lab, "counts"), "requested") == {"take": 3 * MIB + positions}


def test_a_number_that_is_not_calculated_is_assumed_and_the_row_says_where(lab: Lab) -> None:
    outcome = on_card(lab, "reads_a_number")
    assert (outcome.status, outcome.assumed_values) == (Status.OK, 1)
    assert peaks(outcome, "requested") == {"run": 12 + 12}


def test_a_workload_that_catches_unavailable_and_continues_is_unavailable(lab: Lab) -> None:
    outcome = on_card(lab, "catches_and_continues")
    assert (outcome.status, outcome.fits) == (Status.UNAVAILABLE, None)


def test_tensors_of_another_thread_count(lab: Lab) -> None:
    assert on_card(lab, "in_a_thread").peak("requested") == 4 * MIB


def test_an_exception_of_the_workload_is_an_error_as_on_any_device(lab: Lab) -> None:
    outcome = on_card(lab, "wrong")
    assert (outcome.status, outcome.error_message) == (Status.ERROR, "wrong from the start")


ENDS: dict[str, tuple[str, int | None]] = {
    "before the first phase": ("between", None),
    "between two phases": ("between", 2 * MIB),
    "in a phase": ("step", 2 * MIB),
    "after the last phase": ("between", 6 * MIB),
}


@pytest.mark.parametrize("at", ENDS)
@pytest.mark.parametrize("device", ["cpu", "sim:cpu", "sim:card"])
def test_an_attempt_that_did_not_finish_has_a_partial_peak_on_every_kind_of_device(
    lab: Lab, device: str, at: str
) -> None:
    workload = {"name": "custom", "target": "works:ends", "params": {"at": at}}
    card = {"cpu": None, "sim:cpu": HOST, "sim:card": CARD}[device]
    values = {**SETTLED, "model": None, "workload": workload}
    outcome = lab.settle(lab.start_values(values, device=device, card=card)).outcome
    phase, peak = ENDS[at]
    assert (outcome.status, outcome.error_message) == (Status.ERROR, at)
    assert (outcome.failed_phase, outcome.peak_is_partial) == (phase, True)
    assert outcome.peak("requested" if device == "sim:card" else "tensor") == peak
    assert outcome.unlimited_peak_bytes is None


@pytest.mark.parametrize("card", [HOST, CARD])
def test_an_attempt_that_failed_before_its_workload_failed_in_the_start_and_has_no_peak(
    lab: Lab, card: Mapping[str, Any]
) -> None:
    outcome = on_card(lab, "not_a_module:run", card)
    assert (outcome.fits, outcome.failed_phase) == (None, "start")
    assert (outcome.peaks, outcome.peak_is_partial) == ({}, None)


@pytest.mark.parametrize("at", ["build", "between"])
def test_what_was_not_followed_to_its_end_has_the_partial_peak_until_there_whatever_the_program_catches(
    lab: Lab, at: str
) -> None:
    workload = {"name": "custom", "target": "works:cannot_go_on", "params": {"at": at}}
    outcome = on_card(lab, "cannot_go_on", workload=workload)
    assert (outcome.status, outcome.failed_phase, outcome.peak_is_partial) == (Status.UNAVAILABLE, at, True)
    assert 2 * MIB <= (outcome.peak("requested") or 0) < 3 * MIB


SCRIPTS = {
    "raise ValueError('between')": ("between", 2 * MIB),
    "sys.exit(3)": ("between", 2 * MIB),
    "with record_function('step'): sys.exit(3)": ("step", 2 * MIB),
    "with record_function('step'): raise ValueError('inside')": ("step", 2 * MIB),
}


@pytest.mark.parametrize("end", SCRIPTS)
def test_a_program_that_fails_has_a_partial_peak_and_the_mark_in_which_it_failed(
    lab: Lab, tmp_path: Path, end: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, torch\nfrom torch.profiler import record_function\nwith record_function('build'):\n"
        f"    built = torch.empty(2, 2**20, dtype=torch.uint8, device='cuda')\n{end}\n"
    )
    workload = {"name": "command", "argv": ["python", str(script)], "threads": None, "environ": {}, "steps": 2}
    outcome = on_card(lab, "", workload=workload)
    assert (outcome.status, outcome.fits, outcome.peak_is_partial) == (Status.ERROR, None, True)
    assert (outcome.failed_phase, outcome.peak("requested")) == SCRIPTS[end]


@pytest.mark.parametrize("batch", [1, 7, 20])
def test_what_a_refused_point_needs_at_least_is_never_more_than_it_takes_without_a_limit(lab: Lab, batch: int) -> None:
    """Blocks can be larger than their tensors, and a full card has others than one with room."""
    outcome = on_card(lab, "releases_a_segment", batch=batch)
    assert (outcome.status, outcome.failed_phase) == (Status.OOM, "step")
    assert outcome.peak("allocated") == (700 + 12 * batch) * MIB, "as the card holds it"
    held = 700 * MIB + batch * 23 * MIB // 2
    assert outcome.needs_at_least_bytes == held + 400 * MIB
    assert outcome.unlimited_peak_bytes == held + 500 * MIB


def test_a_program_that_asks_for_more_after_a_refusal_needs_at_least_what_it_takes_without_one(lab: Lab) -> None:
    outcome = on_card(lab, "asks_for_more_when_refused")
    assert (outcome.status, outcome.requested_bytes) == (Status.OOM, 9000 * MIB)
    assert outcome.needs_at_least_bytes == outcome.unlimited_peak_bytes == 3000 * MIB


def test_a_refusal_between_two_phases_has_its_bytes(lab: Lab) -> None:
    outcome = on_card(lab, "is_refused_between")
    assert (outcome.status, outcome.failed_phase, outcome.peak_is_partial) == (Status.OOM, "between", True)
    assert outcome.needs_at_least_bytes == outcome.unlimited_peak_bytes == 3600 * MIB


def test_a_forked_child_is_in_no_journal_and_in_no_shared_trace(lab: Lab, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for _ in ("traced", "replayed"):
        outcome = on_card(lab, "forks", trace_path=shared)
        assert (outcome.status, outcome.metrics) == (Status.OK, {"code": 0})
        assert peaks(outcome, "requested") == {"take": MIB}


def test_a_separate_program_is_unavailable_and_is_not_run(lab: Lab, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    workload = {"name": "command", "argv": ["touch", str(ran)], "threads": None, "environ": {}}
    attempt = lab.start_values({**SETTLED, "model": None, "workload": workload}, device="sim:card", card=CARD)
    outcome = lab.settle(attempt).outcome
    assert outcome.status is Status.UNAVAILABLE
    assert not ran.exists()


def test_a_card_without_the_dtype_is_unavailable_whatever_its_memory(lab: Lab) -> None:
    outcome = on_card(lab, "block", {**CARD, "architecture": "sm_70"}, dtype="bfloat16")
    assert outcome.status is Status.UNAVAILABLE
    assert "bfloat16 needs compute capability 8.0, and this card has less" in (outcome.error_message or "")


def test_a_point_is_traced_once_for_all_cards_of_an_architecture(lab: Lab, tmp_path: Path) -> None:
    shared = tmp_path / "point.trace"
    large = on_card(lab, "leaves_a_mark", {**CARD, "total_bytes": 3 * GIB}, shared, batch=1500)
    small = on_card(lab, "leaves_a_mark", CARD, shared, batch=1500)
    assert (large.fits, small.fits) == (True, False)
    assert (lab.cwd / "marks").read_text() == "traced\n" * 2  # the second time with the small card's limit


@pytest.mark.parametrize("architecture", ["sm_90", "cpu"])
def test_a_model_built_on_the_host_and_moved_takes_only_its_weights_on_a_card(lab: Lab, architecture: str) -> None:
    """Building it takes more on the host, where a tied head is initialised and then replaced by the embedding."""
    card = CARD if architecture == "sm_90" else {**CARD, "architecture": "cpu", "total_bytes": None}
    config = {
        "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True,
    }  # fmt: skip
    model = {"name": "tied", "library": "transformers", "model_type": "llama", "config": config}
    values = {
        **SETTLED, "model": model, "workload": {"name": "forward", "logits": "all"}, "attention": None,
        "context": 8, "warmup": 0, "repeats": 1,
    }  # fmt: skip
    device = "sim:card" if architecture == "sm_90" else "sim:cpu"
    outcome = lab.settle(lab.start_values(values, device=device, card=card)).outcome
    counter = "requested" if architecture == "sm_90" else "tensor"
    (load,) = (phase for phase in outcome.phases if phase.name == "model_load")
    head = 4096 * 64 * 4
    freed = load.peak[counter] - load.end[counter]
    assert freed == 0 if architecture == "sm_90" else freed >= head
    assert load.end[counter] >= outcome.model["parameter_bytes"]


def test_too_little_memory_on_this_machine_is_unavailable_and_no_oom(lab: Lab) -> None:
    for target in ("too_large_for_this_machine", "catches_too_large_for_this_machine"):
        outcome = on_card(lab, target)
        assert (outcome.status, outcome.fits) == (Status.UNAVAILABLE, None)
        assert "this machine has too little memory" in (outcome.error_message or "")


def test_on_a_calculated_host_no_tensor_needs_memory_of_this_machine(lab: Lab) -> None:
    assert on_card(lab, "too_large_for_this_machine", HOST).peak("tensor") == 2**50


def test_resizing_a_tensor_allocates_before_it_frees(lab: Lab) -> None:
    assert peaks(on_card(lab, "grows"), "requested") == {"grow": 4 * MIB + 8}  # the last one, while it is copied


def test_what_the_tracer_cannot_see_is_unavailable(lab: Lab) -> None:
    outcome = on_card(lab, "uses_flex_attention")
    assert outcome.status is Status.UNAVAILABLE
    assert "flex_attention outside torch.compile cannot be traced" in (outcome.error_message or "")


def test_autocast_of_a_decorator_that_was_imported_with_the_workload_casts(lab: Lab) -> None:
    outcome = on_card(lab, "imports_decorated:is_decorated")
    assert outcome.status is Status.OK, outcome.error_message
    assert peaks(outcome, "requested") == {"run": (4 + 2 + 2 + 2 + 32) * MIB}  # with Hopper's workspace


def test_the_trace_of_a_failure_is_not_kept_for_the_next_attempt(lab: Lab, tmp_path: Path) -> None:
    shared = tmp_path / "trace"
    assert on_card(lab, "fails_once", CARD, shared).status is Status.ERROR
    assert on_card(lab, "fails_once", CARD, shared).status is Status.OK


def test_a_point_is_traced_again_if_its_trace_is_damaged(lab: Lab, tmp_path: Path) -> None:
    shared = tmp_path / "trace"
    on_card(lab, "block", CARD, shared, batch=3)
    for torn in (b"", b"[]", shared.read_bytes()[:-7]):
        shared.write_bytes(torn)
        assert on_card(lab, "block", CARD, shared, batch=3).peak("requested") == 6 * MIB


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    from array import array

    trace = AllocationTrace([{"kind": "finished", "event": 2}], array("q", [512, -1]))
    trace.write(tmp_path / "trace")
    assert AllocationTrace.read(tmp_path / "trace") == trace
    assert AllocationTrace.read(tmp_path / "nosuch") is None
    assert [each.name for each in tmp_path.iterdir()] == ["trace"]


def test_a_row_says_how_far_its_peak_may_be_off_where_a_library_decides_the_bytes(lab: Lab) -> None:
    outcome = on_card(lab, "scripts_an_lstm")
    assert outcome.status is Status.OK
    assert set(outcome.metrics) == {"peak_may_be_lower_by_bytes", "peak_may_be_higher_by_bytes"}

"""A program of one's own on a calculated device: how far it is followed, and what it must not do meanwhile."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.programs import HOST, MIB, Calculated, calculated, calculated_command

EXAMPLE = Path(__file__).parents[3] / "examples" / "train.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script that is written out, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(code: str, *arguments: str, **options: Any) -> Calculated:
        (tmp_path / "program.py").write_text(textwrap.dedent(code))
        return calculated_command("python", "program.py", *arguments, **options)

    return run


TRAINS = """
import torch
from torch import nn
model = nn.Linear(1024, 1024, bias=False).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10**9):
    for _ in range(2):
        model(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
"""


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_script_ends_when_its_optimizer_begins_a_step_too_many(
    script: Any, steps: int, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = script(TRAINS, steps=steps)
    assert (ended.error, ended.steps) == (None, steps)
    assert ended.returned == {"ended_after_steps": steps}
    assert capfd.readouterr().out.splitlines() == [f"step {step}" for step in range(steps)]
    (phase,) = [line for line in ended.lines if line["kind"] == "ended" and line["phase"] == "run"]
    assert (phase["iterations"], phase["completed"]) == (steps, True)


def test_adams_state_and_the_activations_of_the_next_step_are_in_the_peak(script: Any) -> None:
    one, two = (script(TRAINS, steps=steps).peaks["requested"] for steps in (1, 2))
    assert one >= 4 * 4 * MIB, "weights, gradients and two moments"
    assert two >= one


def test_a_script_that_catches_everything_ends_all_the_same_and_what_it_does_then_does_not_count(script: Any) -> None:
    caught = TRAINS.replace("for step in", "try:\n  for step in").replace("\n    ", "\n      ")
    code = caught + "except BaseException:\n  held = torch.empty(2**30, device='cuda')\n  raise ValueError('late')\n"
    ended = script(code)
    assert (ended.error, ended.steps) == (None, 2)
    assert ended.peaks["requested"] < 128 * MIB


def test_a_script_without_an_optimizer_runs_to_its_end(script: Any) -> None:
    ended = script("import torch; held = torch.empty(2**20, dtype=torch.uint8, device='cuda')")
    assert (ended.error, ended.steps, ended.returned) == (None, None, {})
    assert ended.peaks["requested"] == MIB


MARKED = """
import contextlib, threading, torch
from torch.profiler import record_function
from torch.cuda import nvtx
model = torch.nn.Linear(1024, 1024, bias=False).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
with contextlib.suppress(BaseException):
    for step in range(10**9):
        with record_function("forward"):
            loss = model(torch.ones(8, 1024, device="cuda")).sum()
            with record_function("inside"):
                pass
        thread = threading.Thread(target=lambda: record_function("elsewhere").__enter__())
        thread.start(), thread.join()
        nvtx.range_push("backward")
        loss.backward()
        nvtx.range_pop()
        with nvtx.range("run"):
            optimizer.step()
        optimizer.zero_grad()
with record_function("late"):
    held = torch.ones(2**28, device="cuda")
"""


def test_the_marks_of_a_script_are_its_phases(script: Any) -> None:
    ended = script(MARKED)
    assert (ended.error, ended.steps) == (None, 2)
    phases = [line for line in ended.lines if line["kind"] == "ended" and line["phase"] != "between"]
    assert [(line["phase"], line["run_index"]) for line in phases] == [
        ("run", None),
        *((name, step) for step in range(3) for name in ("forward", "backward", "run mark")),
    ]
    assert all(line["completed"] for line in phases)
    peak = {(line["phase"], line["run_index"]): line["counters"]["sim:card"]["peak"]["requested"] for line in phases}
    assert peak["run", None] == 4 * MIB, "the weights"
    assert peak["backward", 1] - peak["backward", 0] == 8 * MIB, "the optimizer's state"
    assert ended.peaks["requested"] < 128 * MIB, "what a script does after its end does not count"


def test_a_mark_in_which_a_script_fails_did_not_complete(script: Any) -> None:
    ended = script(
        """
        import torch
        held = torch.ones(4, device="cuda")
        with torch.profiler.record_function("work"):
            raise ValueError("wrong")
        """
    )
    (work,) = [line for line in ended.lines if line["kind"] == "ended" and line["phase"] == "work"]
    assert (ended.error, work["completed"]) == ("ValueError: wrong", False)


def test_a_script_that_trains_in_a_thread_ends_with_its_steps(script: Any) -> None:
    train = TRAINS.replace("for step in", "def train():\n  for step in").replace("\n    ", "\n      ")
    code = train + "import threading\nthread = threading.Thread(target=train)\nthread.start(), thread.join()\n"
    ended = script(code)
    assert (ended.error, ended.steps) == (None, 2)


ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=3)
print(accelerator.device, accelerator.mixed_precision)
model = torch.nn.Linear(512, 512)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for batch in range(10**9):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(4, 512, device=accelerator.device)).sum())
        optimizer.step()
        optimizer.zero_grad()
    print(batch)
"""
LAUNCH = ("python", "-m", "accelerate.commands.launch", "--num_machines", "1", "--dynamo_backend", "no")


def test_accelerate_launch_of_one_process_is_followed_with_its_settings(
    script: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate.commands.launch")
    (tmp_path / "accelerated.py").write_text(ACCELERATED)
    ended = calculated_command(*LAUNCH, "--num_processes", "1", "--mixed_precision", "bf16", "accelerated.py")
    assert (ended.error, ended.steps) == (None, 2)
    # Of nine batches the last begins a third step.
    assert capfd.readouterr().out.splitlines() == ["cuda bf16", *map(str, range(8))]
    several = calculated_command(*LAUNCH, "--num_processes", "2", "--multi_gpu", "accelerated.py")
    assert "accelerate.commands.launch.multi_gpu_launcher: the ranks of a program are processes" in str(several.error)


def test_the_optimizer_that_stepped_first_counts(script: Any) -> None:
    code = """
    import torch
    first, second = (torch.nn.Parameter(torch.ones(4, device="cuda")) for _ in range(2))
    a, b = (torch.optim.SGD([each], lr=1.0) for each in (first, second))
    for _ in range(5):
        (first + second).sum().backward()
        a.step(), b.step(), b.step()
    """
    assert script(code).steps == 2
    assert script(code, steps=None).steps == 5


def test_exit_codes_and_exceptions_are_the_programs(script: Any) -> None:
    placed = "import sys, torch; held = torch.ones(4, device='cuda')\n"
    assert script(placed + "sys.exit(0)").error is None
    left = script(placed + "sys.exit(3)")
    assert (left.error, left.lines[-1]["exit_code"]) == ("ProgramFailed: exit code 3", 3)
    raised = script(placed + "open('data/train.bin')")
    assert raised.error == "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'"
    assert raised.lines[-1]["exit_code"] == 1
    missing = calculated_command("python", "no.py")
    assert "exit code 2" in str(missing.error)
    assert "can't open file" in str(missing.error)


def test_a_refusal_that_a_script_catches_is_told_and_one_that_it_does_not_ends_it(script: Any) -> None:
    code = """
    import torch
    {}torch.empty(2**30, dtype=torch.uint8, device="cuda")
    {}
    held = torch.empty(2**20, dtype=torch.uint8, device="cuda")
    """
    ended = script(code.format("", ""), total=64 * MIB)
    assert str(ended.error).startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB")
    caught = script(
        """
        import torch
        try: torch.empty(2**30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError: held = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        """,
        total=64 * MIB,
    )
    assert caught.error is None
    assert caught.peaks["requested"] == MIB


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_data_replaces_nothing(script: Any, tmp_path: Path) -> None:
    (tmp_path / "best.pt").write_bytes(b"of weeks")
    ended = script(
        """
        import torch
        model = torch.nn.Linear(4, 4).cuda()
        torch.save({"model": model.state_dict(), "epoch": 3}, "best.pt")
        torch.save(model, "whole.pt")
        torch.save({"epoch": 3, "host": torch.ones(2)}, "state.pt")
        """
    )
    assert ended.error is None
    assert ended.notes == ["tensors have no data here, and were not written to best.pt, whole.pt"]
    assert (tmp_path / "best.pt").read_bytes() == b"of weeks"
    assert sorted(each.name for each in tmp_path.glob("*.pt")) == ["best.pt", "state.pt"]


def test_a_program_loads_the_weights_that_it_saved_as_new_memory_of_the_card(script: Any, tmp_path: Path) -> None:
    ended = script(
        """
        import os, shutil, torch
        from pathlib import Path
        held = {"a": torch.zeros(2**20, dtype=torch.uint8, device="cuda"), "epoch": 3}
        held["tied"] = held["a"][:4]
        torch.save(held, "last.pt")
        assert os.path.isfile("last.pt") and Path("last.pt").exists()
        shutil.copyfile("last.pt", "copy.pt")
        shutil.copy2("copy.pt", "second.pt")
        os.replace("copy.pt", "best.pt")
        os.remove("last.pt")
        assert [os.path.exists(each) for each in ("last.pt", "copy.pt", "second.pt")] == [False, False, True]
        found = torch.load(Path("best.pt"), weights_only=True)
        assert found["epoch"] == 3 and found["a"].device == torch.device("cuda:0")
        assert found["tied"].data_ptr() == found["a"].data_ptr()
        on_host = torch.load("best.pt", map_location="cpu", mmap=True)
        assert on_host["a"].device.type == "cpu" and on_host["tied"].shape == (4,)
        """
    )
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert ended.peaks["requested"] == 2 * MIB
    assert not list(tmp_path.glob("*.pt"))


def test_weights_that_were_loaded_on_a_calculated_host_count_beside_the_saved_ones(script: Any) -> None:
    ended = script(
        """
        import torch
        model = torch.nn.Linear(512, 512, bias=False)
        torch.save(model.state_dict(), "best.pt")
        found = torch.load("best.pt", map_location="cpu")
        model.load_state_dict(found)
        """,
        card=HOST,
    )
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert ended.peaks["tensor"] == 2 * MIB


def test_a_file_that_the_program_removed_and_wrote_again_is_the_new_one(script: Any, tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.zeros(MIB, dtype=torch.uint8)}, tmp_path / "real.pt")
    ended = script(
        """
        import os, torch
        torch.save({"a": torch.zeros(8, device="cuda")}, "best.pt")
        os.replace("real.pt", "best.pt")
        assert torch.load("best.pt")["a"].shape == (2**20,)
        """
    )
    assert ended.error is None, ended.lines[-1]["traceback"]


def test_a_saved_file_is_found_by_the_file_that_the_program_opens(script: Any) -> None:
    ended = script(
        """
        import torch
        with open("best.pt", "wb") as file:
            torch.save({"a": torch.zeros(8, device="cuda")}, file)
        with open("best.pt", "rb") as file:
            assert torch.load(file)["a"].is_cuda
        """
    )
    assert ended.error is None, ended.lines[-1]["traceback"]


@pytest.mark.parametrize("where", ["'cuda'", "torch.device('cuda', 0)", "{'cpu': 'cuda:0'}"])
def test_a_checkpoint_is_loaded_onto_the_card(script: Any, tmp_path: Path, where: str) -> None:
    import torch

    torch.save({"a": torch.zeros(MIB, dtype=torch.uint8), "n": 3}, tmp_path / "real.pt")
    ended = script(
        f"""
        import torch
        found = torch.load("real.pt", map_location={where})
        assert found["a"].device == torch.device("cuda:0"), found["a"].device
        assert found["n"] == 3
        on_host = torch.load("real.pt")["a"]
        assert on_host.device.type == "cpu" and int(on_host.sum()) == 0
        """
    )
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert ended.peaks["requested"] == MIB


def test_a_checkpoint_counts_on_a_calculated_host(script: Any, tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.zeros(MIB, dtype=torch.uint8)}, tmp_path / "real.pt")
    ended = script("import torch; found = torch.load('real.pt', map_location='cpu')", card=HOST)
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert ended.peaks["tensor"] == MIB


def test_safetensors_are_read_onto_the_card_and_none_are_written_without_data(script: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    import torch

    safetensors.save_file({"a": torch.zeros(MIB, dtype=torch.uint8)}, tmp_path / "real.safetensors")
    before = (tmp_path / "real.safetensors").read_bytes()
    ended = script(
        """
        from safetensors.torch import load_file, save_file
        found = load_file("real.safetensors", device="cuda")
        assert str(found["a"].device) == "cuda:0"
        save_file(found, "real.safetensors")
        del found
        assert load_file("real.safetensors")["a"].device.type == "cpu"
        again = load_file("real.safetensors", device="cuda:0")
        assert again["a"].shape == (2**20,) and again["a"].is_cuda
        """
    )
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert ended.peaks["requested"] == MIB
    assert ended.notes == ["tensors have no data here, and were not written to real.safetensors"]
    assert (tmp_path / "real.safetensors").read_bytes() == before


LLAMA = "LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)"


def test_a_model_that_a_program_saves_as_a_folder_it_may_load_again(script: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "model.safetensors").write_bytes(b"of weeks")
    ended = script(
        f"""
        import os, torch
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
        model = LlamaForCausalLM({LLAMA})
        model.save_pretrained("made/new")
        model.save_pretrained(save_directory="made/new")
        found = AutoModelForCausalLM.from_pretrained("made/new")
        assert {{name: each.shape for name, each in found.state_dict().items()}} == {{
            name: each.shape for name, each in model.state_dict().items()
        }}
        assert found(torch.zeros(1, 4, dtype=torch.int64)).logits.shape == (1, 4, 64)
        model.save_pretrained("kept")
        assert sorted(os.listdir("kept")) == ["config.json", "generation_config.json", "model.safetensors"]
        """,
        card=HOST,
    )
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert ended.notes[0] == "tensors have no data here, and were not written to made/new, kept"
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["model.safetensors"]
    assert (tmp_path / "kept" / "model.safetensors").read_bytes() == b"of weeks"
    assert not (tmp_path / "made").exists()


def test_what_a_program_puts_into_the_folder_of_its_model_stays(script: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    ended = script(
        f"""
        from pathlib import Path
        from transformers import LlamaConfig, LlamaForCausalLM
        LlamaForCausalLM({LLAMA}).to("cuda").save_pretrained("made")
        Path("made/config.json").write_text("of the program")
        """
    )
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert [(each.name, each.read_text()) for each in (tmp_path / "made").iterdir()] == [
        ("config.json", "of the program")
    ]


# --- ranks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "torch.multiprocessing.spawn(print, nprocs=2)",
        "torch.distributed.init_process_group('nccl', rank=0, world_size=2, init_method='file:///tmp/none')",
    ],
)
def test_ranks_are_unavailable_by_name(script: Any, code: str) -> None:
    ended = script(f"import torch\nheld = torch.ones(4, device='cuda')\n{code}")
    assert "processes of their own, which are not calculated" in str(ended.error)
    assert str(ended.error).startswith("runners.phases.Unavailable: torch.")


STARTS = """
import multiprocessing, subprocess, sys, torch
def rank(index):
    torch.distributed.init_process_group("gloo", rank=index, world_size=2, init_method="file:///nowhere")
def use(index):
    torch.ones(2, device="cuda")
def prepare(index):
    torch.ones(2).sum()
if __name__ == "__main__":
    held = torch.ones(4, device="cuda")
    def run(method, target):
        process = multiprocessing.get_context(method).Process(target=target, args=(0,))
        process.start(), process.join()
    {}
"""


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("subprocess.run([sys.executable, '-c', 'import torch'])", "imports torch, which is not calculated: -c import"),
        (
            "run('spawn', use)",
            "uses",
        ),
        (
            "run('spawn', rank)",
            "is one",
        ),
        (
            "run('fork', rank)",
            "is one",
        ),
    ],
)
def test_a_process_that_works_on_a_card_of_its_own_is_unavailable_by_name(script: Any, start: str, why: str) -> None:
    ended = script(STARTS.format(start))
    assert str(ended.error).startswith(f"runners.phases.Unavailable: a process that the program started {why}")


@pytest.mark.parametrize(
    ("start", "notes"),
    [
        ("subprocess.run([sys.executable, '-c', 'import json'])", []),
        ("with multiprocessing.get_context('fork').Pool(1) as pool: pool.map(prepare, [1])", []),
        (
            "run('spawn', prepare)",
            ["processes of multiprocessing that were started, and are not followed: 1"],
        ),
    ],
)
def test_a_process_that_does_other_work_is_harmless(script: Any, start: str, notes: list[str]) -> None:
    ended = script(STARTS.format(start))
    assert (ended.error, ended.notes) == (None, notes)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_a_script_may_set_the_allocators_settings_before_it_uses_the_card(
    script: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    code = """
    import os
    os.environ[{!r}] = {!r}
    import torch
    held = torch.empty(11 * 2**20, dtype=torch.uint8, device="cuda")
    print(torch.cuda.memory_reserved() // 2**20)
    """
    usual = script("import torch; held = torch.empty(11 * 2**20, dtype=torch.uint8, device='cuda')")
    found = script(code.format(name, "expandable_segments:True"))
    assert (usual.peaks["reserved"], found.peaks["reserved"]) == (12 * MIB, 20 * MIB)
    assert found.notes == ["the program set the allocator's settings: expandable_segments:True"]
    assert script(code.format(name, "expandable_segments:False")).peaks["reserved"] == 12 * MIB
    refused = script(code.format(name, "backend:cudaMallocAsync"))
    assert "the allocator's settings that the program sets: " in str(refused.error)
    assert str(refused.error).startswith("runners.phases.Unavailable")


# --- host memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [None, 2 * MIB])
def test_tensors_in_host_memory_stand_beside_the_cards(total: int | None) -> None:
    """Operators of all threads count until their tensors are freed. A refusal by the card does not hide them."""

    def program(*, device: str) -> None:
        from concurrent.futures import ThreadPoolExecutor

        import torch

        rows = torch.zeros(MIB, dtype=torch.uint8)
        read = ThreadPoolExecutor(1).submit(torch.ones, 2 * MIB, dtype=torch.uint8).result()
        held = [rows.to(device), read.to(device)]
        del read
        held.append(torch.zeros(MIB, dtype=torch.uint8).to(device))

    found = calculated(program, total=total)
    assert (found.error is None) == (total is None)
    assert [line["peak_bytes"] for line in found.lines if line["kind"] == "host_tensors"] == [3 * MIB]
    if total is None:
        assert found.peaks["requested"] == 4 * MIB


def test_on_a_calculated_host_all_tensors_are_the_devices() -> None:
    def program(*, device: str) -> None:
        import torch

        torch.zeros(MIB, dtype=torch.uint8)

    assert not [line for line in calculated(program, card=HOST).lines if line["kind"] == "host_tensors"]


# --- threads ----------------------------------------------------------------------------------------------------------


def test_a_thread_that_touches_no_tensor_is_harmless() -> None:
    def program(*, device: str) -> None:
        import threading

        import torch

        thread = threading.Thread(target=sum, args=([1, 2],))
        thread.start()
        torch.empty(MIB, dtype=torch.uint8, device=device)
        thread.join()

    assert calculated(program).peaks["requested"] == MIB
    assert calculated(program).notes == []


@pytest.mark.parametrize("start", ["threading", "_thread", "pool"])
def test_what_a_thread_makes_on_the_card_counts(start: str) -> None:
    def program(*, device: str, start: str) -> None:
        import _thread
        import concurrent.futures
        import threading

        import torch

        held, done = [], threading.Event()

        def make() -> None:
            held.append(torch.empty(MIB, dtype=torch.uint8, device=device))
            assert held[0].is_cuda
            done.set()

        if start == "threading":
            threading.Thread(target=make).start()
        elif start == "_thread":
            _thread.start_new_thread(make, ())
        else:
            concurrent.futures.ThreadPoolExecutor(1).submit(make).result()
        assert done.wait(5)
        held.append(torch.empty(MIB, dtype=torch.uint8, device=device))

    assert calculated(program, start=start).peaks["requested"] == 2 * MIB


def test_threads_that_allocate_at_the_same_time_are_told() -> None:
    def program(*, device: str, together: bool) -> None:
        import threading

        import torch

        gate = threading.Event()

        def make() -> None:
            torch.empty(MIB, dtype=torch.uint8, device=device)
            gate.wait(5)

        thread = threading.Thread(target=make)
        thread.start()
        if not together:
            gate.set()
            thread.join()
        held = torch.empty(MIB, dtype=torch.uint8, device=device)
        gate.set()
        thread.join()
        del held

    assert [note[:46] for note in calculated(program, together=True).notes] == [
        "threads that allocate while others do: 1; thei"
    ]
    assert calculated(program, together=False).notes == []


def test_workers_and_the_pinning_thread_of_a_loader_work_with_data(script: Any) -> None:
    ended = script(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Rows(Dataset):
            def __len__(self): return 8
            def __getitem__(self, index): return torch.full((2**18,), index, dtype=torch.uint8)
        if __name__ == "__main__":
            for rows in DataLoader(Rows(), batch_size=4, num_workers=2, pin_memory=True):
                assert rows.is_pinned() and int(rows.sum()) % 2**18 == 0
                rows = rows.to("cuda", non_blocking=True)
        """
    )
    assert ended.error is None, ended.lines[-1]["traceback"]
    assert ended.peaks["requested"] == MIB


def test_a_thread_that_never_ends_does_not_keep_the_attempt(script: Any) -> None:
    ended = script(
        """
        import threading, time, torch
        def go_on():
            for _ in range(300):
                torch.empty(2**20, device="cuda"); time.sleep(0.001)
        threading.Thread(target=go_on, daemon=True).start()
        held = torch.empty(2**20, device="cuda")
        """
    )
    assert ended.error is None


# --- a whole script ---------------------------------------------------------------------------------------------------


def test_a_script_as_people_write_them_runs_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """85 M parameters without their embeddings, bfloat16, fused AdamW, pinned copies, accumulation, clipping."""
    import numpy

    monkeypatch.chdir(tmp_path)
    numpy.arange(5000, dtype=numpy.uint16).tofile("tokens.bin")
    words = ("--batch", "4", "--evaluate-every", "0", "--data", "tokens.bin")
    ended = calculated_command("python", str(EXAMPLE), *words)
    assert (ended.error, ended.steps) == (None, 2)
    out = capfd.readouterr().out
    assert "124.4 M parameters on cuda" in out
    peaks = [int(line.split()[2]) for line in out.splitlines() if line.endswith("MiB")]
    assert peaks[-1] == ended.peaks["allocated"] // MIB, "a program that prints its own peak prints ours"

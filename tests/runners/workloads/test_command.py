"""A program as the workload: the figures of the program and its child processes, and how it ends."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.outcome import Status
from runners.workloads import command
from tests.measuring import MIB, SETTLED, Lab, Measured

# The part of torch that the hook reads: two devices; the second holds more.
TORCH = """
class OutOfMemoryError(RuntimeError): pass
class Properties:
    def __init__(self, index): self.uuid = f"0000000{index}-aaaa"
class Cuda:
    ooms = 0
    class memory:
        get_allocator_backend = staticmethod(lambda: "native")
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    get_device_properties = Properties
    def memory_stats(self, index):
        stats = {"num_alloc_retries": index, "num_ooms": Cuda.ooms}
        for counter in ("allocated", "reserved", "requested", "active"):
            stats[f"{counter}_bytes.all.current"] = (index + 1) * 2**20
            stats[f"{counter}_bytes.all.peak"] = (index + 1) * 2**30
        return stats
cuda = Cuda()
__version__ = "2.13.0"
"""
UUIDS = "GPU-00000000-aaaa+GPU-00000001-aaaa"


@pytest.fixture
def run(lab: Lab, tmp_path: Path) -> Callable[..., Measured]:
    """Measures a program that is written out, under this interpreter, in a folder of its own."""

    def run(code: str = "", argv: list[str] | None = None, **changes: Any) -> Measured:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(code))
        workload = {"name": "command", "argv": argv or ["python", str(program)], "params": changes.pop("params", {})}
        device = {key: changes.pop(key) for key in ("device", "device_uuid", "environ") if key in changes}
        return lab.settle(lab.start_values({**SETTLED, "model": None, "workload": workload, **changes}, **device))

    return run


def printed(measured: Measured) -> str:
    return measured.folder.output.read_text()


# -- arguments -------------------------------------------------------------------------------------------------------


def test_braces_are_filled_in_and_everything_else_is_left_alone() -> None:
    argv = ["train.py", "--bs={batch}", "{{{width}}}", "a b;$HOME", "{rate}", "{on}"]
    known = {"batch": 4, "width": "x", "rate": 1e-3, "on": True}
    assert command.filled(argv, known) == ["train.py", "--bs=4", "{x}", "a b;$HOME", "0.001", "true"]
    assert command.placeholders(argv) == ("batch", "width", "rate", "on")


@pytest.mark.parametrize("word", ["{", "}", "{}", "{batch:3}", "{batch!r}", "{0"])
def test_braces_that_hold_no_name_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="braces take a name and no more"):
        command.placeholders(["python", word])


def test_python_is_the_measured_interpreter_behind_other_programs_too(run: Any) -> None:
    argv = ["timeout", "60", "env", "PATH=/nowhere", "python", "-c", "import sys; print(sys.executable)"]
    assert printed(run(argv=argv)).strip() == sys.executable


def test_a_program_receives_its_arguments_without_a_shell(run: Any) -> None:
    words = ["{batch}", "{device}", "{width}", "$HOME; exit 3", "*"]
    measured = run(argv=["python", "-c", "import sys; print(sys.argv[1:])", *words], batch=7, params={"width": "a b"})
    assert measured.outcome.status is Status.OK
    assert printed(measured) == "['7', 'cpu', 'a b', '$HOME; exit 3', '*']\n"


def test_python_is_the_measured_interpreter_and_any_other_name_a_program(run: Any) -> None:
    assert printed(run("import sys; print(sys.executable)")) == f"{sys.executable}\n"
    assert printed(run(argv=["echo", "{batch}"])) == "1\n"


# -- memory ----------------------------------------------------------------------------------------------------------


def test_the_peak_of_one_process_is_exact_however_short_it_was(run: Any) -> None:
    """Given back at once, and between two samples: the kernel's mark has it all the same.

    An empty program is smaller than the measuring process, and samples alone show its peak.
    """
    outcomes = [run(f"bytearray({mib} * 2**20)").outcome for mib in (0, 100, 400)]
    held = [outcome.peak("resident") for outcome in outcomes]
    assert held[2] - held[1] == pytest.approx(300 * MIB, abs=MIB)
    assert 5 * MIB < held[0] < 40 * MIB
    told_by = [outcome.metrics["resident_told_by"] for outcome in outcomes]
    assert told_by == ["samples", "high_water_mark", "high_water_mark"]


def test_nothing_of_the_measuring_process_is_in_a_figure(run: Any) -> None:
    """A program smaller than any Python, measured by one."""
    outcome = run(argv=["sleep", "0.2"]).outcome
    assert outcome.peak("resident") < 4 * MIB
    assert outcome.process_baseline == {}
    assert outcome.other_processes is None
    for counter in ("tensor", "allocated", "reserved", "used"):
        assert outcome.peak(counter) is None


CHILDREN = """
import subprocess, sys
child = "import sys; held = bytearray({mib} * 2**20); print(flush=True); sys.stdin.read(1)"
children = [
    subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
]
for each in children: each.stdout.readline()
import time; time.sleep(0.6)
for each in children: each.communicate(b".")
"""


def test_what_a_program_starts_is_in_its_peak(run: Any) -> None:
    measured = run(CHILDREN.replace("{mib}", "100"))
    assert 300 * MIB < measured.outcome.peak("resident") < 360 * MIB
    assert measured.outcome.metrics["processes"] == 4
    assert measured.outcome.metrics["resident_told_by"] == "samples"


def test_memory_that_forked_processes_share_counts_once(run: Any) -> None:
    code = """
    import os, time
    held = bytearray(200 * 2**20)
    read, write = os.pipe()
    for _ in range(4):
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    time.sleep(0.8)
    os.close(write)
    for _ in range(4): os.wait()
    """
    measured = run(code)
    assert measured.outcome.metrics["processes"] == 5
    assert 200 * MIB < measured.outcome.peak("resident") < 240 * MIB


def test_a_process_between_vfork_and_exec_does_not_count_its_parents_memory_twice(run: Any, tmp_path: Path) -> None:
    """Held there by the pipe that it opens first."""
    code = f"""
    import os, subprocess, sys
    held, pipe = bytearray(200 * 2**20), {str(tmp_path / "pipe")!r}
    os.mkfifo(pipe)
    subprocess.Popen([sys.executable, "-c", "import sys, time; time.sleep(0.6); open(sys.argv[1], 'w')", pipe])
    os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, pipe, os.O_RDONLY, 0)])
    os.wait()
    """
    measured = run(code)
    assert measured.outcome.metrics["samples"] > 5
    assert 200 * MIB < measured.outcome.peak("resident") < 230 * MIB


def test_a_process_that_the_program_left_behind_is_counted_and_ended(run: Any, lab: Lab) -> None:
    code = """
    import subprocess, sys, time
    child = "held = bytearray(150 * 2**20); print(flush=True); import time; time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
    time.sleep(0.6)
    """
    measured = run(code)
    assert measured.outcome.status is Status.OK
    assert measured.outcome.peak("resident") > 150 * MIB
    assert measured.exit["leftover_processes"] == 1
    assert lab.left_over() == []


# -- ends ------------------------------------------------------------------------------------------------------------


def test_an_exit_code_is_an_error_with_the_last_line_of_standard_error(run: Any) -> None:
    outcome = run("import sys; print('first\\nno such config', file=sys.stderr); sys.exit(3)").outcome
    assert (outcome.status, outcome.exit_code, outcome.fits) == (Status.ERROR, 3, None)
    assert outcome.error_message == "exit code 3: no such config"
    assert outcome.traceback == "first\nno such config"
    assert (outcome.failed_phase, outcome.peak_is_partial) == ("run", True)


FORKS = """
import os, sys
pid = os.fork()
if pid == 0:
    raise MemoryError("of the child")
os.waitpid(pid, 0)
"""


def test_a_child_that_a_program_forks_ends_no_phase_and_decides_nothing_for_its_program(run: Any) -> None:
    passed = run(FORKS).outcome
    assert (passed.status, passed.peak_is_partial) == (Status.OK, False)
    failed = run(FORKS + "raise ValueError('of the program')").outcome
    assert (failed.status, failed.error_message) == (Status.ERROR, "of the program")


def test_an_exception_of_a_python_program_is_reported(run: Any) -> None:
    outcome = run("class Odd(Exception): pass\ndef f(): raise Odd('a bug')\nf()").outcome
    assert (outcome.status, outcome.error_type, outcome.error_message) == (Status.ERROR, "__main__.Odd", "a bug")
    assert "in f" in outcome.traceback


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("exceptions = ('one', 'two')", "a bug"),
        ("exceptions = property(lambda self: 1 / 0)", "a bug"),
        ("def __str__(self): raise SystemExit", "<__main__.Odd, whose str() raised SystemExit>"),
        ("def __str__(self): return 'x' * 10**6", "x" * 10_000 + " [... 990000 characters left out ...]"),
    ],
)
def test_an_exception_of_a_program_is_reported_whatever_its_own_code_does(run: Any, body: str, message: str) -> None:
    outcome = run(f"class Odd(Exception):\n    {body}\ndef f(): raise Odd('a bug')\nf()").outcome
    assert (outcome.status, outcome.error_type, outcome.error_message) == (Status.ERROR, "__main__.Odd", message)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, Status.KILLED), (signal.SIGSEGV, Status.CRASHED), (signal.SIGTERM, Status.CRASHED)],
)
def test_a_signal_that_ends_the_program_ends_the_attempt(run: Any, number: int, status: Status) -> None:
    measured = run(f"import os; held = bytearray(200 * 2**20); os.kill(os.getpid(), {int(number)})")
    assert (measured.outcome.status, measured.outcome.signal) == (status, number)
    assert measured.outcome.failed_phase == "run"
    assert 200 * MIB < measured.outcome.peak("resident") < 240 * MIB
    assert "Fatal Python error" not in (measured.outcome.error_message or "")


@pytest.mark.parametrize(
    ("code", "requested"),
    [
        ("bytearray(2**50)", None),
        ("import torch; torch.ones(2**48)", 2**50),
        ("try: bytearray(2**50)\nexcept MemoryError as error: raise ValueError('worse') from error", None),
    ],
)
def test_a_failed_allocation_differs_from_other_failures(run: Any, code: str, requested: int | None) -> None:
    outcome = run(code).outcome
    assert (outcome.status, outcome.oom_scope, outcome.fits) == (Status.OOM, "host", False)
    assert outcome.requested_bytes == requested
    assert outcome.needs_at_least_bytes is None, "what a program's allocator held is not known"


def test_output_about_memory_is_not_evidence(run: Any) -> None:
    code = "import sys; print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'); "
    outcome = run(code + "sys.exit('MemoryError')").outcome
    assert (outcome.status, outcome.fits) == (Status.ERROR, None)


def test_a_replaced_excepthook_does_not_hide_the_exception(run: Any) -> None:
    outcome = run("import sys\nsys.excepthook = lambda *_: None\nbytearray(2**50)").outcome
    assert outcome.status is Status.OOM


def test_a_budget_limits_what_a_program_takes_and_what_it_starts(run: Any) -> None:
    budget = 200 * MIB
    alone = run("bytearray(300 * 2**20)", budget=budget)
    child = run(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'bytearray(300 * 2**20)'], check=True)",
        budget=budget,
    )
    fits = run("bytearray(100 * 2**20)", budget=budget)
    assert [each.outcome.status for each in (alone, child, fits)] == [Status.OOM, Status.OOM, Status.OK]
    assert (alone.outcome.budget_kind, alone.outcome.budget_bytes) == ("data_limit", budget)


def test_the_failure_that_ended_the_program_is_reported() -> None:
    def failure(name: str) -> dict[str, Any]:
        return {"chain": [{"type": name}]}

    own, first, last = 1, 2, 3
    ranks = [{"pid": first, "failure": failure("MemoryError")}, {"pid": last, "failure": failure("ConnectionError")}]
    launcher = {"pid": own, "failure": failure("torch.distributed.elastic.ChildFailedError")}
    bug = {"pid": own, "failure": failure("ValueError")}
    assert command._failure([*ranks, launcher], own) == failure("MemoryError")
    assert command._failure([*ranks, bug], own) == failure("ValueError")
    assert command._failure(ranks, own) == failure("ConnectionError"), "a script went on after the first"
    assert command._failure([], own) is None


def test_a_program_that_hangs_ends_at_the_deadline_with_all_that_it_started(run: Any, lab: Lab) -> None:
    code = """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    held = bytearray(50 * 2**20)
    time.sleep(60)
    """
    measured = run(code, timeout=3)
    assert measured.outcome.status is Status.TIMEOUT
    assert measured.outcome.peak("resident") > 50 * MIB
    assert measured.outcome.duration_s < 10
    assert lab.left_over() == []


def test_a_deadline_never_lends_a_program_the_measuring_processs_own_memory(run: Any) -> None:
    outcome = run(argv=["sleep", "60"], timeout=1).outcome
    assert (outcome.status, outcome.peak_is_partial) == (Status.TIMEOUT, True)
    assert outcome.peak("resident") < 4 * MIB


def test_a_flood_on_standard_error_does_not_block_the_program(run: Any) -> None:
    outcome = run("import sys\nfor _ in range(400): sys.stderr.write('x' * 10_000)\nsys.exit('end')").outcome
    assert outcome.error_message.endswith("end")


# -- the hook --------------------------------------------------------------------------------------------------------


def test_a_programs_own_sitecustomize_still_runs(run: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.customized = __file__\n")
    environ = {"PYTHONPATH": str(tmp_path), "OMP_WAIT_POLICY": "PASSIVE"}
    code = "import sys; print(customized); print(any('program_hook' in each for each in sys.path))"
    measured = run(code, environ=environ)
    assert printed(measured) == f"{tmp_path / 'sitecustomize.py'}\nFalse\n"


def test_a_hook_that_cannot_write_costs_the_program_nothing(run: Any) -> None:
    code = "import os, shutil; shutil.rmtree(os.environ['SWEEPER_PROGRAM_REPORTS']); print('done')"
    measured = run(code)
    assert measured.outcome.status is Status.OK
    assert printed(measured) == "done\n"


def test_a_program_without_torch_has_no_allocator_and_leaves_no_file(run: Any) -> None:
    measured = run("pass")
    assert measured.outcome.metrics["torch"] is None
    assert {file.name for file in measured.folder.path.iterdir()} <= {"point.json", "journal.jsonl", "exit.json"}


@pytest.fixture
def torch_with_devices(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "torch.py").write_text(TORCH)
    return {"device": "cuda:0+cuda:1", "device_uuid": UUIDS}


def test_the_allocators_peaks_come_from_the_program_a_row_for_each_device(run: Any, torch_with_devices: Any) -> None:
    outcome = run("import torch", **torch_with_devices).outcome
    phases = {phase.device: phase for phase in outcome.phases if phase.name == "run"}
    assert [phases[name].peak["allocated"] for name in ("cuda:0", "cuda:1")] == [2**30, 2 * 2**30]
    assert phases["cuda:1"].alloc_retries == 1
    assert outcome.peak("reserved") == 2 * 2**30
    assert "resident" in phases["cuda:0"].peak
    assert "resident" not in phases["cuda:1"].peak, "the host's memory stands once"
    assert outcome.metrics["torch"] == "2.13.0"


def test_a_device_that_the_program_hides_from_itself_is_known_by_its_uuid(run: Any, torch_with_devices: Any) -> None:
    code = "import torch; torch.cuda.get_device_properties = lambda index: torch.Properties(1 - index)"
    outcome = run(code, **torch_with_devices).outcome
    peaks = {phase.device: phase.peak["allocated"] for phase in outcome.phases if phase.name == "run"}
    assert peaks == {"cuda:0": 2 * 2**30, "cuda:1": 2**30}


def test_a_program_that_was_refused_memory_and_ended_well_does_not_decide_whether_it_fits(
    run: Any, torch_with_devices: Any
) -> None:
    """Its processes are counted together: each reports the refusals of both devices."""
    outcome = run("import torch; torch.Cuda.ooms = 2", **torch_with_devices).outcome
    assert (outcome.status, outcome.fits, outcome.handled_refusals) == (Status.OK, None, 4)
    assert run("import torch", **torch_with_devices).outcome.handled_refusals == 0


def test_a_program_without_a_device_has_no_count_of_refusals(run: Any) -> None:
    outcome = run("").outcome
    assert (outcome.fits, outcome.handled_refusals) == (True, None)


PACKAGE = {
    "torch/__init__.py": """
        import types
        class C: pass
        _C = C()
        peak, count = {}, {}
        def stats(index):
            amounts = {"current": 1, "peak": peak.get(index, 0)}
            names = ("allocated", "reserved", "requested", "active")
            counts = {"num_alloc_retries": 0, "num_ooms": count.get(index, 0)}
            return counts | {f"{name}_bytes": {"all": amounts} for name in names}
        _C._cuda_memoryStats = stats
        _C._cuda_resetPeakMemoryStats = _C._accelerator_resetPeakStats = lambda index: peak.pop(index, None)
        _C._cuda_resetAccumulatedMemoryStats = lambda index: count.pop(index, None)
        __version__ = "2.13.0"
        from torch import cuda
        """,
    "torch/cuda/__init__.py": """
        import types, torch
        from . import memory
        is_initialized, device_count = (lambda: True), (lambda: 1)
        get_device_properties = lambda index: types.SimpleNamespace(uuid=f"0000000{index}-aaaa")
        memory_stats = memory.memory_stats
        """,
    "torch/cuda/memory.py": """
        import torch
        get_allocator_backend = lambda: "native"
        def memory_stats(index):
            nested = torch._C._cuda_memoryStats(index)
            flat = {name: value for name, value in nested.items() if isinstance(value, int)}
            for name in set(nested) - set(flat):
                flat.update({f"{name}.all.{moment}": value for moment, value in nested[name]["all"].items()})
            return flat
        """,
}


def put_package(folder: Path) -> None:
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def test_a_program_that_resets_the_peaks_does_not_shrink_its_own_figure(run: Any, tmp_path: Path) -> None:
    put_package(tmp_path)
    code = """
    import torch
    torch.peak[0], torch.count[0] = 8 * 2**30, 2
    torch._C._cuda_resetPeakMemoryStats(0)
    assert torch.cuda.memory_stats(0)["allocated_bytes.all.peak"] == 0, "the program reads what torch gives it"
    torch.peak[0] = 2**20
    torch._C._accelerator_resetPeakStats(0)
    torch._C._cuda_resetAccumulatedMemoryStats(0)
    torch.peak[0], torch.count[0] = 2**20, 1
    """
    outcome = run(code, device="cuda:0", device_uuid="GPU-00000000-aaaa").outcome
    assert outcome.status is Status.OK, outcome.error_message
    (phase,) = [phase for phase in outcome.phases if phase.name == "run"]
    assert {name: phase.peak[name] for name in ("allocated", "reserved")} == {"allocated": 2**33, "reserved": 2**33}
    assert phase.num_ooms == 3


def test_a_program_without_caching_has_no_counters(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_package(tmp_path)
    environ = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    outcome = run("import torch", device="cuda:0", device_uuid="GPU-00000000-aaaa", environ=environ).outcome
    assert outcome.status is Status.OK, outcome.error_message
    (phase,) = [phase for phase in outcome.phases if phase.name == "run"]
    assert "allocated" not in phase.peak
    assert phase.num_ooms is None


def test_a_refusal_on_a_device_has_the_scope_device(run: Any, torch_with_devices: Any) -> None:
    message = "CUDA out of memory. Tried to allocate 512.00 MiB. Of the allocated memory 100.00 MiB is allocated"
    code = f"import torch; raise torch.OutOfMemoryError({message!r})"
    outcome = run(code, device="cuda:0", device_uuid="GPU-00000000-aaaa").outcome
    assert (outcome.status, outcome.oom_scope, outcome.fits) == (Status.OOM, "device", False)
    assert outcome.requested_bytes == 512 * MIB
    assert 609 * MIB < outcome.needs_at_least_bytes <= 612 * MIB, "what was held stands in the message"


def test_several_processes_on_a_device_report_the_highest_peak_not_a_sum(run: Any, torch_with_devices: Any) -> None:
    code = """
    import subprocess, sys, torch
    subprocess.run([sys.executable, "-c", "import torch"], check=True, cwd=sys.path[0])
    """
    measured = run(code, **torch_with_devices)
    assert len([fact for fact in measured.journal if fact["kind"] == "report"]) == 2
    assert measured.outcome.peak("allocated") == 2 * 2**30


def test_a_process_of_multiprocessing_reports_too(run: Any, torch_with_devices: Any) -> None:
    code = """
    import multiprocessing
    def use(): import torch
    if __name__ == "__main__":
        process = multiprocessing.get_context("spawn").Process(target=use)
        process.start()
        process.join()
    """
    assert run(code, **torch_with_devices).outcome.peak("allocated") == 2 * 2**30


def test_a_budget_that_cannot_be_imposed_is_unavailable(run: Any) -> None:
    outcome = run("pass", device="cuda:0", budget=2**30).outcome
    assert outcome.status is Status.UNAVAILABLE

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from sweeper.tables.run_tables import Tables
from tests.sweeper.conftest import BASELINE, phase, started

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MIB = 2**20


def read(name: str) -> NotebookNode:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.fixture
def notebook() -> NotebookNode:
    return read("analysis")


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    for cell in read(name).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


# The kernel's libraries warn when they start and end.
@pytest.mark.filterwarnings("default")
def test_the_notebook_shows_the_frontier_the_effect_of_one_dimension_and_a_conclusion(
    notebook: NotebookNode, written: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each combination of settings and each device has points, lines and figures of its own."""
    notebook.cells.append(nbformat.v4.new_code_cell(CHECK))
    text = executed(notebook, a_sweep(written).folder, monkeypatch, tmp_path)
    pictures = [output for output in outputs_of(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert "limiting_phase" in text
    frontier, bars, peaks = (line for line in text.splitlines() if line.startswith("DRAWN"))
    # Three combinations on cpu, which has both sides, on the GPU that is not there, and on the card, which was stopped.
    assert frontier == f"DRAWN {[(0, 2), (0, 1), (0, 2)] * 3}"
    assert bars == "DRAWN [(0, 0)]"
    assert peaks == "DRAWN [(4, 0), (3, 0)]"  # a line for each, and on cpu the baseline
    for device, kind in (("cpu", "measured"), ("sim:rtx-4090", "calculated")):
        for dtype, checkpointing in (("float32", False), ("float32", True), ("bfloat16", False)):
            settings = f"dtype={dtype}  workload.checkpointing={checkpointing}"
            found = text.split(f"{device} ({kind})  {settings}\n")[1]
            step = 16 * (2 if dtype == "float32" else 1)
            assert found.startswith(f"  batch: 2 steps, median {step:.3f} MiB for one more\n")
            concluded = text.split(f"  {device}  {settings}: ")[1].splitlines()[0]
            assert concluded.startswith("batch=4 context=64 is the largest that fits, at a peak of 0.")
            end = "batch=8 context=64 is the smallest that does not (out of memory in cold_forward)."
            assert concluded.endswith(end if device == "cpu" else "so this is no limit; undecided: 1 not_run.")
    assert "  cuda:0  dtype=float32  workload.checkpointing=False: nothing is known to fit; undecided: 4 unav" in text
    for library in ("polars", "duckdb"):
        assert ("is not installed: pip install " + library in text) is (importlib.util.find_spec(library) is None)
    assert text.splitlines()[-3:] == [
        "no partial peak in the table: True",
        "partial peaks apart: 3",
        "devices with a time: ['cpu']",
    ]


CHECK = """
print("no partial peak in the table:", bool(phases[completed].completed.all()))
print("partial peaks apart:", len(phases[~completed]))
print("devices with a time:", sorted(fitting[fitting.warm_s.notna()].device.unique()))
"""


@pytest.mark.filterwarnings("default")
def test_the_notebook_draws_some_of_many_cards_and_has_a_bar_and_a_sentence_for_the_others(
    notebook: NotebookNode, written: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = written({"batch": [1, 2, 4]})
    cards = [f"sim:card-{number:02}" for number in range(42)]
    for number, card in enumerate(cards):
        run.device(card, total_bytes=(number + 1) * 2**30)
    for batch in (1, 2, 4):
        point = run.ask(batch=batch)
        for card in cards:
            run.attempt(point, journal(card, BASELINE + batch * MIB), {"code": 0, "signal": None}, device=card)
    Tables(run.folder).write()
    text = executed(notebook, run.folder, monkeypatch, tmp_path)
    assert "6 of 43 devices are drawn" in text
    frontier, _, peaks = (line for line in text.splitlines() if line.startswith("DRAWN"))
    assert frontier.count("(0, 1)") == 6
    assert peaks.count("(1, 0)") == 5  # nothing was run on cpu
    assert text.count("batch=4 context=64 is the largest that fits") == 24
    assert "and 18 more devices or settings" in text


@pytest.mark.filterwarnings("default")
def test_the_protocol_estimates_measures_in_new_processes_and_reads_each_byte_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its last cell runs a sweep from the notebook's kernel."""
    notebook = read("measure")
    text = executed(notebook, tmp_path, monkeypatch, tmp_path)
    assert "3 of 3 attempts reported; failures: [None, None, None]" in text
    highest = re.search(r"fits: +([\d,]+) bytes = .* (\w+), in the phase 'second", text)
    assert highest is not None
    baseline = re.search(r"of it +([\d,]+) bytes = .* were there before the first phase", text)
    assert baseline is not None
    grown, estimated = (
        re.search(rf"^{name}.*: +([\d,]+) bytes", text, re.MULTILINE) for name in ("measured growth", "estimated, at")
    )
    assert grown is not None
    assert estimated is not None
    peak, base, more, least = (int(each[1].replace(",", "")) for each in (highest, baseline, grown, estimated))
    assert more == peak - base
    assert least < more < 3 * least
    assert "\nsim:h100-80gb  batch=8  fits, " in text
    assert "\x1b" not in text


def test_an_attempt_of_the_protocol_that_does_not_fit_keeps_a_partial_peak() -> None:
    cells = [cell.source for cell in read("measure").cells if "MEASURED = " in cell.source]
    (script,) = re.findall(r'MEASURED = """\n(.*?)"""', cells[0], re.DOTALL)
    code = script.replace("\\\\", "\\")
    done = subprocess.run(
        [sys.executable, "-c", code, "512", "1", "1000000", "100000"],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["failed"] is not None
    (row,) = found["rows"]
    assert (row["phase"], row["completed"]) == ("build", False)
    assert row["peak"]["resident"] >= row["baseline"]["resident"] > 0


def executed(notebook: NotebookNode, run: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """The text of the notebook's outputs, with a line for each picture: the lines and collections of its panels."""
    for cell in notebook.cells:  # figures are closed when they are shown
        cell.source = cell.source.replace(
            "plt.show()", "print('DRAWN', [(len(a.lines), len(a.collections)) for a in plt.gcf().axes])\nplt.show()"
        )
    execute(notebook, run, monkeypatch, folder)
    return text_of(notebook)


def execute(notebook: NotebookNode, run: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("SWEEPER_RUN", str(run))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parent))
    here(monkeypatch, folder)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()


def here(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Register this interpreter as the kernel, in place of the machine's kernels."""
    spec = folder / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (spec / "kernel.json").write_text(f'{{"argv": {argv}, "display_name": "here", "language": "python"}}')
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))


def a_sweep(written: Any) -> Any:
    """Three combinations of dtype and checkpointing, on cpu and on a calculated card; no GPU is there.

    Batch 1, 2 and 4 fit, and on cpu batch 8 is refused. A sample takes 32 MiB in float32 and 16 MiB in bfloat16.
    """
    run = written({"batch": [1, 2, 4, 8], "dtype": ["float32", "bfloat16"], "workload.checkpointing": [False, True]})
    run.device("cpu")
    run.device("cuda:0", unavailable="torch is a CPU build")
    run.device("sim:rtx-4090")
    for dtype, checkpointing in (("float32", False), ("float32", True), ("bfloat16", False)):
        before = None
        workload = {"name": "train", "checkpointing": checkpointing, "method": "full", "rank": None}
        for batch in (1, 2, 4, 8):
            changed = {} if before is None else {"changed_from": before, "changed": ("batch",)}
            point = run.ask(batch=batch, dtype=dtype, workload=workload, **changed)
            peak = BASELINE + batch * MIB * (32 if dtype == "float32" else 16)
            for device in ("cpu", "sim:rtx-4090"):
                if batch < 8:
                    run.attempt(point, journal(device, peak), {"code": 0, "signal": None}, device=device)
                elif device == "cpu":
                    run.is_refused(point)
            before = point
    Tables(run.folder).write()
    return run


def journal(device: str, peak: int) -> list[dict[str, Any]]:
    """An attempt that passed. A card has the counter `allocated`, and no times."""
    lines = [*started(), *phase("cold_forward", peak, device=device), *phase("warm_forward", peak, device=device)]
    for line in lines if device != "cpu" else ():
        if device in line.get("counters", {}):
            moments = {name: read for name, read in line["counters"][device].items() if isinstance(read, dict)}
            line["counters"] = {device: {name: {"allocated": read["resident"]} for name, read in moments.items()}}
            line |= {"elapsed_s": None} if line["kind"] == "ended" else {}
    return [*lines, {"kind": "finished", "metrics": {}, "steps": None, "tokens": 64}]


def outputs_of(notebook: NotebookNode) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def text_of(notebook: NotebookNode) -> str:
    """What was printed and shown. A kernel may send what a cell prints in several parts, and splits lines."""
    texts = (
        output.get("text") or output.get("data", {}).get("text/plain", "") + "\n" for output in outputs_of(notebook)
    )
    return "".join(texts)

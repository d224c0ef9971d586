from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from sweeper.tables.run_tables import Tables

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "analysis.ipynb"
MIB = 2**20


@pytest.fixture
def notebook() -> NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_notebook_is_stored_without_outputs(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


# The kernel's libraries warn when they start and end.
@pytest.mark.filterwarnings("default")
def test_the_notebook_shows_the_frontier_and_the_effect_of_one_dimension(
    notebook: NotebookNode, written: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = a_sweep(written)
    monkeypatch.setenv("SWEEPER_RUN", str(run.folder))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    here(monkeypatch, tmp_path)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    text = text_of(notebook)
    pictures = [output for output in outputs_of(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
    assert "limiting_phase" in text
    assert "cold_forward" in text
    assert "batch: 2 steps, median 16.000 MiB for one more" in text
    assert "context: 1 steps, median 0.250 MiB for one more" in text


def here(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Register this interpreter as the kernel, in place of the machine's kernels."""
    spec = folder / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (spec / "kernel.json").write_text(f'{{"argv": {argv}, "display_name": "here", "language": "python"}}')
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))


def a_sweep(written: Any) -> Any:
    """Batch 1, 2 and 4 fit at context 64; at 128 batch 2 fits and 4 does not. A sample of 64 tokens takes 16 MiB."""
    run = written({"batch": [1, 2, 4], "context": [64, 128]})
    run.device("cuda:0", unavailable="torch is a CPU build")
    before = None
    for batch, context, changed in ((1, 64, ()), (2, 64, ("batch",)), (4, 64, ("batch",))):
        point = run.ask(batch=batch, context=context, changed_from=before, changed=changed)
        run.passes(point, peak=219 * MIB + batch * context * MIB // 4)
        before = point if batch < 4 else before
    wide = run.ask(batch=2, context=128, changed_from=before, changed=("context",))
    run.passes(wide, peak=219 * MIB + 2 * 64 * MIB // 4 + 16 * MIB)
    run.is_refused(run.ask(batch=4, context=128, changed_from=wide, changed=("batch",)))
    Tables(run.folder).write()
    return run


def outputs_of(notebook: NotebookNode) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def text_of(notebook: NotebookNode) -> str:
    texts = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs_of(notebook)]
    return "\n".join(texts)

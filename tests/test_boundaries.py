"""Who may import whom. What is measured carries nothing of ours, and what orchestrates carries no torch."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNNERS = sorted((ROOT / "runners").rglob("*.py"))
SWEEPER = sorted((ROOT / "sweeper").rglob("*.py"))
OURS = {"hydra", "omegaconf", "pandas", "pyarrow", "rich", "sweeper"}

# A file of runners may import a library at its top where its name, or its folder's, says so.
SAYS_SO = {"torch": ("torch", "cuda", "transformers", "peft"), "transformers": ("transformers",), "peft": ("peft",)}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def modules(paths: list[Path]) -> list[str]:
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of every import below a node, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def imported_at_once(tree: ast.Module) -> set[str]:
    """Those that run when the module is imported."""
    at_once = [
        node
        for node in tree.body
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    return {name for node in at_once for name in imported(node)}


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Top-level names of what a fresh interpreter has loaded after running the code."""
    code += "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


IMPORT_ALL = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"


@pytest.mark.parametrize("path", RUNNERS, ids=named)
def test_no_file_of_runners_imports_sweeper_or_what_only_sweeper_needs(path: Path) -> None:
    assert not OURS & set(imported(ast.parse(path.read_text())))


@pytest.mark.parametrize("path", RUNNERS, ids=named)
def test_a_file_of_runners_is_standard_library_unless_its_name_says_otherwise(path: Path) -> None:
    foreign = imported_at_once(ast.parse(path.read_text())) - set(sys.stdlib_module_names) - {"runners", ""}
    unsaid = {name for name in foreign if not any(word in named(path) for word in SAYS_SO.get(name, ()))}
    assert not unsaid


@pytest.mark.parametrize("path", SWEEPER, ids=named)
def test_no_file_of_sweeper_imports_torch(path: Path) -> None:
    assert not {"torch", "transformers", "peft"} & set(imported(ast.parse(path.read_text())))


def test_every_module_of_sweeper_together_loads_no_torch() -> None:
    names = [name for name in modules(SWEEPER) if not name.endswith("__main__")]
    assert "torch" not in loaded_by(IMPORT_ALL, *names)


def test_runners_imported_by_itself_loads_nothing_but_the_standard_library() -> None:
    says = {word for words in SAYS_SO.values() for word in words}
    names = [name for name in modules(RUNNERS) if not any(word in name for word in says)]
    before = loaded_by("")
    assert loaded_by(IMPORT_ALL, *names) - before - set(sys.stdlib_module_names) == {"runners"}


def test_the_command_line_starts_without_hydra_and_pandas_where_it_needs_neither() -> None:
    loaded = loaded_by("import sweeper.cli; from sweeper.cli import run; run(['estimate', 'parameters=1', 'bits=4'])")
    assert not {"hydra", "omegaconf", "pandas", "pyarrow", "torch"} & loaded


def test_the_measured_process_holds_torch_and_nothing_of_ours(tmp_path: Path) -> None:
    """Asked of the process itself: the workload's result is what it found loaded."""
    (tmp_path / "mywork.py").write_text(
        "import sys, torch\n"
        "def run(**_):\n"
        "    return {'loaded': sorted({name.partition('.')[0] for name in sys.modules})}\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    asked = ["workload=custom", "workload.target=mywork:run", "devices=cpu", "name=loaded"]
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *asked],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (journal,) = (tmp_path / "outputs" / "loaded").rglob("journal.jsonl")
    (finished,) = (json.loads(line) for line in journal.read_text().splitlines() if '"finished"' in line)
    loaded = set(finished["metrics"]["loaded"])
    assert "torch" in loaded
    assert not OURS & loaded
    assert loaded - loaded_by("import torch") - set(sys.stdlib_module_names) == {"runners", "mywork"}


def test_one_line_of_code_knows_the_journals_file_name() -> None:
    code = [path.read_text() for path in (*RUNNERS, *SWEEPER)]
    assert sum(text.count('"journal.jsonl"') for text in code) == 1

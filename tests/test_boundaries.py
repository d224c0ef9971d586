"""Which module may import which. The measured process loads none of our dependencies, the orchestrator no torch."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import command_line

ROOT = Path(__file__).resolve().parents[1]
RUNNERS = sorted((ROOT / "runners").rglob("*.py"))
SWEEPER = sorted((ROOT / "sweeper").rglob("*.py"))
OURS = {"hydra", "omegaconf", "pandas", "pyarrow", "rich", "sweeper"}
PURE_PACKAGES = ("sweeper.comparing", "sweeper.frontier", "sweeper.effects", "sweeper.estimates", "sweeper.designs")

# A file of runners may import a library at module level where its path contains one of these words.
NAMED_BY = {
    "torch": ("torch", "cuda", "transformers", "peft"),
    "transformers": ("transformers",),
    "peft": ("peft",),
    "numpy": ("numpy",),
}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def modules(paths: list[Path]) -> list[str]:
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]


FILES = dict(zip(modules([*RUNNERS, *SWEEPER]), (*RUNNERS, *SWEEPER), strict=True))


def modules_imported(module: str) -> set[str]:
    """Our modules that a module imports, in functions too, without those that only type checkers read."""
    tree = ast.parse(FILES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
            found |= {name if name in FILES else str(node.module) for name in names}
    return found & set(FILES) - {module}


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of every import below a node, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def imported_at_once(tree: ast.Module) -> set[str]:
    """Top-level names of the imports that run when the module is imported."""
    at_once = [
        node
        for node in tree.body
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    return {name for node in at_once for name in imported(node)}


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Top-level names of the modules that a new interpreter has loaded after running the code."""
    code += "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", ["runners", "sweeper"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Imports within functions count: an import inside a function hides a circle but does not remove it."""
    imports = {name: modules_imported(name) for name in FILES if name.partition(".")[0] == package}
    TopologicalSorter(imports).prepare()  # CycleError shows the circle


@pytest.mark.parametrize("path", SWEEPER, ids=named)
def test_only_planning_imports_hydra(path: Path) -> None:
    assert path.parent.name == "planning" or not {"hydra", "omegaconf"} & set(imported(ast.parse(path.read_text())))


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith(PURE_PACKAGES)])
def test_what_computes_imports_nothing_that_shows_stores_or_runs(module: str) -> None:
    packages = {name.split(".")[1] for name in modules_imported(module) if name.count(".") > 1}
    assert not packages & {"views", "tables", "sweeping"}


DRAWS = ("sweeper.views.page.charts", "sweeper.views.page.html", "sweeper.views.page.report")


@pytest.mark.parametrize("module", [n for n in FILES if n.startswith("sweeper.views.page.") and n not in DRAWS])
def test_what_the_page_of_a_run_shows_is_decided_without_files_and_without_drawing(module: str) -> None:
    names = set(imported(ast.parse(FILES[module].read_text())))
    assert not {"altair", "vl_convert", "jinja2", "markupsafe", "pyarrow", "pandas", "os", "pathlib"} & names
    assert not {*DRAWS} & modules_imported(module)


@pytest.mark.parametrize("module", [name for name in FILES if name.startswith("runners.meters")])
def test_a_meter_imports_nothing_of_the_simulation(module: str) -> None:
    assert not [name for name in modules_imported(module) if name.startswith("runners.simulation")]


IMPORT_ALL = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"


@pytest.mark.parametrize("path", RUNNERS, ids=named)
def test_no_file_of_runners_imports_sweeper_or_what_only_sweeper_needs(path: Path) -> None:
    assert not OURS & set(imported(ast.parse(path.read_text())))


@pytest.mark.parametrize("path", RUNNERS, ids=named)
def test_a_file_of_runners_imports_the_standard_library_alone_unless_its_path_names_another(path: Path) -> None:
    foreign = imported_at_once(ast.parse(path.read_text())) - set(sys.stdlib_module_names) - {"runners", ""}
    assert not {name for name in foreign if not any(word in named(path) for word in NAMED_BY.get(name, ()))}


@pytest.mark.parametrize("path", SWEEPER, ids=named)
def test_no_file_of_sweeper_imports_torch(path: Path) -> None:
    assert not {"torch", "transformers", "peft"} & set(imported(ast.parse(path.read_text())))


def test_all_modules_of_sweeper_together_load_no_torch() -> None:
    names = [name for name in modules(SWEEPER) if not name.endswith("__main__")]
    assert "torch" not in loaded_by(IMPORT_ALL, *names)


def test_runners_loads_the_standard_library_alone() -> None:
    words = {word for words in NAMED_BY.values() for word in words}
    names = [name for name in modules(RUNNERS) if not any(word in name for word in words)]
    before = loaded_by("")
    assert loaded_by(IMPORT_ALL, *names) - before - set(sys.stdlib_module_names) == {"runners"}


def test_the_command_line_starts_without_hydra_and_pandas_where_it_needs_neither() -> None:
    loaded = loaded_by("import sweeper.cli; from sweeper.cli import run; run(['estimate', 'parameters=1e9', 'bits=4'])")
    assert not {"hydra", "omegaconf", "pandas", "pyarrow", "torch"} & loaded


def test_a_sweep_writes_its_tables_without_pandas() -> None:
    """pyarrow imports pandas with the first array that it makes, unless it is kept from it."""
    code = "from sweeper.tables.packed_rows import table_of; from sweeper.columns import POINTS; table_of(POINTS, [{}])"
    assert "pandas" not in loaded_by(code)
    assert "pandas" in loaded_by(f"{code}.to_pandas()")


def test_the_measured_process_loads_torch_and_none_of_our_dependencies(tmp_path: Path) -> None:
    """The workload returns the names of the modules that its own process has loaded."""
    (tmp_path / "mywork.py").write_text(
        "import sys\ndef run(**_):\n    return {'loaded': sorted({name.partition('.')[0] for name in sys.modules})}\n"
    )
    words = ["workload=custom", "workload.target=mywork:run", "devices=cpu", "name=loaded"]
    done = command_line.run(words, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (journal,) = (tmp_path / "outputs" / "loaded").rglob("journal.jsonl")
    (finished,) = (json.loads(line) for line in journal.read_text().splitlines() if '"finished"' in line)
    loaded = set(finished["metrics"]["loaded"])
    assert "torch" in loaded
    assert not OURS & loaded
    assert loaded - loaded_by("import torch") - set(sys.stdlib_module_names) == {"runners", "mywork"}


def test_the_journals_file_name_stands_in_one_line_of_code() -> None:
    code = [path.read_text() for path in (*RUNNERS, *SWEEPER)]
    assert sum(text.count('"journal.jsonl"') for text in code) == 1

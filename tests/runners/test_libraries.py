"""What needs an optional library, and the command that installs it."""

from __future__ import annotations

import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners import libraries
from runners.libraries import LIBRARIES, installation, is_installed, library_of, needed_by, why_not_imported
from runners.models import quantized_weights
from tests.runners.conftest import DECODER, MLP, TRAIN

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_has_the_libraries_of_each_extra_of_pyproject() -> None:
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    declared = {
        extra: {re.split(r"[><=]", each)[0] for each in wanted if not each.startswith("sweeper[")}
        for extra, wanted in extras.items()
        if extra not in ("test", "programs", "docs")  # no workload of ours imports these
    }
    ours: dict[str, set[str]] = {}
    for library in LIBRARIES.values():
        if library.extra is not None:
            ours.setdefault(library.extra, set()).add(library.distribution)
    assert ours == declared


def points() -> Iterator[dict[str, Any]]:
    """Points of each workload that imports a library, for each model, input and library of a quantized cache."""
    generate = {"new_tokens": 1, "prefill_chunk": None, "prompt_lengths": 1, "packing": "padded", "logits": "last"}
    workloads = [
        {"name": "forward", "logits": "all"},
        {"name": "train", **TRAIN},
        {"name": "train", **TRAIN, "method": "lora"},
        *({"name": "generate", **generate, "cache": "quantized", "cache_backend": each} for each in ("quanto", "hqq")),
    ]
    inputs = [{"name": name} for name in ("synthetic", "text", "images")]
    for workload, read, model in itertools.product(workloads, inputs, (MLP, DECODER)):
        yield {"workload": workload, "inputs": read, "model": model, "dtype": "float32", "quantize": "none"}


def test_every_library_that_a_workload_imports_before_its_baseline_is_needed_by_the_point() -> None:
    seen = set()
    for values in points():
        workload = importlib.import_module(f"runners.workloads.{values['workload']['name']}")
        imported = {library_of(module) for module in workload.imports(values)} - {None, "torch"}
        reads_files = (
            values["inputs"]["name"] in ("text", "images") and values["model"] is MLP
        )  # refused for this model
        assert imported <= needed_by(values).keys() | ({"transformers"} if reads_files else set())
        seen |= imported
    assert seen == {"transformers", "peft", "PIL", "optimum.quanto", "hqq"}


def test_every_library_that_is_imported_after_the_fork_is_needed_by_the_point() -> None:
    for scheme, modules in quantized_weights.MODULES.items():
        assert needed_by({"quantize": scheme}) == {library_of(modules[0]): f"quantize={scheme}"}
    assert needed_by({"workload": {"optimizer": "adamw-8bit"}}) == {"bitsandbytes": "workload.optimizer=adamw-8bit"}


def test_a_program_or_function_of_the_users_needs_no_library() -> None:
    assert needed_by({"workload": {"name": "command", "argv": ["python"]}, "model": None, "quantize": None}) == {}


def test_a_library_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "optimum").mkdir()
    (tmp_path / "broken.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(
        sys, "modules", {k: v for k, v in sys.modules.items() if not k.startswith(("optimum", "transformers"))}
    )
    assert not is_installed("optimum.quanto")
    (tmp_path / "optimum" / "quanto.py").write_text("raise RuntimeError('imported')")
    importlib.invalidate_caches()
    assert is_installed("optimum.quanto")
    assert is_installed("broken")
    assert not is_installed("transformers")


def test_the_command_names_the_extra_and_the_interpreter_unless_the_shells_pip_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "_extras", lambda: ["models", "quantize"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installation("peft") == f'{sys.executable} -m pip install "sweeper[models]"'
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    assert installation("peft") == f'{sys.executable} -m pip install "sweeper[models]"'
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert installation("peft", "torchao", "transformers") == 'pip install "sweeper[models,quantize]"'
    assert installation("hqq") == "pip install hqq"


def test_an_interpreter_without_sweeper_installs_the_library_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install "sweeper[models]"` would look for sweeper elsewhere."""
    monkeypatch.setattr(libraries, "_extras", list)
    assert installation("PIL", "peft").endswith(" install peft pillow")


def test_a_missing_library_and_a_broken_one_have_different_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_extras", lambda: ["models"])
    monkeypatch.setattr(libraries, "_pip", lambda: "pip")
    missing = ModuleNotFoundError("No module named 'transformers'", name="transformers")
    why = why_not_imported("transformers.models.llama.modeling_llama", missing, "...")
    assert why == 'transformers is not installed: pip install "sweeper[models]"'
    broken = ModuleNotFoundError("No module named 'filelock'", name="filelock")
    why = why_not_imported("transformers", broken, "No module named 'filelock'")
    assert why.endswith("(pip install \"sweeper[models]\" installs transformers): No module named 'filelock'")
    assert why_not_imported("mine", broken, "no filelock") == "mine cannot be imported: no filelock"


def test_a_broken_library_that_another_imports_is_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers imports torchao, and reports its failure as one of its own."""
    monkeypatch.setattr(libraries, "_extras", lambda: ["models", "quantize"])
    monkeypatch.setattr(libraries, "_pip", lambda: "pip")
    (tmp_path / "torchao.py").write_text("import no_such_kernels")
    (tmp_path / "transformers.py").write_text(
        "try:\n    import torchao\nexcept ImportError as error:\n    raise RuntimeError('Failed') from error\n"
    )
    for name in ("torchao", "transformers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError) as raised:
        importlib.import_module("transformers")
    why = why_not_imported("transformers", raised.value, "No module named 'no_such_kernels'")
    assert why.startswith(
        'torchao cannot be imported (pip install "sweeper[quantize]" installs it anew), and transformers'
    )
    assert why.endswith("No module named 'no_such_kernels'")


def test_the_measured_process_pays_for_no_package_metadata() -> None:
    code = "import sys, runners.libraries; print({'importlib.metadata', 'email', 'shutil'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

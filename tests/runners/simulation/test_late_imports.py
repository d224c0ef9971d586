"""Modules that are adapted when they are imported."""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runners.simulation.late_imports import Adaptation, adapted


def test_several_hooks_that_wait_for_one_module_all_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waited_for.py").write_text("there = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[str] = []

    def noted(what: str) -> AbstractContextManager[None]:
        seen.append(what)
        return nullcontext()

    with ExitStack() as stack:
        for number in range(3):
            adaptation = Adaptation(partial(noted, f"importing {number}"), lambda _, number=number: noted(f"{number}"))
            stack.enter_context(adapted({"waited_for": adaptation}))
        import waited_for  # type: ignore[import-not-found]

        assert waited_for.there
    assert sorted(seen) == ["0", "1", "2", "importing 0", "importing 1", "importing 2"]


def test_a_module_is_adapted_where_another_importer_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source(Loader):
        def exec_module(self, module: ModuleType) -> None:
            module.text = "from memory"  # type: ignore[attr-defined]

    class Importer:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return ModuleSpec(name, Source()) if name == "nowhere_on_disk" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Importer()])
    found: list[str] = []

    def imported(module: ModuleType) -> AbstractContextManager[None]:
        found.append(module.text)
        return nullcontext()

    with adapted({"nowhere_on_disk": Adaptation(nullcontext, imported)}):
        importlib.import_module("nowhere_on_disk")
    assert found == ["from memory"]

"""Contexts that begin when a module is imported, for libraries that a workload may import at any time or never."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple


class Adaptation(NamedTuple):
    """What a simulation changes in a library."""

    importing: Callable[[], AbstractContextManager[Any]]  # entered while the library's module is executed
    imported: Callable[[ModuleType], AbstractContextManager[Any]]  # entered from then on, until the end of the trace


@contextmanager
def adapted(adaptations: Mapping[str, Adaptation]) -> Iterator[None]:
    """Adapt the modules of these names: at once those that are imported already, the others when they are."""
    with ExitStack() as stack:
        finder = _Finder(adaptations, stack)
        for name, adaptation in adaptations.items():
            if name in sys.modules:
                stack.enter_context(adaptation.imported(sys.modules[name]))
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


class _Finder:
    def __init__(self, adaptations: Mapping[str, Adaptation], stack: ExitStack) -> None:
        self._adaptations, self._stack = adaptations, stack

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        adaptation = self._adaptations.get(name)
        if adaptation is None:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]  # some may wait for the same module
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((each for each in specs if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with adaptation.importing():
                    execute(module)
                self._stack.enter_context(adaptation.imported(module))

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

"""Files that a traced program writes from tensors without data: they exist for the program only.

A file of such tensors would replace the user's own by nothing, so none is written. What a program saved it may move,
copy, look for and load again: a training that keeps its best weights loads them at its end. The tensors have no data
then either, and their memory counts wherever they are loaded to.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from runners.simulation.torch_replaced import replaced

MOST_NAMED = 3  # files that were not written, by name
FILE = 0o100644  # the mode of an ordinary file


class UnwrittenFiles:
    """The files, by their absolute paths."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._names: dict[str, None] = {}  # as the program named them, in order and each once

    def note(self) -> str | None:
        if not self._names:
            return None
        names = list(self._names)
        named = ", ".join(names[:MOST_NAMED])
        more = len(names) - MOST_NAMED
        return "tensors have no data here, and were not written to " + named + (f" and {more} more" if more > 0 else "")

    def name(self, file: Any) -> str:
        """Note that this was not written: a path, or an object that has a name. The program does not find it either."""
        name = _path(file) or type(file).__name__
        self._names[name] = None
        return name

    def save(self, save: Callable[..., Any], what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        """As `save(what, file)`, where `save` is torch.save."""
        content = io.BytesIO()
        save(what, content, *args, **kwargs)
        self._add(file, content.getvalue())

    def has(self, file: Any) -> bool:
        return bool(self._contents) and self._find(file) is not None

    def open(self, file: Any) -> io.BytesIO:
        """What was saved, for torch.load."""
        return io.BytesIO(self._content(file))

    def _content(self, file: Any) -> bytes:
        return self._contents[self._find(file) or ""]

    def _add(self, file: Any, content: bytes) -> None:
        self._contents[os.path.abspath(self.name(file))] = content

    def _find(self, file: Any) -> str | None:
        name = _path(file)
        if name is None:
            return None
        path = os.path.abspath(name)
        return path if path in self._contents else None

    # --- what a program does with files by their names ---

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Until the end functions of `os` and `shutil` know the files."""
        found = self._functions()
        for_os = {name: found[name] for name in ("stat", "rename", "replace", "remove", "unlink")}
        for_shutil = {name: found[name] for name in ("copyfile", "copymode", "copystat")}
        with replaced(os, **for_os), replaced(shutil, **for_shutil):
            yield

    def _functions(self) -> dict[str, Callable[..., Any]]:
        stat, rename, replace, remove, unlink = os.stat, os.rename, os.replace, os.remove, os.unlink
        copyfile, copymode, copystat = shutil.copyfile, shutil.copymode, shutil.copystat

        def described(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.has(path):
                return stat(path, *args, **kwargs)
            size = len(self._content(path))
            now = int(time.time())
            return os.stat_result((FILE, 0, 0, 1, os.getuid(), os.getgid(), size, now, now, now))

        def moving(move: Any) -> Any:
            def moved(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
                if not self.has(source):
                    result = move(source, target, *args, **kwargs)
                    self._forget(target)
                    return result
                content = self._content(source)
                self._forget(source)
                self._add(target, content)
                return None

            return moved

        def removing(really: Any) -> Any:
            def removed(path: Any, *args: Any, **kwargs: Any) -> None:
                if self.has(path):
                    self._forget(path)
                else:
                    really(path, *args, **kwargs)

            return removed

        def copied(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.has(source):
                self._forget(target)
                return copyfile(source, target, *args, **kwargs)
            self._add(target, self._content(source))
            return target

        def unless_here(copy: Any) -> Any:
            def of_file(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
                if not self.has(target):
                    copy(source, target, *args, **kwargs)

            return of_file

        return {
            "stat": described,
            "rename": moving(rename),
            "replace": moving(replace),
            "remove": removing(remove),
            "unlink": removing(unlink),
            "copyfile": copied,
            "copymode": unless_here(copymode),
            "copystat": unless_here(copystat),
        }

    def _forget(self, file: Any) -> None:
        path = self._find(file)
        if path is not None:
            del self._contents[path]


def _path(file: Any) -> str | None:
    """The path of a file that a program gave by its name or opened; None for another object or a descriptor."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        file = getattr(file, "name", None)
    return os.fsdecode(file) if isinstance(file, (str, bytes, os.PathLike)) else None


def lacks_data(what: Any) -> bool:
    """Whether there is a tensor without data in what is to be written."""

    class Found(Exception):
        pass

    class Finder(pickle.Pickler):
        def persistent_id(self, each: Any) -> Any:
            if isinstance(each, torch.Tensor):
                with torch._C.DisableTorchFunction():
                    if each.is_meta:
                        raise Found
                    return "with data"
            return None

    if isinstance(what, torch.nn.Module):
        what = what.state_dict()
    try:
        Finder(_Nowhere()).dump(what)
    except Found:
        return True
    except Exception:  # it cannot be pickled, which its own way of saving will say
        return False
    return False


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)

"""Models that a traced program saves as a folder, which it may load again: `save_pretrained`, then `from_pretrained`.

Libraries read such a folder by many ways, some of them in other languages than Python. So it is on the disk while the
program runs: its configuration as it is, and its weights as files that have the names, types and shapes of the tensors
and holes in place of their data, which take no space. A file that was there before is neither replaced nor removed.
What was written is removed at the program's end, for a later run would take it for a model.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch

# The names of types in a file's header (https://github.com/huggingface/safetensors, "Format").
TYPES = {
    torch.bool: "BOOL",
    **{getattr(torch, f"uint{bits}"): f"U{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"int{bits}"): f"I{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)},
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
HEADER_ALIGNMENT = 8  # bytes


class SavedModels:
    """The folders, and what was written there."""

    def __init__(self) -> None:
        self._aside: str | None = None  # the folder in which a library writes now, in place of the program's
        self._files: dict[str, os.stat_result] = {}
        self._folders: list[str] = []

    def takes(self, file: Any) -> bool:
        """Whether a file without data is to be written now: it is a part of a folder."""
        return self._aside is not None and _is_inside(file, self._aside)

    def save(self, save: Callable[[str], Any], folder: str) -> Any:
        """As `save(folder)`, which writes a model. Returns what it returns."""
        if self.takes(folder):  # a model that another one is made of
            return save(folder)
        self._aside = tempfile.mkdtemp(prefix="sweeper-")
        try:
            result = save(self._aside)
            self._place(self._aside, os.path.abspath(folder))
        finally:
            shutil.rmtree(self._aside, ignore_errors=True)
            self._aside = None
        return result

    def _place(self, source: str, target: str) -> None:
        """Move what is new. A file of the same name stays, as long as it is not of this program too."""
        self._make_folder(target)
        for name in os.listdir(source):
            new, old = os.path.join(source, name), os.path.join(target, name)
            if os.path.isdir(new):
                self._place(new, old)
            elif not os.path.lexists(old) or self._is_own(old):
                shutil.move(new, old)
                self._files[old] = os.lstat(old)

    def _make_folder(self, folder: str) -> None:
        if not os.path.isdir(folder):
            self._make_folder(os.path.dirname(folder))
            os.mkdir(folder)
            self._folders.append(folder)

    def _is_own(self, file: str) -> bool:
        """Whether a file is as this program's `save` has written it."""
        written = self._files.get(file)
        try:
            found = os.lstat(file)
        except OSError:
            return False
        return written is not None and os.path.samestat(found, written) and found.st_mtime_ns == written.st_mtime_ns

    def remove(self) -> None:
        """Remove what was written, and the folders that are empty then."""
        for file in self._files:
            if self._is_own(file):
                os.remove(file)
        for folder in reversed(self._folders):
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)


def write_holes(tensors: Mapping[str, torch.Tensor], file: Any, metadata: Mapping[str, str] | None = None) -> None:
    """A file as safetensors.torch.save_file writes it, with holes in place of the numbers. Raises KeyError for a type
    that the format lacks."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    with open(file, "wb") as written:
        written.write(len(text).to_bytes(8, "little") + text)
        written.truncate(8 + len(text) + end)


def _is_inside(file: Any, folder: str) -> bool:
    if not isinstance(file, (str, bytes, os.PathLike)):
        return False
    path = os.path.abspath(os.fsdecode(file))
    return path == folder or path.startswith(os.path.join(folder, ""))

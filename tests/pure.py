"""A pytest plugin, `-p tests.pure`: a test is skipped when it is about to import torch or to start a process."""

from __future__ import annotations

import sys
from typing import Any

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


def _skip(event: str, arguments: tuple[Any, ...]) -> None:
    # `import torch.nn` imports torch too, and announces torch.nn alone.
    if event in STARTS or (event == "import" and arguments[0].partition(".")[0] == "torch"):
        # No subclass of Exception, so that nothing on the way takes it for a failure of the product.
        pytest.skip(f"not pure: {event} {arguments[0] if event == 'import' else ''}", allow_module_level=True)


sys.addaudithook(_skip)

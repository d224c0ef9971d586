"""A script as a function, so that its tensors can be counted: a workload `command` has no counter of them on a CPU."""

import runpy
import sys


def run(path: str, arguments: tuple[str, ...] = ()) -> None:
    """Run the script at `path` as `python path arguments` does, in this process."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")

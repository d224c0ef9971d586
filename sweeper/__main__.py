"""`python -m sweeper`: the same as the console script `sweeper`."""

import os
import sys


def search_current_folder_last() -> None:
    """`python -m` searches the current folder first, where a user's yaml.py or random.py hides what we import.

    It stays on the path, since it may be the checkout that this package is run from.
    """
    if sys.path and sys.path[0] in ("", _current_folder()) and not getattr(sys.flags, "safe_path", False):
        sys.path.append(sys.path.pop(0))


def _current_folder() -> "str | None":
    """None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def pass_on_flags() -> None:
    """Let `python -P` and `python -I` hold for the processes that import a user's module, which are started without."""
    if getattr(sys.flags, "safe_path", False):
        os.environ["PYTHONSAFEPATH"] = "1"
    if sys.flags.ignore_environment:
        for name in ("PYTHONPATH", "PYTHONHOME"):
            os.environ.pop(name, None)


def main() -> int:
    """The exit code of the command, or 2 with one line if this machine or interpreter cannot run it."""
    import contextlib

    from sweeper import limits

    why_not = limits.refusal()
    if _current_folder() is None:
        why_not = "the current folder was removed; change to another one"
    if why_not is None:
        from sweeper.installation import refusal

        why_not = refusal()
    if why_not is not None:
        with contextlib.suppress(OSError):  # `ulimit -f 0`, and stderr is a file
            os.write(2, f"sweeper: {why_not}\n".encode())
        return 2
    if limits.is_limited():
        limits.use_little_memory()
    from sweeper import cli

    return cli.main()


if __name__ == "__main__":
    search_current_folder_last()
    pass_on_flags()
    sys.exit(main())

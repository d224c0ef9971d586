"""`python -m sweeper`: the same as the console script `sweeper`."""

import os
import sys


def search_current_folder_last() -> None:
    """`python -m` searches the current folder first, where a user's yaml.py or random.py hides what we import.

    It stays on the path, since it may be the checkout that this package is run from.
    """
    if sys.path and sys.path[0] in ("", os.path.abspath(".")) and not getattr(sys.flags, "safe_path", False):
        sys.path.append(sys.path.pop(0))


def pass_on_flags() -> None:
    """Let `python -P` and `python -I` hold for the processes that import a user's module, which are started without."""
    if getattr(sys.flags, "safe_path", False):
        os.environ["PYTHONSAFEPATH"] = "1"
    if sys.flags.ignore_environment:
        for name in ("PYTHONPATH", "PYTHONHOME"):
            os.environ.pop(name, None)


if __name__ == "__main__":
    search_current_folder_last()
    pass_on_flags()
    from sweeper.installation import refusal

    why_not = refusal()
    if why_not:
        sys.stderr.write("sweeper: " + why_not + "\n")
        sys.exit(2)
    from sweeper.cli import main

    sys.exit(main())

"""`python -m sweeper`: the same as the console script `sweeper`."""

import sys

from sweeper.installation import refusal

if __name__ == "__main__":
    why_not = refusal()
    if why_not:
        sys.stderr.write("sweeper: " + why_not + "\n")
        sys.exit(2)
    from sweeper.cli import main

    sys.exit(main())

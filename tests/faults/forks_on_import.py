"""A workload whose import forks, and whose child goes on importing and returns."""

import os

child = os.fork()
if child:
    os.waitpid(child, 0)


def run(*, phase, **_):
    with phase("work"):
        pass
    return {"forked": child > 0}

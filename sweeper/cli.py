"""The command line: which command was asked, and every mistake as one line. No logic.

A command is a bare first word; every override has an `=`. Each command imports what it needs, so that `environment` and
`frontier` wait for neither Hydra nor pandas.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sweeper.errors import Mistake

if TYPE_CHECKING:
    from sweeper.plan import Plan

Arguments = Sequence[str]


def main() -> int:
    """The exit code: a command's own, 2 for a mistake in what was typed, 130 Ctrl-C, 141 where nobody reads on."""
    _open_what_is_closed()
    try:
        code = _ended(lambda: run(sys.argv[1:]))
        sys.stdout.flush()
        return code
    except Mistake as mistake:
        say(str(mistake))
        return 2
    except BrokenPipeError:  # `| head`: nobody reads on, also not what Python flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"the output cannot be written: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        return 130


def _open_what_is_closed() -> None:
    """Standard streams that the shell closed (`>&-`) become /dev/null, before a file of ours gets their number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(number, mode, closefd=False)  # noqa: SIM115 (for as long as the process lives)
        for stream, number, mode in ((sys.stdin, 0, "r"), (sys.stdout, 1, "w"), (sys.stderr, 2, "w"))
    )


def _ended(command: Callable[[], int]) -> int:
    """Hydra ends a command that shows something with SystemExit."""
    try:
        return command()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise Mistake(ended.code) from None
        return ended.code or 0


def say(message: str) -> None:
    print("sweeper:", " ".join(message.split()), file=sys.stderr)


def run(arguments: Arguments) -> int:
    if arguments and not _is_override(arguments[0]):
        command = COMMANDS.get(arguments[0])
        if command is None:
            from sweeper.errors import did_you_mean

            meant = did_you_mean(arguments[0], COMMANDS) or f"; there are {', '.join(COMMANDS)}"
            raise Mistake(f"no such command: {arguments[0]}{meant}; --help shows more")
        return command(arguments[1:])
    return sweep(arguments)


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith(("-", "+", "~"))


def sweep(arguments: Arguments) -> int:
    plan = _plan(arguments)
    if plan is None:
        return 0
    from sweeper.sweeping.sweep import sweep

    return sweep(plan)


def estimate(arguments: Arguments) -> int:
    from sweeper.views import card_check_report

    as_json = "--json" in arguments
    arguments = [argument for argument in arguments if argument != "--json"]
    if card_check_report.is_asked(arguments):
        return card_check_report.main(arguments, as_json)
    from sweeper.views import estimate_report

    if estimate_report.is_run(arguments):
        return estimate_report.of_run(arguments, as_json)
    plan = _plan(arguments)
    return 0 if plan is None else estimate_report.main(plan, as_json)


def _plan(arguments: Arguments) -> Plan | None:
    """What is asked for, or None where something was only to be shown, and was."""
    from sweeper.planning.probes import Probes

    with Probes() as probes:
        probes.foresee(arguments)  # before the import of Hydra: it answers meanwhile
        from sweeper.planning.command_line import read, show
        from sweeper.planning.planner import plan_of

        line = read(arguments)
        if not line.shows:
            return plan_of(line, probes, say)
        show(line)
    return None


def environment(arguments: Arguments) -> int:
    from sweeper.views import environment

    return environment.main(arguments)


def effects(arguments: Arguments) -> int:
    from sweeper.views import effects_report

    return effects_report.main(arguments)


def frontier(arguments: Arguments) -> int:
    from sweeper.views import decision_sheet

    return decision_sheet.main(arguments)


COMMANDS: dict[str, Callable[[Arguments], int]] = {
    "effects": effects,
    "environment": environment,
    "estimate": estimate,
    "frontier": frontier,
}

"""The command line: runs the command that was typed, prints its result, and prints every mistake as one line.

Each command imports what it needs, so that `environment` and `frontier` wait for neither Hydra nor pandas.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runners import files
from sweeper import screen
from sweeper.errors import Mistake
from sweeper.planning.command_line import (
    CommandLine,
    names_run,
    outputs_of,
    python_of,
    read,
    run_and_point_of,
    run_of,
    two_runs_of,
    written_form,
)
from sweeper.sweeping.signals import end_on_signals

if TYPE_CHECKING:
    from sweeper.plan import Plan

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # for what is printed; EIO: the terminal was closed

Found = TypeVar("Found")


def main() -> int:
    """The exit code: the command's own, 2 for a mistake in what was typed, 128 + N for signal N."""
    _open_closed_streams()
    try:
        code = _exit_code(lambda: run(sys.argv[1:]))
        sys.stdout.flush()
        return code
    except Mistake as mistake:
        screen.warn(str(mistake))
        return 2
    except BrokenPipeError:  # `| head`. What Python flushes at its end has no reader either.
        screen.discard(sys.stdout)
        return 141
    except PermissionError as error:
        if error.filename is None:
            raise
        screen.warn(f"{error.filename}: {files.why(error)}")
        return 2
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and error.filename is not None:  # a typed word that may be a file
            screen.warn(f"{error.filename}: {error.strerror}")
            return 2
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        screen.discard(sys.stdout)
        screen.warn(f"the output cannot be written: {error.strerror}")
        return 2
    except UnicodeEncodeError as error:  # of a path: what is printed is escaped
        letters = error.object[error.start : error.end]
        screen.warn(f"{letters!r} cannot be written in this locale's encoding, {error.encoding}; set LC_ALL=C.UTF-8")
        return 2
    except KeyboardInterrupt:
        return 130


def _open_closed_streams() -> None:
    """Standard streams that the shell closed (`>&-`) become /dev/null, before an opened file gets their number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(number, mode, closefd=False)  # noqa: SIM115 (for as long as the process lives)
        for stream, number, mode in ((sys.stdin, 0, "r"), (sys.stdout, 1, "w"), (sys.stderr, 2, "w"))
    )
    for output in (sys.stdout, sys.stderr):  # a letter that the locale's encoding lacks ends no command
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def _exit_code(command: Callable[[], int]) -> int:
    """Hydra and argparse end a command that only shows something with SystemExit."""
    try:
        return command()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise Mistake(ended.code) from None
        return ended.code or 0


def run(arguments: Sequence[str]) -> int:
    """The exit code. Raises Mistake."""
    line = read(arguments)
    if getattr(line.flags, "help", False):
        return show_help(line)
    if line.shows:
        from sweeper.planning.example import with_example
        from sweeper.planning.hydra_flags import show

        show(with_example(line)[0] if line.flags.cfg else line)
        return 0
    with end_on_signals():
        return COMMANDS[line.command](line)


def show_help(line: CommandLine) -> int:
    """Of the groups that the words after --help name, else of the command: `sweeper --help model`.

    Loads nothing of Hydra. Raises Mistake for a word that names none.
    """
    from sweeper.cards import CONF
    from sweeper.views import help

    folders = [CONF, *([Path(line.flags.config_dir)] if line.flags.config_dir else [])]
    named = [group for word in line.words if "=" not in word for group in help.groups_of(word, folders)]
    groups = [help.options(group, folders) for group in dict.fromkeys(named)]
    screen.show("\n\n".join(groups) or (help.ESTIMATE if line.command == "estimate" else help.HELP))
    return 0


def sweep(line: CommandLine) -> int:
    from sweeper.sweeping.expected import engine_for

    notes: list[str] = []  # printed when the sweep starts: before a refusal they would say nothing
    with engine_for(line.words) as started:  # as the probes, before the import of Hydra
        plan = _plan(line, notes.append)
        from sweeper.sweeping.sweep import sweep
        from sweeper.views.sweep_output import JSON, QUIET, show_for

        output = JSON if line.flags.json else QUIET if line.flags.quiet else None
        return sweep(plan, screen.warn, started, partial(show_for, output=output), notes)


def fit(line: CommandLine) -> int:
    from sweeper.sweeping.fit_run import run_fit
    from sweeper.views import fit_show

    shown_as = fit_show.form(line.flags)
    return run_fit(line, screen.warn, partial(fit_show.show_for, shown_as=shown_as))


def _folders(line: CommandLine) -> list[Path]:
    """The folders with options."""
    from sweeper.cards import CONF

    return [CONF, *([Path(line.flags.config_dir)] if line.flags.config_dir else [])]


def estimate(line: CommandLine) -> int:
    from sweeper.planning.card_request import is_card_request, parse_card_request

    if is_card_request(line.words):
        from sweeper.views import card_check_report

        report = card_check_report.card_report(parse_card_request(line.words))
        return _show(line, report, card_check_report.as_text, card_check_report.as_json)
    if names_run(line):
        from sweeper.tables import loading
        from sweeper.views import comparison_report
        from sweeper.views.layout import wrapped_text

        folder = _run(line)
        comparison = comparison_report.run_comparison(folder.name, loading.read(folder))
        as_text = lambda found: wrapped_text(comparison_report.as_text(found), screen.width())  # noqa: E731
        return _show(line, comparison, as_text, comparison_report.as_json)
    notes: list[str] = []
    plan = _plan(line, notes.append)
    for note in notes:
        screen.warn(note)
    from sweeper.views import estimate_report

    return _show(line, estimate_report.plan_estimate(plan), estimate_report.as_text, estimate_report.as_json)


def _plan(line: CommandLine, report: Callable[[str], None]) -> Plan:
    from sweeper.planning.probes import Probes

    with Probes() as probes:
        probes.foresee(line.words)  # before the import of Hydra, which takes as long as the probe
        from sweeper.planning.example import with_example
        from sweeper.planning.planner import plan_of

        line, remark = with_example(line)
        plan = plan_of(line, probes, report)
        if remark is not None:
            report(remark)
        return plan


def effects(line: CommandLine) -> int:
    from sweeper.effects.families import families
    from sweeper.plan_lines import read_plan
    from sweeper.tables import loading
    from sweeper.views import effects_report, pictures
    from sweeper.views.layout import wrapped_text

    picture, at = line.flags.picture, line.flags.at
    if picture is not None:
        pictures.check(picture)
    folder = _run(line)
    points, phases = effects_report.rows_of(loading.read(folder))
    found = effects_report.effects(points, phases, at, read_plan(folder))
    _show(line, found, lambda found: wrapped_text(effects_report.as_text(found, screen.width()), screen.width()))
    if picture is not None and found["families"]:
        pictures.draw_effects(families(points, phases), picture, at)
    return 0


def environment(line: CommandLine) -> int:
    from sweeper.interpreter import interpreter
    from sweeper.planning.probes import Probes
    from sweeper.views import environment

    with Probes() as probes:
        found = environment.environment(probes.devices(interpreter(python_of(line))))
    return _show(line, found, lambda found: environment.as_text(found, screen.width()))


def frontier(line: CommandLine) -> int:
    from sweeper.tables import loading
    from sweeper.views import decision_sheet, decision_text

    folder = _run(line)
    sheet = decision_sheet.decision_sheet(folder, loading.read(folder))
    return _show(line, sheet, lambda sheet: decision_text.as_text(sheet, screen.width()))


def list_runs(line: CommandLine) -> int:
    from sweeper.tables import overview
    from sweeper.views import run_list

    outputs = outputs_of(line)
    found = overview.runs_in(outputs)
    return _show(line, found, lambda runs: run_list.as_text(runs, outputs, screen.width()), run_list.as_json)


def report(line: CommandLine) -> int:
    from sweeper.tables import loading
    from sweeper.views.page import report

    flags = line.flags
    report.check(flags.output, flags.pictures)
    folder = _run(line)
    written = report.write_report(folder, loading.read(folder), flags.output, flags.pictures, flags.axes, flags.tariffs)
    return _show(line, written, report.as_text, report.as_json)


def show_run(line: CommandLine) -> int:
    from sweeper.tables import loading
    from sweeper.views import point_sheet, point_table

    form = written_form(line)
    named, id = run_and_point_of(line)
    folder = _newest(line) if named is None else loading.run_folder(named)
    tables = loading.read(folder)
    if id is not None:
        if form not in (None, "json"):
            raise Mistake(f"show RUN POINT_ID prints text or --json; --{form} is for the table of points")
        sheet = point_sheet.point_sheet(
            folder, tables, point_table.named_by(tables["points"]["point_id"].to_pylist(), id)
        )
        return _show(line, sheet, lambda sheet: point_sheet.as_text(sheet, screen.width()))
    found = point_table.point_table(folder, tables, line.flags.columns, line.flags.sort)
    other = {"csv": point_table.csv_of, "markdown": point_table.markdown_of}.get(form or "")
    return _show(line, found, other or (lambda found: point_table.as_text(found, screen.width())), point_table.as_json)


def compare(line: CommandLine) -> int:
    from sweeper.tables import loading
    from sweeper.views import run_changes

    form = written_form(line)
    first, second = (loading.run_folder(run) for run in two_runs_of(line))
    if len(line.words) == 2 and first.samefile(second):
        raise Mistake(
            f"compare {' '.join(line.words)}: both are the same folder; name two runs, BEFORE and AFTER, or one run to"
            " compare its calculated points with its measured ones"
        )
    tables = (loading.read(first), loading.read(second))
    compared = run_changes.comparison((first, second), tables, line.flags.fail_above, line.flags.counter)
    other = {"csv": run_changes.csv_of, "markdown": run_changes.markdown_of}.get(form or "")
    as_text = other or (lambda compared: run_changes.as_text(compared, screen.width()))
    _show(line, compared, as_text, run_changes.as_json)
    return compared.exit_code


def _run(line: CommandLine) -> Path:
    """The folder of the run that the line names, or of the newest one. Raises Mistake."""
    from sweeper.tables import loading

    named = run_of(line)
    return _newest(line) if named is None else loading.run_folder(named)


def _newest(line: CommandLine) -> Path:
    from sweeper.tables import loading

    folder = loading.newest_run()
    screen.warn(f"{line.command}: {folder}, the newest run")
    return folder


def _show(
    line: CommandLine,
    found: Found,
    as_text: Callable[[Found], str],
    as_json: Callable[[Found], Any] = lambda found: found,
) -> int:
    """Print a result as text, or with --json as JSON, which has every text as it is, as CSV has."""
    if line.flags.json:
        text = json.dumps(as_json(found), indent=2)
    else:
        text = as_text(found if getattr(line.flags, "csv", False) else screen.in_lines(found))
    screen.show(text)
    return 0


COMMANDS: dict[str, Callable[[CommandLine], int]] = {
    "sweep": sweep,
    "fit": fit,
    "estimate": estimate,
    "effects": effects,
    "environment": environment,
    "frontier": frontier,
    "list": list_runs,
    "report": report,
    "show": show_run,
    "compare": compare,
}

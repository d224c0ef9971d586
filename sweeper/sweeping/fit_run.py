"""Runs a line of `sweeper fit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from sweeper.cards import CONF
from sweeper.plan import Plan
from sweeper.planning.command_line import CommandLine
from sweeper.planning.fit_request import options_with, read_request
from sweeper.planning.probes import Probes
from sweeper.sweeping.conditions import calculated_lanes
from sweeper.sweeping.expected import engine_for
from sweeper.views.progress import Show

ShowFor = Callable[[Plan, Path], AbstractContextManager[Show]]


def run_fit(line: CommandLine, report: Callable[[str], None], show_for: ShowFor) -> int:
    """The exit code of a sweep. Raises Mistake. `report` is called with messages for the user."""
    folders = [CONF, *([Path(line.flags.config_dir)] if line.flags.config_dir else [])]
    request = read_request(line.words, folders)
    with (
        options_with(request.own_file, line.flags.config_dir) as options,
        engine_for(request.overrides, calculated_lanes()) as started,
        Probes() as probes,
    ):
        flags = argparse.Namespace(**{**vars(line.flags), "config_dir": options})
        sweep_line = replace(line, words=request.overrides, flags=flags)
        probes.foresee(sweep_line.words)  # before the import of Hydra, as the engine's processes
        from sweeper.planning.planner import plan_of

        notes: list[str] = []
        plan = plan_of(sweep_line, probes, notes.append, request)
        from sweeper.sweeping.sweep import sweep

        return sweep(plan, report, started, show_for, notes)

"""The experiment of a sweep that names nothing to measure: small enough for any machine, with a limit that it reaches.

Its values are those of conf/experiment/example.yaml and of no other sweep. What is typed overrides them.
"""

from __future__ import annotations

import re
from dataclasses import replace

import yaml  # type: ignore[import-untyped]

from sweeper.cards import CONF
from sweeper.plan import dotted, typed
from sweeper.planning.command_line import CommandLine

EXAMPLE = "example"
# With one of these, the user has something of their own to measure, or chooses what to measure on.
NAMED = ("model", "workload", "inputs", "devices", "experiment", "env", "grid", "points")


def with_example(line: CommandLine) -> tuple[CommandLine, str | None]:
    """The line with experiment=example and a message about what that sets, if it names nothing to measure."""
    keys = [re.split("[=@]", word.lstrip("+~"))[0] for word in line.overrides]
    if line.flags.config_dir or set(NAMED) & {key.partition(".")[0] for key in keys}:
        return line, None
    values = dotted(yaml.safe_load((CONF / "experiment" / f"{EXAMPLE}.yaml").read_bytes()))
    settings = " ".join(f"{key}={typed(value)}" for key, value in values if key not in keys)
    why = f"experiment={EXAMPLE}, since no model, workload or device is named: {settings}"
    return replace(line, words=(*line.words, f"experiment={EXAMPLE}")), f"{why}; experiment=null leaves it out"

"""What `--help` prints: for the whole program, for `estimate`, and for the options of a group."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import fields
from itertools import takewhile
from pathlib import Path

from sweeper.errors import Mistake, did_you_mean
from sweeper.planning.schema import Keys

GROUPS = ("model", "card", "workload", "inputs", "design", "experiment")
KEYS = tuple(each.name for each in fields(Keys))  # which the help of the program describes
WIDTH = 80
CARDS = "Cards, as in devices=sim:NAME, budget=card:NAME and estimate card=NAME"

HELP = """\
Does this PyTorch workload fit on that device, and what is the largest that
does? Each configuration is measured in a new process.

  sweeper fit MODEL CARD         what of a model fits on a card, calculated
  sweeper KEY=VALUE,VALUE ...    measure every combination
  sweeper estimate KEY=VALUE ... show the plan and its arithmetic, run nothing
  sweeper estimate RUN           each point: estimated, calculated and measured
  sweeper estimate parameters=7e9 bits=16 card=rtx-4090
                                 what a card has room for
  sweeper frontier RUN           the largest that fit, and the decision sheet
  sweeper show RUN [POINT_ID]    the table of points, or one point's phases
  sweeper compare BEFORE AFTER   what changed; --fail-above 2% is a gate for CI
  sweeper list                   the runs in outputs, newest first
  sweeper effects RUN            what each key costs, and what to change first
  sweeper report RUN             one page to show, opened in a browser
  sweeper environment            what can be measured here, what cannot, and why

RUN is the folder of a sweep, as in outputs/mine. COMMAND --help has its flags.
--json is for programs (of a sweep: each event); --quiet prints only the end.

Several values make a key a dimension of the sweep:
  batch=1,2,4  'seed=range(0,3)'  'model=glob(tiny-*)'  'devices=[cuda:0,cpu]'
  design=frontier 'batch=interval(1,512)'    search for the largest that fits

Options, by group. `sweeper --help GROUP` describes those of a group.
  model=tiny-llama       or mlp, gpt2, smollm2-135m, llama-3.1-8b, ... (48):
                         sweeper --help model
  workload=forward       or train, generate, custom, command
  inputs=synthetic       or text, images, usual, long, limit
  design=grid            or axes, list, frontier, levers
  experiment=NAME        keys in a file: example, small_training, training_bill,
                         three_inputs, training_levers, generation_levers
  devices=auto           one idle GPU, or else the CPU; or cpu, cuda:0, all,
                         cuda:0+cuda:1; sim:rtx-4090 and sim:all are calculated:
                         sweeper --help card

Keys of a point, each of which can have several values
  batch=1  context=512  seed=0  warmup=1  repeats=2      sizes and repetition
  dtype=float32  attention=null  quantize=none           how it is computed
  model.KEY  workload.KEY  inputs.KEY                    see --cfg job
  budget=24GiB|card:NAME  used_by_others=1GiB  timeout=SECONDS    limits
  start=cold|warm  allocator=system|repeatable  phases=each|whole
  cache=keep|empty  tensors=true|false  env.VARIABLE=VALUE
  quality.target=module:function                         your own metric

Keys of the run
  name=NAME  outputs=FOLDER  python=INTERPRETER  resume=same|anew
  retry=STATUS,...|all  repeat_points=1  stop_after_same_error=K
  parallel=true|false  heartbeat=SECONDS  trace=never|on_failure
  design=frontier: objective=tokens|KEY|batch^2*context  resolution.KEY=STEP
    edge=all|largest  confirm=edge|all|none|audit:K  margin.NAME=SIZE

Your own code   workload=custom workload.target=module:function
  workload=command 'workload.argv=[python,train.py,--bs,"{batch}"]'
Your own files  -cd FOLDER adds the options in FOLDER/model, FOLDER/card, ...

--cfg job       the configuration of a command line, with every key
--info          where it is composed from: --info defaults|searchpath|plugins
--version       the version of sweeper
-sc install=bash|zsh|fish    print the code that completes `sweeper <TAB>`"""

ESTIMATE = """\
usage: sweeper estimate KEY=VALUE,... [--json]
       sweeper estimate RUN [--json]
       sweeper estimate parameters=N bits=B [card=CARD] [rank=R]
                        [reserve_gib=G] [--json]

With the keys of a sweep: its plan, and the arithmetic of its memory. Nothing
runs. `sweeper --help` lists the keys.

With RUN, the folder of a sweep as in outputs/mine: each of its points as
estimated, calculated and measured, and the differences.

With parameters=: whether a card has room to run and to train such a model.
  parameters=7e9    number of parameters
  bits=16           of each stored parameter: 4, 8, 16 or 32
  card=rtx-4090     a card of `sweeper --help card`
  rank=8            of LoRA's matrices
  reserve_gib=4     GiB that are kept for everything else

  --json            print JSON, for programs
  -cd FOLDER        add the options in FOLDER/model, FOLDER/card, ..."""


def groups_of(word: str, folders: Iterable[Path]) -> list[str]:
    """The groups that a word names: a group, its plural, or one of its options. None for a key. Raises Mistake."""
    name = word.lower()
    for group in GROUPS:
        if name in (group, f"{group}s"):
            return [group]
    options = {group: {file.stem for folder in folders for file in (folder / group).glob("*.yaml")} for group in GROUPS}
    found = [group for group, names in options.items() if name in names]
    if not found and name not in KEYS:
        near = did_you_mean(name, [*GROUPS, *(each for names in options.values() for each in names)])
        raise Mistake(f"--help {word}: no group or option of this name{near}; the groups are {', '.join(GROUPS)}")
    return found


def options(group: str, folders: Iterable[Path]) -> str:
    """The options of a group in these folders, each with the beginning of its file's comment, within 80 columns."""
    files = {file.stem: file for folder in folders for file in sorted((folder / group).glob("*.yaml"))}
    key = "" if group == "card" else f"{group}="
    width = max((len(key + name) for name in files), default=0)
    heading = [f"{CARDS}\n"] if group == "card" else []
    rows = (
        textwrap.fill(
            _comment(file),
            WIDTH,
            initial_indent=f"{key + name:<{width}}  ",
            subsequent_indent=" " * (width + 2),
            break_on_hyphens=False,
        ).rstrip()
        or key + name
        for name, file in sorted(files.items())
    )
    return "\n".join([*heading, *rows])


def _comment(file: Path) -> str:
    """The comment at the beginning of a file, up to its first colon or full stop."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(errors="replace").splitlines())
    text = " ".join(line.lstrip("# ") for line in lines if not line.startswith("# @package"))
    return re.split(r"[.:](?=\s|$)", text, maxsplit=1)[0]

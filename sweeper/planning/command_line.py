"""The command line: one parser with a subcommand for each command. Imports neither Hydra nor pandas.

`sweep` is the default command: a first word that is an override or a flag belongs to it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from sweeper.cards import CONF
from sweeper.errors import Mistake
from sweeper.planning import hydra_keys
from sweeper.planning.suggestions import instead_of_listing, no_such_command, no_such_flag, words_apart

# Flags that show something and run nothing.
SHOWS = ("version", "hydra_help", "cfg", "info", "shell_completion")  # and help
INFOS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
REFUSED = ("--run", "-r", "--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun")
FORMS = ("json", "csv", "markdown")
POINT_ID = "[0-9a-fA-F]{4,16}"
SIZES = ("batch", "context")  # the keys of --at
READ_RUNS = ("estimate", "effects", "frontier", "report", "show", "compare")
ALONE = ("--multirun", "-m", "--json", "--quiet", "--csv", "--markdown", "--resolve")  # flags without a value
OF_REPORT = ("--output", "--axes", "--tariffs", "--pictures")
WITH_VALUE = (  # in the next word
    *("--config-dir", "-cd", "--cfg", "-c", "--package", "-p"),
    *("--at", "--picture", *OF_REPORT, "--sort", "--columns"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command with its flags and its other words, in the order typed.

    `arguments`: all that follows the command, for the record of a sweep; with the command itself if that is `fit`.
    """

    command: str
    flags: argparse.Namespace
    words: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def shows(self) -> bool:
        """Whether a flag only shows something, so that nothing is planned or read."""
        return any(getattr(self.flags, name, None) for name in SHOWS)

    @property
    def of_hydra(self) -> tuple[str, ...]:
        """The overrides of Hydra's own keys."""
        return tuple(word for word in self.words if _is_of_hydra(word))

    @property
    def overrides(self) -> tuple[str, ...]:
        """All other overrides."""
        return tuple(word for word in self.words if not _is_of_hydra(word))


def read(arguments: Sequence[str]) -> CommandLine:
    """Raises Mistake for an unknown command or flag, and for a flag without its value."""
    parser, commands = _parsers()
    command, rest = _split(arguments, list(commands))
    _refuse_files(command, rest)
    if command == "sweep" and "--json" in rest and "--quiet" in rest:
        raise Mistake("--quiet --json: --quiet prints the end of a sweep alone, --json every event; keep one")
    _check_flags(rest, commands[command], takes_keys=command in ("sweep", "estimate", "fit"))
    if command in ("sweep", "estimate"):
        _check_words(command, rest)
    flags, extra = parser.parse_known_args([command, *rest])
    unknown = [word for word in extra if word.startswith("-")]
    if unknown:
        commands[command].error(f"no such flag: {', '.join(unknown)}")
    # argparse puts only the first positionals into `words`; those after a flag are left over.
    typed = (command, *rest) if command == "fit" else tuple(rest)
    line = CommandLine(command=command, flags=flags, words=(*flags.words, *extra), arguments=typed)
    if command in ("sweep", "estimate"):
        _check_hydra_flags(line)
    return line


def command_names() -> tuple[str, ...]:
    return tuple(_parsers()[1])


def run_of(line: CommandLine) -> str | None:
    """The one word of a command that reads a run; None without a word. Raises Mistake."""
    if not line.words:
        return None
    given = " ".join(line.words)
    if line.command != "estimate" and all("=" in word and not Path(word).exists() for word in line.words):
        searches = "design=frontier " if line.command == "frontier" else ""
        raise Mistake(f"{line.command} {given}: takes a run, the folder of a sweep; write sweeper {searches}{given}")
    if len(line.words) != 1:
        keys_or = "keys or " if line.command == "estimate" else ""
        raise Mistake(f"{line.command} takes {keys_or}one run, the folder of a sweep, got {given}")
    return line.words[0]


def python_of(line: CommandLine) -> str | None:
    """The value of `python=INTERPRETER`, the one key that `environment` takes. Raises Mistake."""
    python = None
    for word in line.words:
        key, _, value = word.partition("=")
        if key != "python" or not value:
            raise Mistake(f"environment takes python=INTERPRETER and --json, not {word!r}")
        python = value
    return python


def run_and_point_of(line: CommandLine) -> tuple[str | None, str | None]:
    """The run and the beginning of a point's id that `show` takes; None for each that was left out. Raises Mistake."""
    words = line.words
    if len(words) == 1 and re.fullmatch(POINT_ID, words[0]) and not Path(words[0]).exists():
        return None, words[0]
    if len(words) == 2 and not re.fullmatch(POINT_ID, words[1]):
        raise Mistake(f"show takes RUN and POINT_ID, and {words[1]!r} is no id of a point: 4 to 16 hexadecimal digits")
    if len(words) > 2:
        raise Mistake(f"show takes RUN and POINT_ID, got {' '.join(words)}")
    return run_of(replace(line, words=words[:1])), words[1] if words[1:] else None


def two_runs_of(line: CommandLine) -> tuple[str, str]:
    """The runs that `compare` takes. One alone is compared with itself: its calculated rows with its measured ones.

    Raises Mistake.
    """
    if len(line.words) not in (1, 2):
        given = " ".join(line.words) or "none"
        raise Mistake(f"compare takes two runs, the folders of sweeps, got {given}; write sweeper compare BEFORE AFTER")
    return line.words[0], line.words[-1]


def written_form(line: CommandLine) -> str | None:
    """The form in which a table is printed for other programs: json, csv or markdown. Raises Mistake for several."""
    given = [form for form in FORMS if getattr(line.flags, form, False)]
    if len(given) > 1:
        raise Mistake(f"{' '.join(f'--{form}' for form in given)}: choose one of them")
    return given[0] if given else None


def outputs_of(line: CommandLine) -> str:
    """The value of `outputs=FOLDER`, the one key that `list` takes. A bare folder means the same. Raises Mistake."""
    folder = "outputs"
    for word in line.words:
        key, _, value = word.partition("=")
        if key == "outputs" and value:
            folder = value
        elif Path(word).is_dir():
            folder = word
        else:
            instead = instead_of_listing(word)
            hint = f"; {instead}" if instead else ""
            raise Mistake(f"list takes outputs=FOLDER and --json, not {word!r}{hint}")
    return folder


def names_run(line: CommandLine) -> bool:
    """Whether `estimate` was given the folder of a run instead of overrides."""
    return any(not _is_override(word) for word in line.words)


def _split(arguments: Sequence[str], commands: Sequence[str]) -> tuple[str, list[str]]:
    """The command and all other words. It may stand after flags and overrides."""
    at = _first_word(arguments)
    if at is not None and arguments[at] in commands:
        return arguments[at], [*arguments[:at], *arguments[at + 1 :]]
    if at == 0:
        _refuse_files("sweep", arguments)
        raise Mistake(no_such_command(arguments[0], arguments[1:], commands))
    return "sweep", list(arguments)


def _refuse_files(command: str, words: Sequence[str]) -> None:
    """Raises Mistake for an experiment's file in place of a word, and for a run that is given like a key."""
    for at, word in enumerate(words):
        if command in READ_RUNS and re.fullmatch("run=.+", word):
            raise Mistake(f"{word}: no such key; write sweeper {command} {word.removeprefix('run=')}")
        is_value = at > 0 and words[at - 1].startswith("-")
        if command in ("sweep", "estimate") and not is_value and re.fullmatch(r"[^=]+\.ya?ml", word):
            path = Path(word)
            folder = path.parent.parent if path.parent.name == "experiment" else None
            sweeper = "sweeper" if command == "sweep" else f"sweeper {command}"
            where = "" if folder else f", with the file as FOLDER/experiment/{path.stem}.yaml"
            raise Mistake(
                f"{word}: no key=value; write {sweeper} -cd {folder or 'FOLDER'} experiment={path.stem}{where}"
            )


def _first_word(arguments: Sequence[str]) -> int | None:
    """The place of the first word that is neither an override nor a flag nor a flag's value."""
    before = ""
    for at, word in enumerate(arguments):
        is_value = before in WITH_VALUE or (before in ("--info", "-i") and word in INFOS)
        if not is_value and not _is_override(word):
            return at
        before = "" if is_value else word
    return None


def _check_flags(words: Sequence[str], parser: _Parser, takes_keys: bool) -> None:
    """Raises Mistake for a flag that is none, if it is like a key or a flag. argparse reports all others."""
    for at, word in enumerate(words):
        found = re.fullmatch(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?", word, re.DOTALL)
        if found is None or found[1] in parser.flags:
            continue
        following = words[at + 1 : at + 2]
        is_value = following and re.match(r"-|[^=]+=", following[0]) is None
        value = found[2] if found[2] is not None else following[0] if is_value else None
        if message := no_such_flag(found[1], value, parser.shown_flags, takes_keys):
            raise Mistake(message)


def _check_words(command: str, words: Sequence[str]) -> None:
    """Raises Mistake for a word that is neither an override nor a flag or its value, if it is clear what it means."""
    is_run = command == "estimate" and (len(words) == 1 or any(Path(word).is_dir() for word in words))
    for at, word in enumerate(words):
        before = words[at - 1] if at > 0 else ""
        of_flag = before.startswith("-") and "=" not in before and before not in ALONE
        is_override = _is_override(word) and not (at > 0 and word.startswith("="))
        if is_override or of_flag or (is_run and Path(word).is_dir()):
            continue
        if message := words_apart(words, at, command):
            raise Mistake(message)
        return


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith(("-", "+", "~"))


def _is_of_hydra(word: str) -> bool:
    return re.match(r"[+~]*hydra[./=@]", word) is not None


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as one line with the command's usage."""

    @property
    def flags(self) -> Sequence[str]:
        return tuple(self._option_string_actions)

    @property
    def shown_flags(self) -> Sequence[str]:
        """Those that have an effect."""
        return tuple(flag for flag, each in self._option_string_actions.items() if each.help != argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message}; usage: {self.usage}")


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, _Parser]]:
    """The parser, and the parser of each command by its name."""
    whole = _Parser(prog="sweeper", add_help=False, allow_abbrev=False)
    commands = whole.add_subparsers(dest="command")

    def add(name: str, usage: str, about: str | None = None) -> _Parser:
        """Without `about` the command has Hydra's flags, and its help is in sweeper/views/help.py."""
        parser: _Parser = commands.add_parser(
            name, usage=usage, description=about, add_help=about is not None, allow_abbrev=False
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        if about is not None:
            parser.add_argument("--version", action="store_true", help=argparse.SUPPRESS)
        # Every command takes them, so that the words of a sweep can be typed again after another command.
        ignored = argparse.SUPPRESS if about is not None else None
        parser.add_argument("--multirun", "-m", action="store_true", help=ignored)
        parser.add_argument("--config-dir", "-cd", action=_Once, type=_folder, help=ignored)
        return parser

    sweep = add("sweep", "sweeper KEY=VALUE,...; --help lists the keys")
    sweep.add_argument("--quiet", action="store_true")
    for parser in (
        sweep,
        add("estimate", "sweeper estimate KEY=VALUE,... [--json]; --help lists the keys"),
    ):
        parser.add_argument("words", nargs="*")
        _add_hydra_flags(parser)
    fit = add(
        "fit",
        "sweeper fit MODEL CARD [KEY=VALUE ...] [--csv|--markdown|--json]",
        "Whether a model fits on a card: to run, with LoRA and QLoRA, and to train, by context. Calculated.",
    )
    fit.add_argument("--markdown", action="store_true", help="print a Markdown table, to paste into an issue")
    fit.add_argument("--csv", action="store_true", help="print one line for each cell, sizes in bytes")
    fit.add_argument(
        "words",
        nargs="*",
        metavar="MODEL CARD",
        help="as in qwen2.5-7b rtx-4090, or model=qwen2.5-7b card=rtx-4090; context=2k,8k: the columns;"
        " used_by_others=1GiB: what a desktop takes; dtype=, name=, outputs= and other keys of a sweep",
    )
    effects = add(
        "effects",
        "sweeper effects [RUN] [--json] [--at SIZE] [--picture FILE]",
        "What each dimension of a sweep costs, which phase has the peak, and what to change first.",
    )
    effects.add_argument(
        "--at", type=_size, metavar="SIZE", help="calculate the peak of this size, as in --at batch=16,context=8192"
    )
    effects.add_argument(
        "--picture",
        type=_file_of("--picture peaks.png"),
        metavar="FILE",
        help="draw the peaks to a .png, .svg or .pdf (needs matplotlib)",
    )
    frontier = add(
        "frontier",
        "sweeper frontier [RUN] [--json]",
        "The largest configurations of a sweep that fit, and the decision sheet.",
    )
    report = add(
        "report",
        "sweeper report [RUN] [--output FILE] [--axes KEY,KEY] ... [--json]",
        "One page to show, in the run's folder: opens in any browser, from the file alone.",
    )
    report.add_argument("--output", type=_file_of("--output report.html"), metavar="FILE", help="write the page there")
    report.add_argument(
        "--axes",
        type=_keys,
        default=(),
        metavar="KEY,KEY",
        help="the dimensions of the frontier's matrices, downwards and across, as in --axes batch,context",
    )
    report.add_argument(
        "--tariffs", type=_file_of("--tariffs tariffs.yaml"), metavar="FILE", help="prices, for the cost of a package"
    )
    report.add_argument(
        "--pictures", type=_file_of("--pictures FOLDER"), metavar="FOLDER", help="also write each chart as SVG and PNG"
    )
    for parser in (effects, frontier, report):
        parser.add_argument(
            "words",
            nargs="*",
            metavar="RUN",
            help="the folder of a sweep, as in outputs/mine; the newest in outputs if left out",
        )
    runs = add(
        "list",
        "sweeper list [outputs=FOLDER] [--json]",
        "The runs in a folder, newest first: what they measured, when, and how they ended.",
    )
    runs.add_argument("words", nargs="*", metavar="outputs=FOLDER", help="the folder with the runs; default: outputs")
    show = add(
        "show",
        "sweeper show [RUN] [POINT_ID] [FLAGS]",
        "The points of a run as a table or as matrices, its failures, and everything about one point.",
    )
    show.add_argument(
        "words",
        nargs="*",
        metavar="RUN POINT_ID",
        help="the folder of a sweep, the newest in outputs if left out; the beginning of a point's id",
    )
    show.add_argument("--sort", metavar="COLUMN", help="by a column; from the largest down with --sort=-COLUMN")
    show.add_argument(
        "--columns", type=_names, metavar="A,B", help="columns of points.parquet, or command, output, failed_at"
    )
    compare = add(
        "compare",
        "sweeper compare A B [--fail-above CHANGE] [--counter NAMES] [FLAGS]",
        "What changed from one run to another, point by point: what no longer fits, which peaks differ, and what the"
        " measurements depended on. With one run: its calculated points against its measured ones.",
    )
    compare.add_argument("words", nargs="*", metavar="RUN", help="the folder of a sweep, as in outputs/mine")
    compare.add_argument(
        "--fail-above",
        metavar="CHANGE",
        help="as in --fail-above 2%% or --fail-above 50MiB: end with exit code 4 if a peak grew by more, or if a point"
        " that fitted no longer fits; with 3 if no peak was compared, or if a point that fitted has no counterpart or"
        " was not decided",
    )
    compare.add_argument(
        "--counter",
        metavar="NAMES",
        help="the counters whose peaks are judged, as in --counter reserved,allocated; by default allocated, or on cpu"
        " tensor",
    )
    for parser in (show, compare):
        parser.add_argument("--csv", action="store_true", help="print CSV, with whole bytes")
        parser.add_argument("--markdown", action="store_true", help="print Markdown, for an issue")
    environment = add(
        "environment",
        "sweeper environment [python=INTERPRETER] [--json]",
        "What can be measured on this machine, what cannot, and why.",
    )
    environment.add_argument(
        "words", nargs="*", metavar="python=INTERPRETER", help="the interpreter of the workload; default: this one"
    )
    return whole, commands.choices


def _size(text: str) -> dict[str, int]:
    """`batch=16,context=8192`"""
    found: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in SIZES or not (value.isascii() and value.isdigit()) or int(value) == 0:
            raise Mistake(f"--at {text}: {part!r} is not batch or context and a number, as in batch=16,context=8192")
        found[key] = int(value)
    return found


def _file_of(example: str) -> Callable[[str], str]:
    """The type of a flag that takes a path: any text but none."""
    flag, _, path = example.partition(" ")

    def check(text: str) -> str:
        if not text:
            raise Mistake(f"{flag} needs a {'folder' if path.isupper() else 'file'}, as in {example}")
        return text

    return check


def _keys(text: str) -> tuple[str, ...]:
    """`batch,context`"""
    found = tuple(word.strip() for word in text.split(","))
    if not all(found) or len(set(found)) != len(found) or len(found) > 2:
        raise Mistake(f"--axes {text}: takes one key or two different ones, as in --axes batch,context")
    return found


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise Mistake("--columns needs names, as in --columns batch,peak_bytes")
    return names


def _file(text: str) -> str:
    if not text:
        raise Mistake("--picture needs a file, as in --picture peaks.png")
    return text


def _folder(text: str) -> str:
    """A folder with options of the user's, in folders that are named like the groups."""
    if not text:
        raise Mistake("--config-dir needs a folder, as in -cd options")
    path = Path(text)
    if not path.is_dir():
        raise Mistake(f"--config-dir {text}: {'is a file; name its folder' if path.exists() else 'no such folder'}")
    groups = sorted(each.name for each in CONF.iterdir() if each.is_dir() and each.name != "hydra")
    if not any((path / group).is_dir() for group in groups):
        above = path.parent if path.name and path.parent.name else path.resolve().parent
        hint = f"; write -cd {above}" if path.resolve().name in groups else ""
        raise Mistake(f"--config-dir {text}: has none of the folders {', '.join(groups)}{hint}")
    return text


class _Once(argparse.Action):
    def __call__(self, parser: Any, flags: argparse.Namespace, value: Any, option: str | None = None) -> None:
        if getattr(flags, self.dest) not in (None, value):
            raise Mistake(f"{option} is given twice; add the other with 'hydra.searchpath=[FOLDER]'")
        setattr(flags, self.dest, value)


def _add_hydra_flags(parser: argparse.ArgumentParser) -> None:
    """Hydra's flags, without those that would bypass sweeper's configuration."""
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=INFOS)
    for refused in REFUSED:
        parser.add_argument(refused, nargs="?", const=True, dest=f"refused {refused}")


def _check_hydra_flags(line: CommandLine) -> None:
    flags = line.flags
    for name in REFUSED:
        if getattr(flags, f"refused {name}") is not None:
            raise Mistake(
                f"{name} is not supported: every command line is a sweep of sweeper's own configuration;"
                " -cd FOLDER adds options and experiments of yours"
            )
    if (flags.resolve or flags.package) and not (flags.cfg or flags.help):
        raise Mistake("--resolve and --package change how --cfg shows the configuration: add --cfg job")
    for override in line.of_hydra:
        why = hydra_keys.refusal(re.split("[=@]", override.lstrip("+~"))[0])
        if why is not None:
            raise Mistake(f"{override}: {why}")

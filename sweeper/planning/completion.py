"""`-sc`: the code with which a shell completes a command line, and the completions that this code asks for."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator

from sweeper.cards import ALL, CONF
from sweeper.errors import Mistake
from sweeper.planning.command_line import CommandLine, command_names
from sweeper.planning.hydra_sweeper import never, run_hydra
from sweeper.planning.schema import LIST_KEYS, WORKLOAD_RULES

SHELLS = ("bash", "zsh", "fish")
ACTIONS = ("install", "uninstall", "query")
EXPERIMENTS_ONLY = ("grid", "points")  # keys of experiment files
# What Hydra completes and a command line may not have: names and rules of options, and Hydra's own keys.
NOT_TYPED = re.compile(
    rf"(workload|model|inputs|design)\.name=|workload\.({'|'.join(WORKLOAD_RULES)})\b|design\.|hydra\b"
    rf"|({'|'.join(EXPERIMENTS_ONLY)})\b"
)
LISTS = (*LIST_KEYS, "workload.targets", "workload.argv")  # typed whole, as in retry=[oom]
CARD = "card="  # a group that only `estimate` takes
PROGRAM = r"\s*(?:\S*python\S*\s+-m\s+)?\S+"
OF_KEYS = ("sweep", "estimate")  # the commands that take keys; a shell completes the files that the others take
# Hydra's code for bash takes the word at COMP_CWORD, which is another one where bash divides words at colons, and
# bash then expects only what follows the last colon.
WORD = "word=${words[$COMP_CWORD]}"
WORD_BEFORE_CURSOR = "word=${COMP_LINE:0:$COMP_POINT}; word=${word##*[[:space:]]}"
REPLY = 'COMPREPLY=($( compgen -o nospace -o default -W "$choices" -- "$word" ));'
REPLY_AFTER_COLON = f"""{REPLY}
        if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
            COMPREPLY=("${{COMPREPLY[@]#"${{word%"${{word##*:}}"}}"}}")
        fi"""


def completion(line: CommandLine) -> str:
    """A shell's code, or the completions of the words in COMP_LINE. Raises Mistake.

    Hydra composes what was typed. It composes lists of values only after -m, and does not know `python -m`.
    """
    typed = os.environ.get("COMP_LINE", "")
    action, _, shell = " ".join(line.overrides).partition("=")
    if action not in ACTIONS or shell not in SHELLS or (action == "query" and not typed.strip()):
        raise Mistake(f"-sc {' '.join(line.overrides)}".rstrip() + f": write -sc install={'|'.join(SHELLS)}")
    if action == "query":
        between = "\n" if shell == "fish" else " "
        return between.join(dict.fromkeys(_offered(typed, shell)))
    code = _of_hydra(f"{action}={shell}", "")
    return code.replace(WORD, WORD_BEFORE_CURSOR).replace(REPLY, REPLY_AFTER_COLON).rstrip("\n")


def _offered(typed: str, shell: str) -> Iterator[str]:
    """What may follow or complete the last word of the line."""
    first = re.fullmatch(rf"{PROGRAM}\s+(\S*)", typed)
    if first is not None:
        yield from (name for name in command_names() if name.startswith(first[1]))
    called = re.match(rf"{PROGRAM}(?:\s+({'|'.join(command_names())}|-m|--multirun)(?=\s))?", typed)
    command = called[1] if called is not None else None
    if command in command_names() and command not in OF_KEYS:
        return
    last = re.split(r"\s", typed)[-1]
    if of_cards := re.fullmatch(r"((devices|budget)=(?:\S*[\[,])?)([^\[,]*)", last):
        before, key, begun = of_cards.groups()
        yield from (before + word for word in _of_cards(key) if word.startswith(begun))
        return
    line = "sweeper -m" + typed[called.end() if called is not None else len(typed) :]
    for word in _of_hydra(f"query={shell}", line).split():
        if NOT_TYPED.match(word) or (word.startswith(CARD) and command != "estimate"):
            continue
        yield f"{word[:-1]}=" if word[:-1] in LISTS else word


def _of_cards(key: str) -> list[str]:
    """The devices, or the budgets that are named after a card."""
    names = [path.stem for path in sorted((CONF / "card").glob("*.yaml"))]
    if key == "budget":
        return [f"card:{name}" for name in names]
    return ["auto", "all", "cpu", "cuda:0", f"sim:{ALL}", *(f"sim:{name}" for name in names)]


def _of_hydra(action: str, line: str) -> str:
    os.environ["COMP_LINE"] = line
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_hydra(["--shell-completion", action], never)
    return printed.getvalue()

"""What to type instead of a word that sweeper does not know. Imports neither Hydra nor pandas.

Nothing here is taken in place of what was typed: every function returns a message.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from runners.device import SIM
from sweeper.cards import ALL, CONF
from sweeper.errors import did_you_mean, either, nearest, some_of
from sweeper.planning import synonyms
from sweeper.planning.schema import WORKLOAD_RULES, Keys
from sweeper.planning.typed_numbers import SECONDS, WHOLE, seconds, whole_numbers
from sweeper.units import parse_bytes

ROOTS = (*(each.name for each in fields(Keys)), "experiment")
GROUPS = ("model", "workload", "inputs", "design", "experiment")
TEXTS = ("outputs", "python", "workload.argv", "inputs.file", "inputs.tokenizer", "model.path", "objective")
SIZES = ("budget", "used_by_others", "margin")
SWITCHES = ("workload.checkpointing", "workload.compile", "parallel", "tensors")
TINY = "tiny-"  # models for tests, which are named only where nothing else is like the word
OWN_KEYS = ("pretrained", "mlp")  # models that have keys besides those of a configuration
FEW = 8  # options that a message lists in full
LOWEST_BUDGET = 2**20
NOT_A_SHARE = ", and not a share"


def options(group: str) -> list[str]:
    """The options of a group that come with sweeper."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def write(text: str) -> str:
    """The advice to type a text, or to leave out what there is nothing to type for."""
    return f"leave it out: {text.removeprefix('nothing: ')}" if text.startswith("nothing: ") else f"write {text}"


def assign(key: str, value: str) -> str:
    """`quantize=nf4` for the key quantize and the value 4bit: the value as the key has it, or another key."""
    parts = [value] if value[:1] in ("[", "{", "'", '"') else value.split(",")
    right = [_value(key, part.strip()) for part in parts]
    other = next((each for each in right if "=" in each or each.startswith("nothing: ")), None)
    return other or for_shell(key, ",".join(right))


def for_shell(key: str, value: str) -> str:
    """`key=value` as it is typed: in quotes if the shell or Hydra's grammar would read its signs."""
    if not re.search(r"[\s()\[\]{}*?$&;|<>'\"]", value) or value.endswith("VALUE"):
        return f"{key}={value}"
    is_grammar = re.fullmatch(r"(range|interval|choice|glob)\(.*\)|\[.*\]|\{.*\}|\".*\"|'.*'", value)
    written = f"{key}={value}" if is_grammar else f'{key}="{value}"'
    return f"'{written}'" if "'" not in written else written


def instead_of(key: str, value: Any, known: Collection[str]) -> str:
    """The end of the message about a value that is not one of the known ones."""
    text = str(value).lower()
    if text in synonyms.VALUES.get(key, {}):
        return f"; {write(assign(key, text))}"
    return did_you_mean(value, known)


def _value(key: str, value: str) -> str:
    lower = value.lower()
    if lower in synonyms.VALUES.get(key, {}):
        return synonyms.VALUES[key][lower].replace("{value}", lower)
    if key == "devices":
        return next(iter(devices(value, options("card"))), value)
    if key == "budget":
        return next(iter(budgets(value, options("card"))), f"budget=SIZE, as in budget=21GiB{NOT_A_SHARE}")
    if key == "model" and value not in options("model"):
        return _model(value) or f"model=pretrained {for_shell('model.path', value)}"
    if key.endswith(".target") and (file := re.fullmatch(r"(?:\./)?([\w/]+)\.py:(\w+)", value)):
        return f"{file[1].replace('/', '.')}:{file[2]}"
    if key in SWITCHES:
        return "true" if lower in synonyms.TRUE else "false" if lower in synonyms.FALSE else value
    right = whole_numbers(key, value) if key in WHOLE else seconds(key, value) if key in SECONDS else None
    alone = (right or value).removeprefix(f"{key}=")
    return str(right) if "=" in alone else alone  # one of several ways, which are whole


# --- keys -------------------------------------------------------------------------------------------------------------


def no_such_key(key: str, value: str) -> str:
    """The message for a key that the configuration does not have. `value`: as it was typed."""
    text = instead_of_key(key, value)
    return f"no such key: {key}" + (f"; {write(text)}" if text else did_you_mean(key, ROOTS))


def instead_of_key(key: str, value: str) -> str | None:
    """What to type instead of a key by another name, or of a part of an option's name: `workload.rank` is `rank`."""
    name = key.lstrip("+").lower().replace("-", "_")
    if name in synonyms.COUNTS and re.fullmatch("[1-9]|1[0-6]", value):
        return _gpus(int(value))
    for known in dict.fromkeys((name, name.rpartition(".")[2])):
        if known in synonyms.KEYS:
            return _filled(synonyms.KEYS[known], value)
        if found := _of_other_options(known, value):
            return found
    return None


def _gpus(count: int) -> str:
    names = [f"cuda:{each}" for each in range(count)]
    if count == 1:
        return f"devices={names[0]}"
    every, each = ("all", "each") if count > 2 else ("both", "both")
    together = f"devices={'+'.join(names)} for one workload of yours that uses {every}"
    return f"devices={','.join(names)} for each point on {each}, or {together}"


def _filled(text: str, value: str) -> str:
    if "{value}" not in text:
        return "nothing: that is the default" if value.lower() in synonyms.FALSE else text

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}={found[2]}{_card(value)}" if found[2] else assign(found[1], value)

    return re.sub(r"([\w.]+)=(sim:|card:)?\{value\}", fill, text)


def _card(value: str) -> str:
    found = devices(value, options("card"))
    return found[0].removeprefix(SIM) if found and found[0].startswith(SIM) else value


def no_such_key_of(root: str, option: str, key: str, value: str, known: Sequence[str]) -> str:
    """The message for a key that an option of a group does not have.

    `known`: the keys at the place of the unknown one, dotted below `root`.
    """
    path, _, name = key.rpartition(".")
    alike = next((each for each in synonyms.SAME if name in each), (name,))
    here = [f"{root}.{each}" for each in known]
    same = next((each for each in here if each.rpartition(".")[2] in alike), None)
    # `path` again: model.config.hidden_sise is like model.config.hidden_size.
    what = f"no such key: {key}" + (f" with {root}={option}" if option else "")
    if name in ROOTS and name not in _keys_of_options() and path == root:  # workload.batch
        return f"{what}; {write(assign(name, value))}"
    if same is not None:
        return f"{what}; {write(assign(same, value))}"
    found = next(filter(None, (_of_other_options(each, value, f"{root}.") for each in (name, *alike))), None)
    if root in GROUPS and found:
        return f"{what}; {write(found)}"
    if path == "workload" and name in synonyms.KEYS:
        return f"{what}; {write(_filled(synonyms.KEYS[name], value))}"
    beside = [each.rpartition(".")[2] for each in here if each.rpartition(".")[0] == path]
    return what + (did_you_mean(name, beside, f"{path}.") or f"; it has {some_of(beside)}" if beside else "")


def _of_other_options(name: str, value: str, root: str = "") -> str | None:
    """`workload=train workload.rank=16`: the options that have a key of this name, of one group or of any."""
    found = [pair for pair in _keys_of_options().get(name, ()) if pair[1].startswith(root)]
    return either([f"{option} {assign(key, value)}" for option, key in found[:2]]) or None


@functools.cache
def _keys_of_options() -> Mapping[str, Sequence[tuple[str, str]]]:
    """By the last part of each key of workloads, inputs and models: the options that have it, and the whole key."""
    import yaml  # type: ignore[import-untyped]

    found: dict[str, list[tuple[str, str]]] = {}
    for group, names in (("workload", options("workload")), ("inputs", options("inputs")), ("model", OWN_KEYS)):
        for option in names:
            read = yaml.safe_load((CONF / group / f"{option}.yaml").read_text(encoding="utf-8"))
            values = read.get(group, read)
            for key in values:
                if key in ("name", "library", "defaults", "of_positions", *WORKLOAD_RULES):
                    continue
                others = {"name": option} | dict(values.get("only_with", {}).get(key, {}))
                words = " ".join(
                    f"{group}={each}" if at == "name" else f"{group}.{at}={each}" for at, each in others.items()
                )
                found.setdefault(key, []).append((words, f"{group}.{key}"))
    return found


# --- options and values -----------------------------------------------------------------------------------------------


def option_of_path(option: str) -> str:
    """The name of the option that a path stands for: `gpt2` of `./gpt2`, `/gpt2` and `gpt2.yaml`."""
    parts = [each for each in option.removesuffix(".yaml").split("/") if each not in ("", ".", "..")]
    return "/".join(parts)


def no_such_option(group: str, option: str, known: Sequence[str]) -> str:
    """The message for an option that a group does not have. `known`: its options, those of the user's included."""
    what = f"{group}={option}: no such {group}"
    named = option_of_path(option)
    if re.search(r"[*?]", option):
        return f"{what}; write '{group}=glob({option})'"
    is_known = named != option and named in known and not (group == "model" and "/" in option)
    if text := f"{group}={named}" if is_known else _option(group, option):
        return f"{what}; {write(text)}"
    usual = [each for each in known if not each.startswith(TINY) or option.lower().startswith(TINY.rstrip("-"))]
    near = did_you_mean(option, usual) or did_you_mean(option, known)
    if len(known) <= FEW:
        return f"{what}{near}; there are {', '.join(known)}" if known else what
    if near:
        return f"{what}{near}; sweeper --help {group} lists all {len(known)}"
    return f"{what}; there are {some_of([*usual, *(each for each in known if each not in usual)], group)}"


def _option(group: str, option: str) -> str | None:
    if option.lower() in synonyms.VALUES.get(group, {}):
        return assign(group, option)
    if group == "workload" and re.fullmatch(r"([A-Za-z_][\w.]*|[\w./]+\.py):[A-Za-z_]\w*", option):
        return f"workload=custom workload.target={_value('workload.target', option)}"
    if group == "workload" and option.endswith((".py", ".sh")):
        start = "python" if option.endswith(".py") else "bash"
        return f"workload=command 'workload.argv=[{start},{option}]'"
    if group == "inputs" and ("/" in option or re.search(r"\.\w{2,5}$", option)):
        images = re.search(r"\.(png|jpe?g|webp|gif|bmp)$", option.lower())
        return f"inputs={'images' if images else 'text'} inputs.file={option}"
    if group == "experiment" and option.endswith((".yaml", ".yml")):
        name = re.sub(r".*/|\.ya?ml$", "", option)
        return f"-cd FOLDER experiment={name}, with the file as FOLDER/experiment/{name}.yaml"
    return _model(option) if group == "model" else None


def _model(option: str) -> str | None:
    """A checkpoint's folder, or its name on the hub."""
    if "/" not in option and not Path(option).is_dir():
        return None
    checkpoint = f"model=pretrained {for_shell('model.path', option)}"
    name = re.sub(r"[-_. ]", "", option.rstrip("/").rpartition("/")[2].lower())
    same = next((each for each in options("model") if re.sub(r"[-_. ]", "", each) == name), None)
    return f"model={same} for random weights, or {checkpoint}" if same else checkpoint


def devices(name: str, cards: Sequence[str]) -> list[str]:
    """The devices that a name may stand for which is none."""
    lower = name.strip().lower()
    if lower in synonyms.VALUES["devices"]:
        return [synonyms.VALUES["devices"][lower]]
    if re.fullmatch(r"cpu|cuda(:[0-9]+)?|auto|all|sim:all", lower):
        return [lower]
    if re.fullmatch(r"(cpu|cuda:[0-9]+|sim:[^;|\s]+)([;|\s]+(cpu|cuda:[0-9]+|sim:[^;|\s]+))+", lower):
        return [",".join(re.split(r"[;|\s]+", lower))]
    if re.fullmatch(r"cuda:[0-9]+(\+[0-9]+)+", lower):
        return ["+cuda:".join(lower.split("+"))]
    if found := re.fullmatch(r"(?:cuda|gpu|nvidia|rocm|hip)?[-_: #]?([0-9]{1,2})", lower):
        return [f"cuda:{int(found[1])}"]
    if found := re.fullmatch(r"(?:cuda|gpu)?:?([0-9]{1,2})(?:-|\.\.)([0-9]{1,2})", lower):
        return [",".join(f"cuda:{each}" for each in range(int(found[1]), int(found[2]) + 1))]
    if re.fullmatch("cuda[:_-]o?", lower):
        return ["cuda:0"]
    near = near_cards(re.sub(r"^(sim|card|gpu|cuda)\b[-: ]*", "", lower), cards)
    numbers = re.findall("[0-9]{3,}", lower)  # rtx-4070 is not rtx-4090 misspelt
    return [f"{SIM}{each}" for each in near if all(number in each for number in numbers)]


def near_cards(name: str, cards: Sequence[str]) -> list[str]:
    """The cards that a name may stand for, without the words for makers that it may have."""
    words = [each for each in re.split(r"[\s_]+", name.lower().strip()) if each not in synonyms.MAKERS]
    return nearest(re.sub(rf"^({'|'.join(synonyms.MAKERS)})-", "", "-".join(words)), cards)


def no_such_card(typed: str, name: str, cards: Sequence[str], prefix: str) -> str:
    """The message for a card without a file. `prefix`: what stands before a card's name in the value."""
    known = [*cards, ALL] if prefix == SIM else cards
    near = [f"{prefix}{each}" for each in near_cards(name, known)]
    many = f"; sweeper --help card lists all {len(cards)}" if len(cards) > FEW else ""
    if near:
        return f"{typed}: no such card (did you mean {either(near)}?){many if len(near) > 1 else ''}"
    return f"{typed}: no such card; the cards are {some_of(cards, 'card')}"


def no_device(name: str, others: Sequence[str], cards: Sequence[str], form: str) -> str:
    """The message for a name in `devices` that is none. `others`: the names before and after it, itself included."""
    what = f"devices={name}: not a device"
    if name.strip(":").lower() == SIM.strip(":"):
        return f"{what}; name a card, as in devices=sim:h100-80gb, or devices=sim:{ALL} for every card"
    if name.lower().partition(":")[0] in synonyms.NO_METER:
        return f"{what} that sweeper has a meter for; {form}"
    near = devices(name, cards)
    if not near:
        return f"{what}; {form}"
    written = [",".join(each if other == name else _value("devices", other) for other in others) for each in near]
    calculated = len(others) == 1 and all(each.startswith(SIM) for each in near)
    which = f", which {'are' if len(near) > 1 else 'is'} calculated" if calculated else ""
    return f"{what}; write {either([f'devices={each}' for each in written])}{which}"


def budgets(value: str, cards: Sequence[str]) -> list[str]:
    """The budgets that a value may stand for which is none: `24GiB` for 24, `card:rtx-4090` for a card's name."""
    if (size := parse_bytes(int(value) if value.isdecimal() else value)) is not None and size >= LOWEST_BUDGET:
        return [value]
    if found := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([gmt])i?|gigs?|gbs|gigabytes?)?", value.strip().lower()):
        unit = (found[2] or "g").upper()
        if float(found[1]) < 1 and not found[2]:  # a share
            return []
        return [f"{found[1]}{unit}iB", f"{found[1]}{unit}B"] if found[2] else [f"{found[1]}{unit}iB"]
    if re.match("[a-z]", value.lower()) or re.match(r"[0-9]{3,4}\b", value):
        return [f"card:{each}" for each in near_cards(re.sub(r"^(sim|card|gpu)\b[-: ]*", "", value.lower()), cards)]
    return []


# --- words ------------------------------------------------------------------------------------------------------------


def no_such_flag(flag: str, value: str | None, known: Collection[str], takes_keys: bool) -> str | None:
    """The message for a flag, if a known one is like it, or a key does what it would in a command that takes keys.

    `value`: as it was typed.
    """
    name = flag.lstrip("-").replace("-", "_")
    what = f"no such flag: {flag}"
    if not takes_keys:
        near = did_you_mean(flag, known)
        return f"{what}{near}" if near else None
    if flag in synonyms.FLAGS or (value is None and name in synonyms.COMMANDS):
        return f"{what}; {write(synonyms.FLAGS.get(flag) or _run_in(synonyms.COMMANDS[name], ()))}"
    if name in ROOTS or name.partition(".")[0] in GROUPS:
        yes = "true" if name in SWITCHES or "true" in synonyms.VALUES.get(name, {}) else "VALUE"
        return f"{what}; {write(assign(name, value if value is not None else yes))}"
    if (text := instead_of_key(name, value if value is not None else "VALUE")) is not None:
        return f"{what}; {write(text)}"
    near = did_you_mean(flag, known) or did_you_mean(name, ROOTS)
    return f"{what}{near}" if near else None


def no_such_command(command: str, rest: Sequence[str], commands: Sequence[str]) -> str:
    """The message for a first word that is neither a command nor an override."""
    if command.lower() in ("resume", "retry") and rest and "/" in rest[0]:  # a run, and no value of the key
        return f"no such command: {command}; {write(_run_in(synonyms.COMMANDS[command.lower()], rest))}"
    if _begins_pair([command, *rest], 0):
        return words_apart([command, *rest], 0, "sweep") or f"no such command: {command}"
    if not re.search(r"\w", command):
        return f"{command!r}: write key=value, or key=value,value to try several"
    text = _of_command(command, rest, commands)
    if text:
        return f"no such command: {command}; {write(text)}"
    near = did_you_mean(command, commands) or f"; there are {', '.join(commands)}"
    return f"no such command: {command}{near}; --help shows more"


def instead_of_listing(word: str) -> str | None:
    """What to write instead of `list WORD`, where the word is no folder: `list models`."""
    text = synonyms.COMMANDS.get(word.lower())
    return None if text is None else write(_run_in(text, ()))


def _of_command(command: str, rest: Sequence[str], commands: Sequence[str]) -> str | None:
    lower = command.lower()
    if lower in ("list", "ls", "show", "help", "info") and rest and rest[0].lower() in synonyms.COMMANDS:
        return _run_in(synonyms.COMMANDS[rest[0].lower()], ())
    if lower in synonyms.COMMANDS:
        return _run_in(synonyms.COMMANDS[lower], rest)
    if "/" in command and not command.endswith((".py", ".yaml", ".yml")):
        return f"sweeper frontier {command}"
    if nearest(command, commands):
        return None
    text = of_bare_word([command, *rest], 0)
    return _line("sweep", text, rest) if text else None


def _run_in(text: str, rest: Sequence[str]) -> str:
    """The text with the keys that followed the word, or with the run."""
    keys = " ".join(each for each in rest if "=" in each) or "KEY=VALUE"
    run = next((each for each in rest if not re.match(r"[-+~]|[^=]+=", each)), "RUN")
    if run != "RUN":
        text = text.replace("NAME", run.rstrip("/").rpartition("/")[2])
    return text.replace("{words}", keys).replace("RUN", run)


def _line(command: str, text: str, others: Sequence[str]) -> str:
    """A line with a word that was found and the other words, unless there is a choice of several."""
    sweeper = "sweeper" if command == "sweep" else f"sweeper {command}"
    if " or " in text:
        return f"{sweeper} {text}"
    others = [each for each in others if each not in ("-m", "--multirun")]
    keys = [(of_bare_word([each], 0) if _is_bare(each) else None) or each for each in others]
    return " ".join([sweeper, text, *(each for each in keys if " or " not in each)])


def is_key(word: str) -> bool:
    name = word.lower().replace("-", "_")
    return name in ROOTS or name.partition(".")[0] in GROUPS[:3] or name in synonyms.KEYS


def _begins_pair(words: Sequence[str], at: int) -> bool:
    """Whether a word is a key whose value follows: `batch 4`, `batch =4`, `batch:4`."""
    if found := re.fullmatch(r"([A-Za-z_][\w.]*):(.*)", words[at]):
        return is_key(found[1]) and re.fullmatch(r"(cuda|sim):.*", words[at]) is None
    if not is_key(words[at]) or len(words) <= at + 1 or not _is_bare(words[at + 1]):
        return False
    text = synonyms.KEYS.get(words[at].lower().replace("-", "_"), "{value}")
    return "{value}" in text or words[at + 1].lower() in (*synonyms.TRUE, *synonyms.FALSE)


def _is_bare(word: str) -> bool:
    return re.match(r"[-+~]|[^=]+=", word) is None


def words_apart(words: Sequence[str], at: int, command: str) -> str | None:
    """The message for the word at a place in the line, which has no `=`, or None if it means nothing.

    A space ends a word: `batch=1, 2` is `batch=1,` and `2`.
    """
    if joined := _in_brackets(words, at):
        return joined
    others = [*words[:at], *words[at + 1 :]]
    text = of_bare_word(words, at)
    if text and _begins_pair(words, at):
        length = 3 if words[at + 1 : at + 2] == ["="] else 1 if re.search(":.", words[at]) else 2
        pair = " ".join(words[at : at + length])
        return f"{pair}: a key and its value are one word; {write(text)}"
    if text and not _follows_value(words, at):
        return f"{words[at]}: no key=value; {write(_line(command, text, others))}"
    if at == 0:
        return None
    tail = [words[at - 1]]
    for word in words[at:]:
        if not _is_bare(word):
            break
        tail.append(word)
    key, _, value = " ".join(tail).partition("=")
    right = whole_numbers(key, value) if key in WHOLE else seconds(key, value) if key in SECONDS else None
    if right is None and (re.search(r"[=,]$", tail[0]) or tail[1][:1] in (",", "=")):
        right = "".join(tail)
    if right is None and parse_bytes("".join(value.split())) and key.partition(".")[0] in SIZES:
        right = "".join(tail)
    if right is None and key == "name":
        right = f"name={'-'.join(value.split())}"
    if right is None and (key in TEXTS or key.startswith(("env.", "workload.params."))):
        right = f"'{' '.join(tail)}'"
    return f"{' '.join(tail)}: a space ends a word; {write(right)}" if right else f"{words[at]}: write key=value"


def _in_brackets(words: Sequence[str], at: int) -> str | None:
    """The message for a list with spaces, whose brackets begin in a word before: `devices=[cpu cuda:0]`."""
    begins = next((each for each in range(at) if re.match(r"[^=]+=[\[({]", words[each])), None)
    if begins is None:
        return None
    ends = next((each for each in range(begins, len(words)) if words[each][-1:] in ("]", ")", "}")), None)
    if ends is None or ends < at:
        return None
    key, _, value = " ".join(words[begins : ends + 1]).partition("=")
    items = [each for each in re.split(r"[,\s]+", value[1:-1]) if each]
    right = f"'{key}=[{','.join(items)}]'" if key == "workload.argv" else assign(key, ",".join(items))
    return f"{key}={value}: a space ends a word; {write(right)}"


def _follows_value(words: Sequence[str], at: int) -> bool:
    """Whether a word may belong to the value before it: 2 in `batch=1, 2`."""
    return at > 0 and (words[at - 1].endswith((",", "=")) or words[at][:1] in (",", "=") or _is_number(words[at]))


def _is_number(word: str) -> bool:
    return re.match("[0-9]", word) is not None or word == "to"


def of_bare_word(words: Sequence[str], at: int) -> str | None:
    """What to type instead of a word without `=`: a key with the value that follows, or the value of a key."""
    word, rest = words[at], words[at + 1 :]
    if _begins_pair(words, at):
        key, colon, value = word.partition(":")
        following = (rest[0].lstrip("=") or "".join(rest[1:2])) if rest else ""
        return _assigned(key, value or following if colon else following)
    if re.fullmatch(r"[0-9]+", word) and len(word) < 4:
        return None
    for group in GROUPS:
        known = options(group)
        if word.lower() in known:
            return f"{group}={word.lower()}"
        if group == "workload" and word.lower() in synonyms.VALUES[group]:
            return assign(group, word)
    if found := [each for each in devices(word, options("card")) if _is_device(word, each)]:
        return either([f"devices={each}" for each in found])
    if group_of := next((group for group in ("workload",) if _option(group, word)), None):
        return _option(group_of, word)
    if word in ROOTS:
        return f"{word}=VALUE"
    known = [each for each in options("model") if not each.startswith(TINY)]
    near = nearest(word, known)
    begins = near and len(word) > 2 and near[0].startswith(word.lower())
    return f"model={near[0]}" if near and (begins or re.search("[0-9]", word)) else None


def _is_device(word: str, device: str) -> bool:
    """Whether a word names a device, or the beginning of a card's name, rather than something like it."""
    if not device.startswith(SIM):
        return True
    name = re.sub("[^a-z0-9]", "", word.lower().removeprefix(SIM))
    return len(name) > 1 and name in re.sub("[^a-z0-9]", "", device.lower())


def _assigned(key: str, value: str) -> str:
    name = key.lower().replace("-", "_")
    if name in ROOTS or name.partition(".")[0] in GROUPS:
        return assign(name, value)
    return instead_of_key(name, value) or f"{key}={value}"

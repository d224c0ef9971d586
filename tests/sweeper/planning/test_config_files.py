"""YAML files of the user's: a mistake is one line with the file, the line and what to write.

All files of the table are written to one folder, and Hydra starts once for it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sweeper.errors import Mistake
from sweeper.plan import Plan
from sweeper.planning import config_files, planner
from sweeper.planning.command_line import read
from sweeper.planning.hydra_sweeper import composer_of
from sweeper.planning.probes import Probes

P = "# @package _global_\n"
BOMB = "".join(
    f"{this}: &{this} [{','.join([f'*{last}'] * 9)}]\n" for last, this in zip("abcdef", "bcdefg", strict=True)
)

# Name: the text below the package line, the line of the mistake, and how the message begins.
MISTAKES: dict[str, tuple[str, int, str]] = {
    # a value of the wrong kind
    "list": ("batch: [1, 2, 4]", 2, "batch=[1,2,4]: takes one value; write grid: {batch: [1, 2, 4]} to try each"),
    "list-of-words": ("\ndtype: [a, b]", 3, 'dtype=["a","b"]: takes one value; write grid: {dtype: [a, b]} to'),
    "list-of-a-run-key": ("name: [a, b]", 2, 'name=["a","b"]: must be a word'),
    "list-in-an-option": (
        "defaults: [override /model: mlp]\nmodel:\n  width: [1, 2]",
        4,
        "model.width=[1,2]: must be a whole number; it is 512 now; write grid: {model.width: [1, 2]} to try each",
    ),
    "keys": ("batch: {a: 1}", 2, 'batch={"a":1}: must be a whole number'),
    "nothing": ("batch:", 2, "batch=null: must be a whole number"),
    "missing": ("batch: ???", 2, "batch=???: give it a value"),
    "float": ("context: 8\nbatch: 1e3", 3, "batch=1000.0: must be a whole number; write batch: 1000"),
    "range": ("context: 8\n\nbatch: 0", 4, "batch=0: must be 1 or more"),
    "choice": ("start: wram", 2, "start=wram: must be cold or warm (did you mean warm?)"),
    "dtype-16": ("dtype: 16", 2, "dtype=16: must be one of float32, "),
    "octal": ("context: 012", 2, "012: YAML reads it as 10; write 12, or '012' for the text"),
    "sexagesimal": ("timeout: 1:30", 2, "1:30: YAML reads it as 90; write 90, or '1:30' for the text"),
    "option-as-a-word": ("model: gpt2", 2, "model=gpt2: choose an option as in defaults: [override /model: gpt2]"),
    "options-as-a-word": ("model: gpt2,mlp", 2, "model=gpt2,mlp: write grid: {model: [gpt2, mlp]} to try each"),
    "several-values": ("batch: 1,2,4", 2, "batch=1,2,4: takes one value; write grid: {batch: '1,2,4'} to try several"),
    "interval": ("batch: interval(1,8)", 2, "batch=interval(1,8): takes one value; write grid: {batch: "),
    # keys
    "unknown": ("context: 2\nbtach: 2", 3, "no such key: btach (did you mean batch?)"),
    "unknown-in-an-option": (
        "defaults: [override /workload: train]\nworkload: {lrr: 2}",
        3,
        "no such key: workload.lrr with workload=train (did you mean workload.lr?)",
    ),
    "dotted": ("model.width: 3", 2, "no such key: model.width"),
    "key-that-is-null": ("null: 2", 2, "a key must be a word"),
    "key-that-is-a-list": ("? [1, 2]\n: 3", 2, "a key must be a word"),
    "name-of-a-model": (
        "seed: 1\nmodel: {name: gpt2}",
        3,
        "model.name=gpt2: choose an option as in defaults: [override /model: gpt2]",
    ),
    "sweep": ("sweep:\n  batch: [1, 2]", 2, "no such key: sweep; write grid: {batch: [1, 2, 4]}"),
    # what YAML cannot parse
    "twice": ("batch: 1\ncontext: 2\nbatch: 2", 4, "batch is given twice; keep one"),
    "twice-in-grid": ("grid:\n  batch: [1]\n  batch: [2]", 4, "batch is given twice; keep one"),
    "tab": ("grid:\n\tbatch: [1, 2]", 3, "a tab; YAML is indented with spaces"),
    "bracket": ("batch: [1, 2\ncontext: 3", 3, "cannot be read as YAML: expected ',' or ']', but got ':' ("),
    "no-end": ("grid: {batch: [1, 2]", 3, "cannot be read as YAML: expected ',' or '}', but got '<stream end>'"),
    "no-colon": ("batch: 1\ncontext 3\nseed: 2", 4, "cannot be read as YAML: could not find expected ':'"),
    "at": ("batch: @x", 2, "cannot be read as YAML: found character '@' that cannot start any token"),
    "two-documents": ("batch: 2\n---\nbatch: 3", 3, "a second document begins; keep one, without ---"),
    "tag": ("batch: !!python/object/apply:os.system ['true']", 2, "the tag !!python/object/apply:os.system is not"),
    "root-is-a-list": ("- batch: 1\n- batch: 2", 2, "must be keys with values, as in batch: 4"),
    "root-is-a-word": ("batch", 2, "must be keys with values, as in batch: 4"),
    "root-is-a-number": ("5", 2, "must be keys with values, as in batch: 4"),
    "bomb": (f"a: &a [x, x]\n{BOMB}", 1, "aliases (*) repeat more than 100000 values"),
    "alias-in-itself": ("env: &a\n  X: *a", 2, "an alias (*) repeats what it is itself a part of"),
    # interpolations
    "to-nothing": ("batch: ${nosuch}", 2, "batch: Interpolation key 'nosuch' not found"),
    "to-itself": ("batch: ${batch}", 2, "batch: Recursive interpolation detected"),
    "in-a-circle": ("batch: ${context}\ncontext: ${batch}", 2, "batch: Recursive interpolation detected"),
    "open": ("batch: ${context", 2, "batch: no viable alternative at input '${context'"),
    "to-no-variable": ("batch: ${oc.env:NO_SUCH}", 2, "batch: KeyError raised while resolving interpolation"),
    "in-grid": ("grid:\n  batch:\n    - 2\n    - ${nosuch}", 5, "batch: Interpolation key 'nosuch' not found"),
    # grid and points
    "empty-grid": ("grid:", 2, "grid: is empty, so there is nothing to try; write grid: {batch: [1, 2, 4]}, or"),
    "empty-grid-in-braces": ("grid: {}", 2, "grid: is empty, so there is nothing to try"),
    "grid-list": ("grid:\n  - batch: [1, 2]", 3, "grid: must be keys with lists of values, as in grid: {batch: [1"),
    "grid-word": ("grid: batch", 2, "grid: must be keys with lists of values"),
    "grid-scalar": ("grid:\n  batch: 4", 3, "grid: batch: must be a list of values, as in batch: [1, 2, 4]"),
    "grid-null": ("grid:\n  batch:", 3, "grid: batch: must be a list of values"),
    "grid-nested": ("grid:\n  model:\n    width: [1]", 4, "grid: model: write the whole key, as in model.width: [1]"),
    "grid-value": ("grid:\n  batch:\n  - 1\n  - x", 5, "batch=x: must be a whole number"),
    "grid-run-key": ("grid:\n  devices: [cpu]", 3, "grid: devices: is a key of the run"),
    "empty-points": ("points:", 2, "points: is empty, so there is nothing to try; write points: [{batch: 1}"),
    "points-keys": ("points: {batch: 1}", 2, "points: must be a list of keys with values, as in points: [{batch: 1}"),
    "points-lists": ("points:\n- [1, 2]", 3, "points: [1,2]: must be keys and values"),
    "points-null": ("points:\n- batch: 1\n-", 4, "points: null: must be keys and values"),
    "points-list": ("points:\n- batch: [1, 2]", 3, "points: batch=[1,2]: takes one value; list a point for each"),
    "points-nested": ("points:\n- model: {width: 3}", 3, "points: model: write the whole key, as in model.width: 3"),
    "points-key": ("points:\n- batch: 1\n- btach: 1", 4, "no such key: btach (did you mean batch?)"),
    "points-value": ("points:\n- batch: 1\n- batch: 0", 4, "batch=0: must be 1 or more"),
    "grid-and-points": ("grid: {batch: [1]}\npoints: [{batch: 1}]", 3, "the experiment has both grid: and points:"),
    "grid-again": ("grid: {batch: [1, 2]}\nbatch: 7", 3, "batch=7: is given again under grid:; keep one"),
    "grid-again-in-an-option": (
        "defaults: [override /model: mlp]\nmodel:\n  width: 8\ngrid: {model.width: [8, 16]}",
        4,
        "model.width=8: is given again under grid:; keep one",
    ),
    "points-again": ("batch: 7\npoints: [{batch: 1}, {batch: 2}]", 2, "batch=7: is given again under points:"),
    # taken for something else
    "number-for-a-switch": ("seed: 1\nparallel: 4", 3, "parallel=4: must be true or false"),
    "path-in-defaults": (
        "defaults:\n- override /workload: ./train",
        3,
        "workload=./train: no such workload; write defaults: [override /workload: train]",
    ),
    "path-in-grid": ("grid:\n  model: [mlp, ./gpt2]", 3, "model=./gpt2: no such model; write defaults: ["),
    "file-in-points": ("points:\n- model: mlp\n- model: mlp.yaml", 4, "model=mlp.yaml: no such model; write "),
    "key-of-the-search": ("seed: 1\nedge: largest", 3, "edge=largest: has an effect only with design=frontier"),
    # defaults
    "no-such-option": ("defaults:\n- override /model: nosuch", 3, "model=nosuch: no such model"),
    "no-such-group": ("defaults:\n- override /modle: gpt2", 3, "defaults: override /modle: gpt2: no such group (did"),
    "no-such-file": ("defaults:\n- nosuch", 3, "experiment=nosuch: no such experiment"),
    "without-override": ("defaults:\n- /model: gpt2", 3, "defaults: /model: gpt2: write override /model: gpt2"),
    "without-slash": ("defaults:\n- override model: gpt2", 3, "defaults: override model: gpt2: write override /model"),
    "defaults-null": ("defaults:", 2, "defaults: must be a list, as in defaults: [override /model: gpt2]"),
    "defaults-keys": ("defaults: {override /model: gpt2}", 2, "defaults: must be a list"),
    "defaults-number": ("defaults:\n- 5", 3, "defaults: 5: must be one option each"),
    "itself": ("defaults:\n- itself", 3, "defaults: itself: a file cannot include itself"),
}  # fmt: skip

# Name: the whole file, the line of the mistake, and how the message begins.
FILES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 1, "an experiment begins with the line # @package _global_; write it above this one"),
    "no-package": (b"batch: 2\n", 1, "an experiment begins with the line # @package _global_"),
    "other-package": (
        b"# @package global\nbatch: 2\n",
        1,
        "# @package global: an experiment begins with # @",
    ),
    "late-package": (b"batch: 2\n# @package _global_\n", 2, "# @package _global_: must be the first line of the file"),
    "spelt-package": (b"# @Package _global_\nbatch: 2\n", 1, "# @Package _global_: write # @package _global_"),
    "package-colon": (b"# @package: _global_\nbatch: 2\n", 1, "# @package: _global_: write # @package _global_"),
    "two-packages": (b"# @package _global_ x\nbatch: 2\n", 1, "# @package _global_ x: write # @package _global_"),
    "mark": (
        b"\xef\xbb\xbf# @package _global_\nbatch: 2\n",
        1,
        "begins with a byte order mark; save it as UTF-8",
    ),
    "utf-16": ((P + "batch: 2\n").encode("utf-16"), 1, "is not UTF-8; save it as UTF-8"),
    "utf-16-be": ((P + "batch: 2\n").encode("utf-16-be"), 1, "is not UTF-8; save it as UTF-8"),
    "latin-1": (P.encode() + b"# \xe9t\xe9\nbatch: 2\n", 2, "the byte 0xe9 is not UTF-8; save the file as UTF-8"),
    "nul": (P.encode() + b"batch: 2\0\n", 2, "the character '\\x00' is not allowed"),
}

# Name: the text below the package line, and the values of the keys.
TAKEN: dict[str, tuple[str, Mapping[str, Any]]] = {
    "windows-lines": ("batch: 2\r\ncontext: 3\r\n", {"batch": 2, "context": 3}),
    "underscore": ("batch: 1_000", {"batch": 1000}),
    "hexadecimal": ("batch: 0x10", {"batch": 16}),
    "yes": ("tensors: no", {"tensors": False}),
    "text-of-variables": (
        "env: {A: yes, B: 007, C: 1e3, D: 0x10, E: 2024-01-01, F: null}",
        {"env.A": "yes", "env.B": "007", "env.C": "1e3", "env.D": "0x10", "env.E": "2024-01-01", "env.F": None},
    ),
    "umlauts": ("env: {A: grüße}", {"env.A": "grüße"}),
    "merged": ("env: {<<: {A: x}, B: y}", {"env.A": "x", "env.B": "y"}),
    "some-points": ("batch: 7\npoints: [{context: 3}]", {"batch": 7, "context": 3}),
    "comment-above": ("# again\nbatch: 2", {"batch": 2}),
}


# The text of a file below the package line, and what the message says to write: in the form of a file, with its value.
WRITTEN: list[tuple[str, str]] = [
    # keys by other names
    ("batch_size: 4", "batch: 4"),
    ("batch_size: [1, 2]", "grid: {batch: [1, 2]}"),
    ("grid: {batch_size: [1, 2]}", "grid: {batch: [1, 2]}"),
    ("grid: {seq_len: 512}", "context: 512"),
    ("learning_rate: 0.1", "defaults: [override /workload: train] and workload: {lr: 0.1}"),
    ("learning_rate: [0.1, 0.2]", "defaults: [override /workload: train] and grid: {workload.lr: [0.1, 0.2]}"),
    ("lora_r: 8", "defaults: [override /workload: train] and workload: {method: lora, rank: 8}"),
    ("workload.prompt_lengths: 2", "workload: {prompt_lengths: 2}"),
    ("workload: {batch_size: 4}", "batch: 4"),
    ("defaults: [override /workload: train]\nworkload: {learning_rate: 0.1}", "workload: {lr: 0.1}"),
    ("load_in_8bit: true", "quantize: int8"),
    ("memory: 24", "budget: 24GiB"),
    ("time_limit: 1h30m", "timeout: 5400"),
    ("output_dir: a", "outputs: a"),
    ("gpu_memory_utilization: 0.9", "budget: SIZE, as in budget: 21GiB, and not a share"),
    ("sweep:\n  batch: [1, 2]", "grid: {batch: [1, 2, 4]}"),
    ("training: {lr: 0.1}", "defaults: [override /workload: train]"),
    # values
    ("batch: 4k", "batch: 4000 or batch: 4096"),
    (
        "batch: 1-4",
        "grid: {batch: [1, 2, 3, 4]}, grid: {batch: 'range(1,5)'} for every number or defaults: [override /design:"
        " frontier] and grid: {batch: 'interval(1,4)'} to search",
    ),
    ("context: 1k,2k", "grid: {context: '1k,2k'} to try several"),
    ("dtype: float32,bf16", "grid: {dtype: 'float32,bf16'} to try several"),
    ("budget: 1GiB,2GiB", "grid: {budget: '1GiB,2GiB'} to try several"),
    (
        "defaults: [override /workload: train]\nworkload: {lr: '0.1,0.2'}",
        "grid: {workload.lr: [0.1, 0.2]} to try each",
    ),
    ("grid: {batch: 1-4}", "grid: {batch: [1, 2, 3, 4]}, grid: {batch: 'range(1,5)'} for every number or defaults:"),
    ("timeout: 1h30m", "timeout: 5400"),
    ("budget: 24", "budget: 24GiB"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    (folder / "experiment").mkdir()
    texts = {name: (P + text + "\n").encode() for name, (text, *_) in (MISTAKES | TAKEN).items()}
    for name, content in (texts | {name: content for name, (content, *_) in FILES.items()}).items():
        (folder / "experiment" / f"{name}.yaml").write_bytes(content)
    return folder


def planned(folder: Path, *words: str) -> Plan:
    line = read(["devices=cpu", "-cd", str(folder), *words])
    with (
        mock.patch.object(planner, "composer_of", lambda words: _composer(tuple(words))),
        Probes() as probes,
    ):
        return planner.plan_of(line, probes, lambda message: None)


_composer = functools.cache(composer_of)


def refusal(folder: Path, *words: str) -> str:
    with pytest.raises(Mistake) as mistake:
        planned(folder, *words)
    assert "\n" not in str(mistake.value)
    return str(mistake.value).replace(f"{folder}/", "")


@pytest.mark.parametrize("name", [*MISTAKES, *FILES])
def test_a_mistake_in_an_experiment_is_one_line_with_its_file_and_line(folder: Path, name: str) -> None:
    _, line, message = (MISTAKES | FILES)[name]  # type: ignore[operator]
    assert refusal(folder, f"experiment={name}").startswith(f"experiment/{name}.yaml, line {line}: {message}")


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_file_says_is_taken_as_a_person_reads_it(folder: Path, name: str) -> None:
    (point,) = planned(folder, f"experiment={name}").points
    values = TAKEN[name][1]
    assert {key: point.get(key) for key in values} == values


def test_a_mistake_in_a_file_shows_what_to_write_in_the_file(folder: Path) -> None:
    for at, (text, advice) in enumerate(WRITTEN):
        (folder / "experiment" / f"written-{at}.yaml").write_text(f"{P}{text}\n")
        assert refusal(folder, f"experiment=written-{at}").partition("write ")[2].startswith(advice), text


@pytest.mark.slow
def test_what_a_message_says_to_write_in_a_file_is_taken(folder: Path) -> None:
    """As a file of its own, with the option that the text has."""
    for at, (text, advice) in enumerate(WRITTEN):
        above = [line for line in text.splitlines() if line.startswith("defaults:")]
        if "workload.prompt_lengths" in text:
            above = ["defaults: [override /workload: generate]"]
        ways = re.split(r"(?:,| or) (?=grid:|defaults:|batch:)", re.sub(r" (to|for) [a-z ]+(?=,| or|$)", "", advice))
        for way in (each for each in ways if "SIZE" not in each and each != "defaults:"):
            name = f"advised-{at}-{ways.index(way)}"
            (folder / "experiment" / f"{name}.yaml").write_text(P + "\n".join([*above, *way.split(" and "), ""]))
            assert planned(folder, f"experiment={name}").points, (text, way)


def test_a_mistake_on_the_command_line_names_no_file_even_if_a_file_has_the_key(folder: Path) -> None:
    assert refusal(folder, "experiment=underscore", "batch=0") == "batch=0: must be 1 or more"


def test_nesting_without_end_is_a_mistake(folder: Path) -> None:
    (folder / "experiment" / "deep.yaml").write_text(f"{P}env: {'[' * 3000}{']' * 3000}\n")
    assert refusal(folder, "experiment=deep") == "experiment/deep.yaml: has too many lists or keys inside each other"


def test_files_that_include_each_other_are_a_mistake(folder: Path) -> None:
    for one, other in (("ping", "pong"), ("pong", "ping")):
        (folder / "experiment" / f"{one}.yaml").write_text(f"{P}defaults: [{other}]\n")
    assert "files include each other" in refusal(folder, "experiment=ping")


def test_a_file_that_may_not_be_read_is_a_mistake_with_the_reason(folder: Path) -> None:
    (folder / "experiment" / "closed.yaml").write_text(P)
    with mock.patch.object(config_files, "open", side_effect=PermissionError(13, "Permission denied"), create=True):
        assert refusal(folder, "experiment=closed") == "experiment/closed.yaml: cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("file", "typed", "why"),
    [
        ("nearly.yml", "nearly", "the file is experiment/nearly.yml; rename it to nearly.yaml"),
        ("Upper.yaml", "upper", "the file is experiment/Upper.yaml; write experiment=Upper"),
        ("text.yaml.txt", "text", "the file is experiment/text.yaml.txt; rename it to text.yaml"),
        ("a folder.yaml/", "'a folder'", "experiment/a folder.yaml is a folder, and must be a file"),
    ],
)
def test_a_file_that_is_nearly_an_option_is_named(folder: Path, file: str, typed: str, why: str) -> None:
    path = folder / "experiment" / file.rstrip("/")
    path.mkdir() if file.endswith("/") else path.write_text(P)
    assert refusal(folder, f"experiment={typed}") == f"experiment={typed.strip(chr(39))}: {why}"


def test_a_link_to_no_file_is_named(folder: Path) -> None:
    (folder / "experiment" / "broken.yaml").symlink_to("nowhere")
    assert refusal(folder, "experiment=broken").endswith("broken.yaml is a link to a file that does not exist")


def test_a_file_name_may_have_a_space(folder: Path) -> None:
    (folder / "experiment" / "with a space.yaml").write_text(f"{P}batch: 3\n")
    assert [point["batch"] for point in planned(folder, "experiment='with a space'").points] == [3]


@pytest.mark.parametrize(
    ("name", "text", "words", "message"),
    [
        ("model/odd", "name: odd\nlibrary: torch\nwidth: [1\n", ["model=odd"], r"line 4: cannot be read as YAML: "),
        ("model/listed", "- name: x\n", ["model=listed"], "line 1: must be keys with values"),
        ("model/off", "# @package off\nname: off\n", ["model=off"], "no such key: off"),
        (
            "workload/octal",
            "name: octal\nsteps: 010\n",
            ["workload=octal"],
            "line 2: 010: YAML reads it as 8;",
        ),
        ("card/odd", "name: odd\nvendor: [nvidia\n", ["devices=sim:odd"], "line 3: cannot be read as YAML: "),
        ("card/lacking", "name: x\nvendor: amd\n", ["devices=sim:lacking"], "architecture is missing: as in sm_90"),
        ("card/more", "name: x\nvram: 3\n", ["devices=sim:more"], "line 2: vram: is not a key of a card"),
    ],
)
def test_a_mistake_in_any_other_file_is_one_line_too(
    tmp_path: Path, name: str, text: str, words: list[str], message: str
) -> None:
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    path.write_text(text)
    words = words if words[0].startswith("devices") else ["devices=cpu", *words]
    line = read(["-cd", str(tmp_path), *words])
    with pytest.raises(Mistake, match=rf"{name}\.yaml[,:].*{re.escape(message)}"), Probes() as probes:
        planner.plan_of(line, probes, lambda message: None)


def test_a_file_that_sweeper_has_too_is_not_ignored_in_silence(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mlp.yaml").write_text("name: mine\nlibrary: torch\nwidth: 8\n")
    expected = "model/mlp.yaml: there is another model=mlp, which comes first; give the file another name"
    assert refusal(tmp_path, "model=mlp") == expected


def test_an_invalid_card_of_the_users_is_named_by_the_path_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine" / "card"
    folder.mkdir(parents=True)
    (folder / "my-card.yaml").write_text("vendor: nvidia\n")
    line = read(["--config-dir", "mine", "devices=[sim:my-card]"])
    with pytest.raises(Mistake, match=r"^mine/card/my-card.yaml: name is missing"), Probes() as probes:
        planner.plan_of(line, probes, lambda message: None)

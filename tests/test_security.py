"""Text from others is never run as code, used as a path or read as markup. Secrets of the environment are not kept."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests import command_line

ROOT = Path(__file__).resolve().parents[1]
CODE = sorted(path for room in ("runners", "sweeper") for path in (ROOT / room).rglob("*.py"))
USUAL = ["devices=[cpu]", "parallel=true", "start=warm", "timeout=60"]
CUSTOM = ["workload=custom", "workload.target=mine:run"]

# Full names, as far as the imports of a file show them.
RUN_TEXT = {"eval", "exec", "compile", "__import__", "code.interact", "runpy.run_path", "runpy.run_module"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNPICKLE = {"torch.load", "pandas.read_pickle", "numpy.load"}
UNSAFE_YAML = {"yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"}
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}
PRINTING = {"print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines"}
ALLOWED = {
    "runners/workloads/python_program.py": {  # runs the program of workload.argv, as an interpreter would
        "calls runpy.run_module",
        "calls runpy.run_path",
        "calls exec",
        "calls compile",
    },
    "runners/simulation/torch_unwritten_files.py": {"imports pickle"},  # only pickles, to find tensors without data
    "sweeper/tables/other_core.py": {"imports pickle"},  # of what its own fork sends
}
HYDRA_CALLS = {"hydra.utils.instantiate", "hydra.utils.call", "hydra.utils.get_method", "hydra.utils.get_object"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def full_names(tree: ast.AST) -> dict[str, str]:
    """The full name of each imported name: `sh` is os.system after `from os import system as sh`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                names[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def offences(text: str) -> Iterator[str]:
    """Every place that runs text, a pickle, a shell or a checkpoint's code."""
    tree = ast.parse(text)
    names = full_names(tree)

    def spelled(node: ast.expr) -> str:
        root, dot, rest = ast.unparse(node).partition(".")
        return (names.get(root, root) + dot + rest).removeprefix("builtins.")

    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"imports {module}" for module in modules if module.partition(".")[0] in UNPICKLERS)
        if not isinstance(node, ast.Call):
            continue
        called = spelled(node.func)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        # weights_only loads tensors and refuses everything else in the file.
        safe = called == "torch.load" and "weights_only" in given and ast.unparse(given["weights_only"]) == "True"
        if called in RUN_TEXT | SHELLS | UNPICKLE | UNSAFE_YAML | HYDRA_CALLS and not safe:
            yield f"calls {called}"
        loader = given.get("Loader", node.args[1] if len(node.args) > 1 else None)
        if called in ("yaml.load", "yaml.load_all") and (loader is None or spelled(loader) not in SAFE_LOADERS):
            yield f"calls {called} without a safe loader"
        for name in ("shell", "trust_remote_code", "allow_pickle"):
            if name in given and ast.unparse(given[name]) != "False":
                yield f"gives {name}={ast.unparse(given[name])}"


@pytest.mark.parametrize("path", CODE, ids=named)
def test_nothing_evaluates_unpickles_or_shells_out(path: Path) -> None:
    assert set(offences(path.read_text())) == ALLOWED.get(named(path), set())


@pytest.mark.parametrize(
    "text",
    [
        "eval(text)",
        "import builtins\nbuiltins.exec(text)",
        "compile(text, '', 'eval')",
        "import pickle",
        "from cloudpickle import loads",
        "import torch\ntorch.load(file)",
        "from os import system as run\nrun(text)",
        "import subprocess as s\ns.run(text, shell=True)",
        "import subprocess\nsubprocess.getoutput(text)",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "AutoModel.from_pretrained(path, trust_remote_code=trusted)",
        "import hydra.utils\nhydra.utils.instantiate(config)",
    ],
)
def test_each_kind_of_offence_is_found(text: str) -> None:
    assert len(list(offences(text))) == 1


def test_harmless_calls_with_similar_names_are_no_offences() -> None:
    harmless = (
        "import re, yaml\nre.compile(text)\nmodule.eval()\nyaml.load(text, Loader=yaml.SafeLoader)\nrun(shell=False)"
    )
    assert list(offences(harmless)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "sweeper").rglob("*.py")), ids=named)
def test_every_line_that_is_printed_goes_through_the_module_that_escapes_control_characters(path: Path) -> None:
    tree = ast.parse(path.read_text())
    printing = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} & PRINTING
    assert not printing or path.name in ("screen.py", "__main__.py")  # the latter runs before anything is imported


def sweep(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command_line.run([*USUAL, *words], folder, {**os.environ, **environ})


ECHO = "def run(*, batch, text='', **_):\n    return {'text': text}\n"
FAILS = "def run(*, batch, text='', **_):\n    raise ValueError(text)\n"


def test_no_secret_of_the_environment_is_in_any_file_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ECHO)
    secrets = {"SECRET_TOKEN": "abc123-not-to-be-kept", "HF_TOKEN": "hf_not-to-be-kept-either"}
    ran = sweep(tmp_path, *CUSTOM, "name=run", "batch=1,2", OMP_NUM_THREADS="2", **secrets)
    assert ran.returncode == 0, ran.stderr
    files = [path for path in (tmp_path / "outputs" / "run").rglob("*") if path.is_file()]
    assert len(files) > 10
    # Parquet compresses its pages, so the tables are decoded before they are searched.
    tables = [pd.read_parquet(path).to_csv() for path in files if path.suffix == ".parquet"]
    kept = b"\n".join(path.read_bytes() for path in files) + "\n".join(tables).encode()
    assert b'"OMP_NUM_THREADS": "2"' in kept  # the listed variables are recorded
    for name, value in secrets.items():
        assert value.encode() not in kept
        assert name.encode() not in kept


NASTY = ["=cmd()", "<script>", "[red]x[/]", "../../up", "@SUM(1+1)", "a/b"]


@pytest.mark.parametrize("code", [ECHO, FAILS], ids=["returned", "raised"])
def test_text_that_other_programs_interpret_is_kept_as_it_is_and_is_never_a_path(tmp_path: Path, code: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    typed = ",".join(json.dumps(text) for text in NASTY)
    ran = sweep(tmp_path, *CUSTOM, "name=run", f"workload.params.text={typed}")
    assert ran.returncode == (0 if code == ECHO else 3), ran.stderr
    points = pd.read_parquet(tmp_path / "outputs/run/points.parquet")
    assert [json.loads(config)["workload"]["params"]["text"] for config in points["config"]] == NASTY
    if code == ECHO:
        assert [json.loads(metrics)["text"] for metrics in points["metrics"]] == NASTY
    else:
        assert list(points["error_message"]) == NASTY
    for text in NASTY:
        assert f"workload.params.text={text}  " in ran.stdout
    made = {path.name for path in tmp_path.rglob("*")} - {"mine.py", "__pycache__"}
    assert not [name for name in made if any(sign in name for sign in "=<>[]@()")]
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__", "outputs"}


def test_a_models_name_becomes_a_safe_folder_name(tmp_path: Path) -> None:
    """A run without a name is named after its model, with the characters replaced that a path cannot hold."""
    options(tmp_path, "name: '=cmd()/../<b>[red]x[/]'\n")
    ran = sweep(tmp_path, "-cd", "options", "workload=forward", "model=mine", "context=1")
    assert ran.returncode == 0, ran.stderr
    (run,) = (tmp_path / "outputs").iterdir()
    assert run.name.partition("-forward")[2].startswith("--cmd-..-b-red-x--context-1-")
    assert re.fullmatch(r"[A-Za-z0-9._-]+", run.name)
    assert set(pd.read_parquet(run / "points.parquet")["model"]) == {"=cmd()/../<b>[red]x[/]"}
    assert {path.name for path in tmp_path.iterdir()} == {"options", "outputs"}


def options(folder: Path, lines: str) -> None:
    """Write model=mine: two small layers, and these lines."""
    (folder / "options" / "model").mkdir(parents=True)
    (folder / "options" / "model" / "mine.yaml").write_text("library: torch\nwidth: 8\n" + lines)


@pytest.mark.parametrize("name", ["../up", "[red]x[/]"])
def test_a_run_name_with_other_characters_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.py").write_text(ECHO)
    ran = sweep(tmp_path, *CUSTOM, f"name={json.dumps(name)}")
    assert ran.returncode == 2
    assert ran.stderr.startswith("sweeper: name=")
    assert not (tmp_path / "outputs").exists()


def test_a_target_in_a_file_of_options_is_never_called(tmp_path: Path) -> None:
    called = tmp_path / "called"
    options(tmp_path, f"name: mine\n_target_: pathlib.Path.touch\n_args_: [{called}]\n")
    ran = sweep(tmp_path, "-cd", "options", "workload=forward", "model=mine", "context=1")
    assert ran.returncode == 0, ran.stderr
    assert not called.exists()


def on_a_terminal(folder: Path, *words: str) -> str:
    """The output of a sweep on a terminal, with its escape sequences."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sweeper", *USUAL, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "300"},
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    written = b""
    while True:
        try:
            data = os.read(terminal, 2**16)
        except OSError:  # EIO: the process has closed the other end
            data = b""
        if not data:
            break
        written += data
    os.close(terminal)
    process.wait(60)
    return written.decode()


def test_markup_is_not_interpreted_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILS)
    typed = ",".join(json.dumps(text) for text in ("[red]x[/]", "[/]", "[link=file:///etc]y[/link]", ":smile:"))
    written = on_a_terminal(tmp_path, *CUSTOM, f"workload.params.text={typed}")
    for text in ("[red]x[/]", "[/]", "[link=file:///etc]y[/link]", ":smile:"):
        assert f"workload.params.text={text}  error" in written
        assert f"ValueError: {text}" in written
    assert "\x1b[31m" not in written
    assert "\x1b]8;" not in written


CONTROLS = "\x1b]0;theirs\x07\x1b[2J\u202e"


def test_control_characters_of_a_workload_do_not_reach_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def run(*, batch, phase, **_):\n    raise ValueError({CONTROLS!r})\n")
    written = on_a_terminal(tmp_path, *CUSTOM, "name=run")
    assert rf"ValueError: {CONTROLS.encode('unicode_escape').decode()}" in written
    for control in ("\x1b]", "\x07", "\x1b[2J", "\u202e"):
        assert control not in written


FORGED = "sim:h100-80gb  batch=64  fits"
FORGES = f"""
def run(*, batch, phase, **_):
    with phase("a\\n{FORGED}\\n"):
        pass
    if batch == 2:
        raise type("E\\n{FORGED}", (Exception,), {{}})("why\\r{FORGED}\\x85{FORGED}\\u2028{FORGED}")
    return {{"m\\n{FORGED}": "x\\n{FORGED}"}}
"""


def test_no_text_of_a_workload_begins_a_line_on_the_screen(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FORGES)
    ran = sweep(tmp_path, *CUSTOM, "batch=1,2", "name=run")
    printed = [ran.stdout]
    assert ran.returncode == 3, ran.stderr
    assert r"a\nsim:h100-80gb" in printed[0]
    shutil.copytree(tmp_path / "outputs" / "run", tmp_path / "outputs" / "other")
    run, other = "outputs/run", "outputs/other"
    ids = pq.read_table(tmp_path / run / "points.parquet")["point_id"].to_pylist()
    commands = [["show", run], *(["show", run, id] for id in ids), ["compare", run, other], ["list"]]
    for command in (*commands, *([name, run] for name in ("frontier", "effects", "estimate"))):
        read = command_line.run(command, tmp_path)
        assert read.returncode == 0
        printed.append(read.stdout)
    for text in printed:
        assert not [line for line in text.splitlines() if line.strip().startswith((FORGED, FORGED.upper()))]
    phases = pq.read_table(tmp_path / run / "phases.parquet")["phase"].to_pylist()
    assert f"a\n{FORGED}\n" in phases  # the tables have the exact text


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    code = f"open({str(tmp_path / 'was-run')!r}, 'w')\n"
    (checkpoint / "theirs.py").write_text(code)
    classes = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    (checkpoint / "config.json").write_text(json.dumps({"model_type": "theirs", "auto_map": classes}))
    ran = sweep(tmp_path, "workload=forward", "model=pretrained", f"model.path={checkpoint}", "name=run")
    assert ran.returncode == 3, ran.stderr
    assert not (tmp_path / "was-run").exists()
    (row,) = pd.read_parquet(tmp_path / "outputs/run/points.parquet").to_dict("records")
    assert row["status"] == "error"
    assert "trust_remote_code" in row["error_message"]

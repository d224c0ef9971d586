"""A program in a command's arguments, found without running it, and run as the interpreter runs it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.phases import Unavailable
from runners.workloads import python_program as module
from runners.workloads.python_program import CODE, MODULE, SCRIPT, exit_code, python_program, with_interpreter

IMPORTED = "from accelerate.commands.launch import main"


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the tests goes on."""
    monkeypatch.setattr(module, "end_interpreter", lambda patience: None)


@pytest.mark.parametrize(
    ("argv", "kind", "target", "arguments"),
    [
        ("python train.py --batch 4", SCRIPT, "train.py", ("--batch", "4")),
        (f"{sys.executable} -u -W ignore train.py -m x", SCRIPT, "train.py", ("-m", "x")),
        ("python3 -um package.train -c 1", MODULE, "package.train", ("-c", "1")),
        ("python -cprint(1) a", CODE, "print(1)", ("a",)),
        ("python -m accelerate.commands.launch train.py", CODE, f"{IMPORTED}; main()", ("train.py",)),
        ("env -u A B=1 python train.py C=2", SCRIPT, "train.py", ("C=2",)),
        ("timeout -k 5 25 nice -n 10 python train.py", SCRIPT, "train.py", ()),
        ("timeout --kill-after=5 --signal TERM 25s nohup python train.py", SCRIPT, "train.py", ()),
        ("stdbuf -oL ionice -c 3 setsid python -- train.py", SCRIPT, "train.py", ()),
    ],
)
def test_a_program_is_found_behind_what_starts_it(
    argv: str, kind: str, target: str, arguments: tuple[str, ...]
) -> None:
    found = python_program(argv.split())
    assert (found.kind, found.target, found.arguments) == (kind, target, arguments)


def test_the_variables_of_env_are_those_of_the_program() -> None:
    assert python_program(["env", "-u", "A", "B=1", "C=x=y", "python", "t.py"]).environ == {
        "A": None,
        "B": "1",
        "C": "x=y",
    }


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["bash", "-c", "python train.py"], "runs bash, and a calculated device follows a Python program"),
        (["/usr/bin/env", "-S", "python train.py"], "env -S in workload.argv: write the words"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "the ranks that torchrun starts"),
        (["python", "-m", "torch.distributed.run", "train.py"], "the ranks that -m torch.distributed.run starts"),
        (["python"], "gives python no script"),
        (["python", "-"], "gives python no script"),
        (["python", "-i", "train.py"], "python -i in workload.argv: this option is not undone"),
        (["env", "PYTORCH_CUDA_ALLOC_CONF=a:1", "python", "t.py"], "set env.PYTORCH_CUDA_ALLOC_CONF="),
        (["timeout", "5"], "names no program"),
    ],
)
def test_what_is_no_program_of_this_interpreter_is_unavailable_by_name(argv: list[str], why: str) -> None:
    with pytest.raises(Unavailable, match=why.replace("(", r"\(")):
        python_program(argv)


def test_a_script_whose_first_line_names_the_interpreter_is_a_program_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "tool"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    name = Path(sys.executable).name
    for first, is_ours in (
        (sys.executable, True),
        ("/usr/bin/perl", False),
        (f"/usr/bin/env {name}", True),
        ("/usr/bin/env perl", False),
    ):
        script.write_text(f"#!{first}\nprint(1)\n")
        script.chmod(0o755)
        if is_ours:
            assert python_program([str(script), "a"]).target == str(script)
        else:
            with pytest.raises(Unavailable):
                python_program([str(script), "a"])


SEES = """
import os, sys
if __name__ == "__main__":
    print(sys.argv, sys.path[0], os.getcwd(), os.environ.get("SHOWN"), __file__ if "__file__" in globals() else None)
    print(sys.modules["__main__"].__dict__ is globals(), "neighbour" in sys.modules)
    import neighbour
    print(neighbour.__file__)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "sees.py").write_text(SEES)
    (tmp_path / "link.py").symlink_to(tmp_path / "work" / "sees.py")
    for place in (tmp_path, tmp_path / "work"):
        (place / "neighbour.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as the measured process does with the current folder
    yield tmp_path
    sys.modules.pop("neighbour", None)


@pytest.mark.parametrize(
    "words", [["work/sees.py", "-x"], ["link.py"], ["-m", "work.sees", "y"], ["-c", SEES, "z"]], ids=str
)
def test_a_program_sees_what_it_would_see_of_its_start(
    folder: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["env", "SHOWN=yes", "python", *words]
    before = (sys.argv, list(sys.path), sys.stderr)
    assert exit_code(python_program(argv)) == (0, "")
    ours = capfd.readouterr().out
    assert (sys.argv, sys.path, sys.stderr) == before
    argv[2] = sys.executable
    assert ours == subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit(0)", (0, "")),
        ("import sys; sys.exit()", (0, "")),
        ("import sys; sys.exit('no such file')", (1, "no such file")),
        ("import sys; print('first\\nlast', file=sys.stderr); sys.exit(3)", (3, "last")),
        ("raise SystemExit(256 + 2)", (2, "")),
        ("import os\ntry: os._exit(4)\nexcept Exception: print('never')", (4, "")),
        ("import argparse; argparse.ArgumentParser('t').parse_args(['--x'])", (2, "t: error: unrecognized arguments")),
    ],
)
def test_a_program_leaves_with_the_code_that_it_would_leave_with(code: str, expected: tuple[int, str]) -> None:
    left, last = exit_code(python_program(["python", "-c", code]))
    assert (left, last.startswith(expected[1]) if expected[1] else last == "") == (expected[0], True)


def test_an_exception_is_printed_as_the_interpreter_prints_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "fails.py").write_text("def f():\n    raise KeyError('gone')\nf()\n")
    with pytest.raises(KeyError):
        exit_code(python_program(["python", "fails.py"]))
    ours = capfd.readouterr().err
    real = subprocess.run([sys.executable, "fails.py"], capture_output=True, text=True, check=False).stderr
    assert [line for line in ours.splitlines() if "^" not in line] == [
        line for line in real.splitlines() if "^" not in line
    ]


def test_a_program_of_its_own_process_does_what_an_interpreter_does_at_its_end(tmp_path: Path) -> None:
    """Pools and threads end, then atexit's handlers run; a thread that never ends is left behind."""
    (tmp_path / "ends.py").write_text(
        textwrap.dedent("""
        import atexit, concurrent.futures, tempfile, threading, time
        atexit.register(print, "at exit")
        def late():
            time.sleep(0.1)
            print("thread")
        threading.Thread(target=late).start()
        threading.Thread(target=time.sleep, args=(1000,)).start()
        concurrent.futures.ThreadPoolExecutor(1).submit(print, "pool")
        print(tempfile.TemporaryDirectory().name) if False else None
        print("main", flush=True)
        """)
    )
    code = (
        "import os, sys; from runners.workloads import python_program as p; p.JOINED_WITHIN = 0.5; "
        "code = p.exit_code(p.python_program(['python', 'ends.py'])); print(code, flush=True); os._exit(0)"
    )
    environ = {"PYTHONPATH": str(Path(module.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert sorted(done.stdout.splitlines()) == ["(0, '')", "at exit", "main", "pool", "thread"]
    assert done.stdout.splitlines()[-2:] == ["at exit", "(0, '')"]


def test_standard_error_may_have_become_a_pipe_after_the_interpreter_took_it_for_a_file(tmp_path: Path) -> None:
    """As in a process that is forked for an attempt, where the sweep's standard error is a file."""
    code = (
        "import os; read, write = os.pipe(); os.dup2(write, 2); from runners.workloads import python_program as p; "
        "code = p.exit_code(p.python_program(['python', 'no.py'])); print(code[0], os.read(read, 99), flush=True); "
        "os._exit(0)"
    )
    environ = {"PYTHONPATH": str(Path(module.__file__).parents[2])}
    with (tmp_path / "errors").open("wb") as errors:
        errors.write(b"earlier")
        errors.flush()
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, cwd=tmp_path, env=environ, stdout=-1, stderr=errors, text=True, check=True)
    assert done.stdout.startswith("2 b")
    assert "can't open file" in done.stdout


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("python a.py python", "{} a.py python"),
        ("timeout 25 python a.py", "timeout 25 {} a.py"),
        ("env -u B A=1 nice -n 5 python3 a.py", "env -u B A=1 nice -n 5 {} a.py"),
        ("/usr/bin/env -i python -m a", "/usr/bin/env -i {} -m a"),
        ("bash python", "/bin/bash python"),
        ("./tool python", "./tool python"),
    ],
)
def test_python_is_the_measured_interpreter_behind_what_starts_it(argv: str, expected: str) -> None:
    found = with_interpreter(argv.split(), sys.executable)
    found[0] = found[0].replace("/usr/bin/bash", "/bin/bash")
    assert found == expected.format(sys.executable).split()


def test_a_program_beside_the_measured_interpreter_is_found_without_an_activated_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    tool = tmp_path / "a-tool-of-this-test"
    tool.write_text(f"#!{sys.executable}\n")
    tool.chmod(0o755)
    assert with_interpreter([tool.name, "x"], sys.executable) == [str(tool), "x"]


def test_a_program_that_replaces_itself_is_unavailable_by_name() -> None:
    with pytest.raises(Unavailable, match=r"os\.execv: the program replaces itself by /bin/true"):
        exit_code(python_program(["python", "-c", "import os; os.execlp('/bin/true', 'true')"]))
    code = "import os; pid = os.fork() or os.execv('/bin/true', ['true']); exit(os.waitpid(pid, 0)[1])"
    assert exit_code(python_program(["python", "-c", code])) == (0, "")

"""Interpreters that cannot run sweeper, and imports beside a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from sweeper import installation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the standard library only."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def test_an_interpreter_without_the_packages_is_refused_in_one_line_that_names_another(empty_python: Path) -> None:
    done = subprocess.run(
        [empty_python, "-m", "sweeper", "batch=1,2"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"sweeper: {empty_python} cannot run sweeper: it has no hydra, omegaconf, yaml, ")
    assert str(ROOT / ".venv" / "bin" / "python") in done.stderr


def test_an_older_python_is_refused_in_one_line() -> None:
    refusal = installation.refusal("/usr/bin/python3.9", (3, 9))
    assert "/usr/bin/python3.9 cannot run sweeper: it is Python 3.9, and sweeper needs 3.10 or newer" in str(refusal)
    assert installation.refusal() is None


def test_import_beside_a_checkout_named_sweeper_finds_the_package(tmp_path: Path) -> None:
    """As in a notebook that was started in the folder that holds the checkout. The folder itself has no __init__.py."""
    (tmp_path / "sweeper").symlink_to(ROOT)
    code = "import sweeper; print(sweeper.__file__, sweeper.load.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == f"{ROOT / 'sweeper' / '__init__.py'} load\n", done.stderr


LACKING = ("transformers", "peft", "torchao", "bitsandbytes", "optimum", "accelerate", "lightning", "matplotlib")


@pytest.fixture(scope="module")
def plain_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with what `pip install .` brings, and without the libraries of the extras."""
    folder = tmp_path_factory.mktemp("plain") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    ours = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(LACKING) and not (ours / package.name).exists():
            (ours / package.name).symlink_to(package)
    return folder / "bin" / "python"


def test_the_default_command_of_a_plain_installation_names_what_to_install_and_starts_nothing(
    plain_python: Path, tmp_path: Path
) -> None:
    for python in (plain_python, Path(sys.executable)):  # measured by itself, and by another interpreter
        command = [python, "-m", "sweeper", "batch=1,2", "devices=cpu", f"python={plain_python}"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        cure = f'transformers is not installed; to install: {plain_python} -m pip install "sweeper[models]"'
        assert done.stderr == f"sweeper: model=tiny-llama: {cure}; model=mlp needs torch alone\n"
        assert list(tmp_path.iterdir()) == []

"""The zoo of programs: that its catalogue is whole, and that each program is calculated as it is measured."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "benchmarks" / "programs"
KINDS = {
    *("vision", "detection", "segmentation", "diffusion", "speech", "graphs", "recommenders", "reinforcement"),
    *("medical", "language", "scripts"),
}
# The name under which a library is installed, where it is not that of its module.
INSTALLED_AS = {
    "sentence_transformers": "sentence-transformers",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "torch_geometric": "torch-geometric",
}
COMES_ALONG = {"tqdm": "datasets", "scipy": "monai", "tokenizers": "transformers"}  # with what the extra has
ALWAYS = {"torch", "numpy"}

sys.path.insert(0, str(ZOO))
import catalogue  # noqa: E402
import check  # noqa: E402

sys.path.remove(str(ZOO))

PROGRAMS = {each.name: each for each in catalogue.PROGRAMS}


def tree_of(name: str) -> ast.Module:
    return ast.parse((ZOO / f"{name}.py").read_text())


def imported(tree: ast.Module) -> set[str]:
    modules = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {module.partition(".")[0] for module in modules} - set(sys.stdlib_module_names) - ALWAYS


def extra(name: str) -> set[str]:
    """The libraries of an extra of sweeper's, and of those that it names."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^{name} = \[(.*?)\](?=\s*(?:#.*)?$)", text, re.MULTILINE | re.DOTALL)
    assert found, name
    libraries: set[str] = set()
    for requirement in re.findall(r'"([^"]+)"', found[1]):
        if more := re.fullmatch(r"sweeper\[(.*)\]", requirement):
            libraries |= set().union(*map(extra, more[1].split(",")))
        else:
            libraries.add(re.split(r"[<>=!~\[ ]", requirement)[0])
    return libraries


def test_at_least_forty_programs_of_ten_kinds_are_catalogued_and_no_file_is_left_out() -> None:
    files = {str(path.relative_to(ZOO).with_suffix("")) for path in ZOO.glob("*/*.py")}
    assert files == set(PROGRAMS)
    assert len(PROGRAMS) == len(catalogue.PROGRAMS) >= 40
    assert {each.kind for each in catalogue.PROGRAMS} == KINDS


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_programs_entry_is_a_function_that_needs_no_arguments(name: str) -> None:
    program, tree = PROGRAMS[name], tree_of(name)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if program.is_script:
        assert any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body) or not (
            functions.keys() & {"main"}
        )
        return
    arguments = functions[program.entry or ""].args
    assert len(arguments.args) == len(arguments.defaults)
    assert all(each is not None for each in arguments.kw_defaults)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_programs_libraries_are_those_that_it_imports_and_the_extra_has_them(name: str) -> None:
    libraries = set(PROGRAMS[name].libraries)
    missing = imported(tree_of(name)) - libraries - set(COMES_ALONG)
    assert not missing, f"{name} imports {missing}, which the catalogue does not name"
    available = extra("programs")
    for library in libraries:
        assert INSTALLED_AS.get(library, COMES_ALONG.get(library, library)) in available, library


def test_a_difference_or_a_wrong_count_makes_a_program_suspect() -> None:
    program = catalogue.Program(name="vision/x", entry="main")
    ok = lambda peak, own=None: check.Answer(status="ok", peak=peak, own_count=own)  # noqa: E731
    mib = check.MIB
    assert not check.Checked(program, ok(100 * mib), ok(100 * mib), ok(110 * mib, 110.0 * mib)).wrong
    assert "+1.00% off" in check.Checked(program, ok(100 * mib), ok(101 * mib), ok(100 * mib)).wrong
    assert "itself counted" in check.Checked(program, ok(100 * mib), ok(100 * mib), ok(100 * mib, 90.0 * mib)).wrong
    refused = check.Answer(status="unavailable", reason="a.py:3, aten.nonzero: why")
    assert not check.Checked(program, ok(100 * mib), refused, refused).wrong


def test_a_larger_peak_is_bounded_only_where_its_row_names_a_bound_and_a_smaller_one_never_is() -> None:
    program = catalogue.Program(name="vision/x", entry="main")
    mib, bound = check.MIB, ("aten.nonzero at most all at a.py:3",)
    measured, card = check.Answer("ok", 100 * mib), check.Answer("ok", 230 * mib, bounds=bound)
    larger = check.Checked(program, measured, check.Answer("ok", 200 * mib, bounds=bound), card)
    assert (larger.is_bounded, larger.wrong) == (True, "")  # the card's is 1.15 of the calculated one
    assert "bounded: aten.nonzero at most all at a.py:3" in str(larger)
    without = check.Checked(program, measured, check.Answer("ok", 200 * mib), check.Answer("ok", 100 * mib))
    assert (without.is_bounded, without.wrong) == (False, "sim:cpu is +100.00% off")
    smaller = check.Checked(program, measured, check.Answer("ok", 99 * mib, bounds=bound), measured)
    assert (smaller.is_bounded, smaller.wrong) == (False, "sim:cpu is -1.00% off")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_calculated_as_it_is_measured_or_refused_by_name(
    name: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PROGRAMS[name]
    if absent := check.missing_libraries(sys.executable, [program])[name]:
        pytest.skip(f"needs {', '.join(absent)}: pip install 'sweeper[programs]'")
    checking = check.Check(sys.executable, tmp_path_factory.getbasetemp() / "programs")
    answers: Any = checking.calculated([program])[name]
    checked = check.Checked(program, checking.measured(program), *answers)
    assert checked.measured.status == "ok", checked.measured.reason
    assert not checked.wrong, str(checked)
    for device, answer in checked.failures():
        assert answer.status == "unavailable", f"{device}: {answer.reason}"
        assert answer.reason, device

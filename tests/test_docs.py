"""docs/what-can-go-wrong.md is held to the product: no status is missing, and each fault is one that a test makes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from runners.fingerprint import VARIABLES
from runners.outcome import Status

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "what-can-go-wrong.md").read_text()
README = (ROOT / "README.md").read_text()
TESTS = {
    node.name: path
    for path in (ROOT / "tests").rglob("test_*.py")
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
}


def rows(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    lines = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table[2:]]


FAULTS = [*rows("An attempt"), *rows("A sweep")]


def test_every_status_is_in_the_table_of_faults_in_the_order_they_are_declared() -> None:
    told = dict.fromkeys(row[1].strip("`") for row in rows("An attempt"))
    assert list(told) == [status.value for status in Status]


@pytest.mark.parametrize("row", FAULTS, ids=[row[0] for row in FAULTS])
def test_every_fault_is_one_that_a_test_makes(row: list[str]) -> None:
    assert row[-1].strip("`") in TESTS


def test_what_only_a_fault_shows_is_tested_by_faults() -> None:
    """Elsewhere are tested those that no process can be brought to here, or that are no fault of an attempt."""
    elsewhere = {row[0] for row in rows("An attempt") if TESTS[row[-1].strip("`")].parent.name != "faults"}
    assert elsewhere == {
        "the kernel kills it because memory ran out",
        "a requested device is missing",
        "another attempt implies its result",
    }


def test_the_exit_codes_are_those_of_the_readme() -> None:
    told = re.findall(r"^\| ([\d, ]+) \|", README.partition("## Exit codes")[2], re.MULTILINE)
    assert [code for code, _ in rows("Exit codes")][: len(told)] == told


def test_the_environment_variables_that_are_written_down_are_all_named() -> None:
    (told,) = re.findall(r"<!-- variables -->(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert re.findall(r"`(\w+)`", told) == list(VARIABLES)


def test_the_readme_leads_to_the_page() -> None:
    assert "(docs/what-can-go-wrong.md)" in README

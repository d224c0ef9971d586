"""Lines and columns that several views share."""

from __future__ import annotations

from sweeper.estimates.memory_terms import weights
from sweeper.views.layout import assignments, counts, error_text, indent, more, named, signed_percent, table, term_lines


def test_columns_are_as_wide_as_their_widest_cell_and_lines_have_no_blanks_at_their_ends() -> None:
    rows = [["", "peak", "note"], ["cpu", "7 bytes", ""], ["sim:rtx-4090", "10 bytes", "x"]]
    assert table(rows, "<><") == [
        "                  peak  note",
        "cpu            7 bytes",
        "sim:rtx-4090  10 bytes  x",
    ]


def test_a_head_without_text_is_left_out() -> None:
    assert table([["", ""], ["a", "b"]], "<<") == ["a  b"]
    assert table([], "<<") == []


def test_empty_lines_are_not_indented() -> None:
    assert indent(["a", "", "b"], 4) == ["    a", "", "    b"]


def test_values_are_written_as_they_are_typed() -> None:
    values = {"batch": 1, "workload.checkpointing": True, "dtype": "float32", "timeout": None}
    assert assignments(values) == "batch=1 workload.checkpointing=true dtype=float32 timeout=null"
    assert assignments(values, ["dtype", "absent"]) == "dtype=float32 absent=null"


def test_a_difference_that_rounds_to_nothing_keeps_its_sign() -> None:
    assert signed_percent(0, -13_376) == "-0.00 %"
    assert signed_percent(0, 13_376) == "+0.00 %"
    assert signed_percent(-2_310, -1) == "-23.10 %"


def test_what_is_left_out_is_counted() -> None:
    assert more(12, 12, "points") == []
    assert more(1_013, 12, "points") == ["... and 1,001 more points: --json lists all"]
    assert counts({"ok": 4, "oom": 2}) == "4 ok, 2 oom"


def test_the_cause_of_a_refused_configuration_is_shown_whole() -> None:
    cause = "RoPE requires an even rotary dimension, but got rotary_dim=25 (head_dim=25, partial_rotary_factor=1.0)"
    message = f"Class validation error for validator 'validate_rope':\n    ValueError: {cause}"
    assert error_text("huggingface_hub.errors.StrictDataclassClassValidationError", message) == f"ValueError: {cause}"


def test_a_text_is_wrapped_below_its_first_word_or_not_at_all() -> None:
    text = "allocated, reserved, requested, active, used"
    assert named("cuda:0", text, None) == f"cuda:0     {text}"
    assert named("cuda:0", text, 40) == "cuda:0     allocated, reserved,\n           requested, active, used"


def test_a_term_has_its_bytes_its_formula_its_assumption_and_its_source() -> None:
    first, *rest = term_lines([weights(7, 16)])
    assert first == "weights    14 bytes"
    assert [line.split()[0] for line in rest] == ["=", "assumed:", "source:"]

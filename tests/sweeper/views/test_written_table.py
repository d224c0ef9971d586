from __future__ import annotations

from sweeper.views.written_table import as_csv, as_markdown


def test_markup_in_a_cell_of_markdown_is_text() -> None:
    written = as_markdown(["name"], [["<script>alert(1)</script> a&b|c\nd"]], "<")
    assert written.splitlines()[2] == "| &lt;script>alert(1)&lt;/script> a&amp;b\\|c d |"


def test_csv_has_the_exact_text() -> None:
    assert as_csv(["name"], [["=1+1"], ["<b>&"]]) == "name\n=1+1\n<b>&"

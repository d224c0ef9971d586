from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.effects.families import families
from sweeper.views.pictures import draw_effects
from tests.sweeper.effects.test_families import MIB, Run


def drawn(run: Run, file: Path, **at: int) -> str:
    """The text of a picture: svg with its letters kept."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_effects(families(run.points, run.phases), str(file), at)
    return file.read_text()


def test_a_picture_names_what_is_measured_and_what_is_calculated(tmp_path: Path) -> None:
    picture = drawn(Run().grid(), tmp_path / "x.svg", batch=16)
    for text in ("peaks of tensor at context=256: marks measured, dashed calculated", "not measured", "warm_backward"):
        assert text in picture
    calculated = drawn(Run().grid(device="sim:rtx-4090"), tmp_path / "y.svg")
    assert "marks calculated, dashed calculated" in calculated


def test_a_picture_shows_where_a_phase_takes_over_and_what_failed(tmp_path: Path) -> None:
    run = Run().grid((1, 2, 4), (256,), costs={"warm_step": (120 * MIB, 0, 0), "warm_backward": (MIB, 0, 200_000)})
    run.add("oom", batch=8, context=256)
    picture = drawn(run, tmp_path / "x.svg")
    assert "takes over" in picture
    assert ">oom<" in picture


@pytest.mark.parametrize("run", [Run().grid((1,), (64,)), Run().grid((1, 2), (64,)), Run().grid((1,), (64, 128))])
def test_a_sweep_of_one_dimension_or_none_has_a_picture_too(run: Run, tmp_path: Path) -> None:
    assert "peaks of tensor" in drawn(run, tmp_path / "x.svg")


def test_more_families_than_a_page_holds_are_counted(tmp_path: Path) -> None:
    run = Run()
    for seed in range(6):
        run.grid((1, 2), (64,), seed=seed, lr=seed)
    assert "2 more with other settings are not shown" in drawn(run, tmp_path / "x.svg")

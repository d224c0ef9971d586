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


def test_a_picture_takes_the_place_of_a_link_and_appears_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "x.svg").symlink_to(tmp_path / "victim")
    (tmp_path / "disk").mkdir()
    (tmp_path / "pictures").symlink_to(tmp_path / "disk")
    for file in (tmp_path / "x.svg", tmp_path / "pictures" / "y.svg"):
        assert drawn(Run().grid(), file).startswith("<?xml")
        assert not file.is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"
    assert {path.name for path in tmp_path.rglob("*.*")} == {"x.svg", "y.svg"}


def test_names_in_a_picture_are_text_and_not_tex_whatever_matplotlibrc_says(tmp_path: Path) -> None:
    import matplotlib

    phase = r"$\input{/etc/passwd}$"
    with matplotlib.rc_context({"text.usetex": True}):
        assert phase in drawn(Run().grid(costs={phase: (MIB, 1024, 1024)}), tmp_path / "x.svg")

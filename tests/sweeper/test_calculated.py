"""Calculated devices on the command line: whole sweeps and their results."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests import command_line

MLP = ["model=mlp", "workload=forward", "model.width=1024"]


def sweep(folder: Path, *words: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    done = command_line.run([*words, f"outputs={folder}", "name=run"], folder, {**os.environ, **environ})
    assert done.returncode == code, done.stdout + done.stderr
    return done


def rows(folder: Path, table: str = "points") -> pd.DataFrame:
    return pd.read_parquet(folder / "run" / f"{table}.parquet")


TINY = {"name": "mine", "vendor": "nvidia", "architecture": "sm_90", "total_bytes": 2**31, "context_bytes": 2**29}


@pytest.fixture(scope="module")
def three_cards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run's folder and its output. One of the cards, sim:tiny, is described by a file of the user's own."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "mine" / "card").mkdir(parents=True)
    (folder / "mine" / "card" / "tiny.yaml").write_text(json.dumps(TINY))
    cards = ["devices=[sim:h100-80gb,sim:a100-40gb,sim:tiny]", "--config-dir", str(folder / "mine")]
    return folder, sweep(folder, *MLP, "batch=1,8", "context=4096,2097152", *cards).stdout


def test_one_run_decides_on_which_cards_each_point_fits(three_cards: tuple[Path, str]) -> None:
    points = rows(three_cards[0])
    fits = points.pivot_table(index=["batch", "context"], columns="device", values="fits", aggfunc="first")
    assert fits.loc[(8, 4096)].all()
    assert dict(fits.loc[(1, 2097152)]) == {"sim:a100-40gb": True, "sim:h100-80gb": True, "sim:tiny": False}
    assert not fits.loc[(8, 2097152)].any()


def test_a_card_of_the_users_own_is_a_file_like_the_others(three_cards: tuple[Path, str]) -> None:
    points = rows(three_cards[0])
    assert set(points[points.device == "sim:tiny"].device_total_bytes) == {TINY["total_bytes"]}


def test_every_row_is_calculated_and_has_no_measured_counters(three_cards: tuple[Path, str]) -> None:
    points, phases = rows(three_cards[0]), rows(three_cards[0], "phases")
    assert set(points.kind) == {"calculated"}
    assert points.peak_allocated_bytes.notna().all()
    for column in ("peak_resident_bytes", "peak_tensor_bytes", "process_baseline_bytes"):
        assert points[column].isna().all()
    assert phases.elapsed_s.isna().all()
    assert three_cards[1].count("(calculated, not measured)") == 3


def test_no_trace_is_left_in_the_run_folder(three_cards: tuple[Path, str]) -> None:
    assert not (three_cards[0] / "run" / "followed").exists()


def test_the_environment_names_the_card_and_its_bytes(three_cards: tuple[Path, str]) -> None:
    environment = rows(three_cards[0], "environment")
    assert "NVIDIA H100 80GB HBM3" in set(environment.device_name)
    assert set(environment.allocator_backend) == {"calculated"}


def test_the_same_command_again_calculates_nothing(three_cards: tuple[Path, str]) -> None:
    folder, _ = three_cards
    before = sorted(path.name for path in (folder / "run" / "points").glob("*/*"))
    sweep(folder, *MLP, "batch=1,8", "context=4096,2097152", "devices=[sim:h100-80gb,sim:a100-40gb]")
    assert sorted(path.name for path in (folder / "run" / "points").glob("*/*")) == before


@pytest.mark.slow
def test_a_search_calculates_no_point_twice_and_starts_measuring_at_the_calculated_edge(tmp_path: Path) -> None:
    words = ["batch=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "context=2048", "budget=200MiB", "start=warm"]
    sweep(tmp_path, *MLP, *words, "design=frontier", "devices=[cpu,sim:cpu]", "allocator=repeatable")
    points, attempts = rows(tmp_path), rows(tmp_path, "attempts")
    simulated = attempts[attempts.device == "sim:cpu"]
    assert not simulated.duplicated("point_id").any()
    calculated, measured = (points[points.device == device] for device in ("sim:cpu", "cpu"))
    largest = [frame[frame.fits.fillna(False)].batch.max() for frame in (calculated, measured)]
    assert abs(largest[0] - largest[1]) <= 1
    tried = attempts[attempts.device == "cpu"].batch
    assert tried.iloc[0] in range(
        largest[0] - 1, largest[0] + 3
    )  # without the calculation it would start in the middle


@pytest.mark.slow
def test_a_setting_of_the_allocator_changes_the_calculation(tmp_path: Path) -> None:
    def reserved(name: str, **environ: str) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        sweep(folder, *MLP, "batch=1", "context=1500", "devices=[sim:rtx-4090]", **environ)
        return rows(folder).peak_reserved_bytes[0]

    assert reserved("large", PYTORCH_ALLOC_CONF="large_segment_size_mb:64") > reserved("default")


def test_a_misspelt_card_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    done = sweep(tmp_path, *MLP, "devices=[sim:h100-80g]", code=2)
    assert done.stderr == "sweeper: devices=sim:h100-80g: no such card (did you mean sim:h100-80gb?)\n"
    assert not (tmp_path / "run").exists()


def test_a_budget_named_after_a_card_is_the_capacity_of_its_allocator(tmp_path: Path) -> None:
    sweep(tmp_path, *MLP, "batch=1", "context=64", "budget=card:t4-16gb", "devices=[sim:h100-80gb]")
    row = rows(tmp_path).iloc[0]
    assert 15 * 10**9 < row.budget_bytes < 16 * 10**9
    assert row.budget_kind == "allocator"


@pytest.mark.slow
def test_what_other_processes_use_of_a_card_decides_what_fits_and_is_in_the_row(tmp_path: Path) -> None:
    (tmp_path / "mine" / "card").mkdir(parents=True)
    (tmp_path / "mine" / "card" / "tiny.yaml").write_text(json.dumps(TINY))
    card = ["devices=[sim:tiny]", "--config-dir", str(tmp_path / "mine")]
    done = sweep(tmp_path, *MLP, "batch=1", "context=100000", "used_by_others=null,0,600MiB,1200MiB", *card)
    points = rows(tmp_path).set_index("used_by_others_bytes", drop=False)
    assert points.fits.to_list() == [True, True, False, False]
    assert points.used_by_others_bytes.isna().to_list() == [True, False, False, False]
    assert points.used_by_others_bytes[1:].to_list() == [0, 600 * 2**20, 1200 * 2**20]
    assert set(points.context_bytes) == {TINY["context_bytes"]}
    assert points.peak_used_bytes.iloc[0] == points.peak_used_bytes.iloc[1]
    assert points.point_id.nunique() == 4
    assert "sim:tiny: assumes 512.00 MiB of 2.00 GiB for the context and libraries" in done.stderr
    refused = command_line.run([*MLP, "used_by_others=1GiB", "devices=cpu", f"outputs={tmp_path}"], tmp_path)
    assert refused.returncode == 2
    assert "used_by_others=1GiB: has no effect on cpu; use it with calculated cards" in refused.stderr

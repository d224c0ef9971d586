"""Overrides in, a plan out: what a command line means, without anything being run."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from runners.point import Point
from sweeper.cards import CONF
from sweeper.designs.registry import DESIGNS
from sweeper.errors import Mistake
from sweeper.plan import Plan
from sweeper.planning import planner
from sweeper.planning.command_line import read
from sweeper.planning.composer import Composer
from sweeper.planning.hydra_sweeper import composer_of
from sweeper.planning.planner import plan_of
from sweeper.planning.probes import Probes

WL = """\
    def threshold(batch=1, context=1, limit=8192, **_): ...
    def narrow(*, batch, width=3): ...
    def needy(*, batch, width): ...
"""


@functools.cache
def _composer_of_words(words: tuple[str, ...]) -> Composer:
    return composer_of(words)


def plan(*overrides: str, devices: str | None = "cpu") -> Plan:
    """Plan a command line. Hydra starts once for each folder of options and set of its own keys, not for each plan.

    Starting takes 0.15 s of processor time, and this module plans 250 lines.
    """
    with mock.patch.object(planner, "composer_of", lambda words: _composer_of_words(tuple(words))):
        return plan_anew(*overrides, devices=devices)


def plan_anew(*overrides: str, devices: str | None = "cpu") -> Plan:
    """Plan a command line as a new process does."""
    line = read([*([f"devices={devices}"] if devices else []), *overrides])
    with Probes() as probes:
        return plan_of(line, probes, lambda message: None)


def refused(*overrides: str, devices: str | None = "cpu") -> str:
    with pytest.raises(Mistake) as mistake:
        plan(*overrides, devices=devices)
    assert "\n" not in str(mistake.value)
    return str(mistake.value)


def along(plan: Plan, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(point.get(key) for key in keys) for point in plan.points]


@pytest.fixture
def mywork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules of the user's, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mywork.py").write_text(textwrap.dedent(WL))
    return tmp_path


@pytest.fixture
def options(tmp_path: Path) -> Callable[[str, str], str]:
    """Writes an option of the user's own, and gives the flag that adds the folder."""

    def write(name: str, text: str) -> str:
        path = tmp_path / "options" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(tmp_path / "options")

    return write


CUSTOM = "workload=custom"


# --- what is a dimension ----------------------------------------------------------------------------------------------


def test_the_readme_sweep_is_a_grid_with_the_first_typed_outermost() -> None:
    sweep = plan_anew("batch=1,2,4", "context=2048,4096")
    assert [(each.key, each.values) for each in sweep.dimensions] == [("batch", (1, 2, 4)), ("context", (2048, 4096))]
    assert along(sweep, "batch", "context") == [(1, 2048), (1, 4096), (2, 4096), (2, 2048), (4, 2048), (4, 4096)]
    assert sweep.command == ("devices=cpu", "batch=1,2,4", "context=2048,4096")


def test_the_multirun_flag_changes_nothing_wherever_it_stands() -> None:
    expected = plan("batch=1,2", "context=8").points
    assert plan("-m", "batch=1,2", "context=8").points == expected
    assert plan("batch=1,2", "--multirun", "context=8").points == expected


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("batch=choice(4,2)", (4, 2)),
        ("batch=range(1,4)", (1, 2, 3)),
        ("batch=4,4,2", (4, 2)),
        ("++batch=1,2", (1, 2)),
        ("timeout=null,5", (None, 5.0)),
        ("dtype=half,float32,float16,torch.float16", ("float16", "float32")),
        ("budget=1GiB,1024MiB,2GiB", (2**30, 2**31)),
        ("model=mlp,tiny-llama", ("mlp", "tiny-llama")),
        ("model=glob(smollm2-*)", ("smollm2-135m", "smollm2-360m")),
        ("workload=train,forward", ("train", "forward")),
    ],
)
def test_a_key_with_several_values_is_a_dimension_of_its_settled_values(override: str, values: tuple[Any, ...]) -> None:
    (dimension,) = plan(override).dimensions
    assert dimension.values == values


def test_the_values_keep_the_order_they_were_typed_in(mywork: Path) -> None:
    sweep = plan(CUSTOM, "workload.target=mywork:threshold", "context=1", "workload.params.limit=8", "batch=16,32,64,8")
    assert along(sweep, "batch") == [(16,), (32,), (64,), (8,)]


def test_a_spelling_of_the_same_value_is_measured_once() -> None:
    assert len(plan("dtype=half,float16,torch.float16").points) == 1


def test_nested_keys_of_an_option_that_is_not_the_default_can_be_swept() -> None:
    assert along(plan("model=mlp", "model.width=512,1024"), "model.width") == [(512,), (1024,)]


def test_a_key_that_every_swept_option_has_can_be_fixed(options: Callable[[str, str], str]) -> None:
    folder = options("model/wide", "{name: wide, library: torch, width: 9}")
    sweep = plan("-cd", folder, "model=mlp,wide", "model.width=64")
    assert along(sweep, "model", "model.width") == [("mlp", 64), ("wide", 64)]


def test_a_value_can_refer_to_another_key() -> None:
    assert along(plan("batch=${context}", "context=3,4"), "batch", "context") == [(3, 3), (4, 4)]


def test_the_settings_of_a_point_are_its_values_that_are_not_defaults_and_the_expressions_that_follow_others(
    mywork: Path,
) -> None:
    target = "workload.target=mywork:threshold"
    sweep = plan(CUSTOM, target, "batch=1,2", "context=${batch}", "dtype=fp32", "warmup=0", "budget=1MiB")
    typed = {"workload.target": "mywork:threshold", "context": "${batch}", "budget": 2**20}
    assert [sweep.settler.settings[point.id] for point in sweep.points] == [typed, {**typed, "batch": 2}]


def test_settings_are_compared_with_the_defaults_of_the_options_that_an_experiment_chose(
    options: Callable[[str, str], str],
) -> None:
    text = """\
        # @package _global_
        defaults: [{override /model: mlp}, {override /workload: train}, {override /inputs: usual}]
        dtype: bfloat16
        workload: {optimizer: sgd}
    """
    folder = options("experiment/mine", text)
    sweep = plan("-cd", folder, "experiment=mine", "inputs=synthetic", "model.width=64,512", "workload.lr=0.1")
    fixed = {"workload.optimizer": "sgd", "workload.lr": 0.1, "dtype": "bfloat16"}
    narrow, usual = (sweep.settler.settings[point.id] for point in sweep.points)
    assert (narrow, usual) == ({**fixed, "model.width": 64}, fixed)
    sweep = plan("inputs=limit", "model=gpt2")
    assert sweep.settler.settings[sweep.points[0].id] == {
        "inputs": "limit",
        "context": 1024,
    }


def test_a_step_of_a_key_that_another_follows_is_one_change(mywork: Path) -> None:
    sweep = plan(
        CUSTOM, "workload.target=mywork:threshold", "workload.params.limit='${batch}','${context}'", "batch=1,2"
    )
    assert [each.changed for each in sweep.first_batch] == [(), ("batch",), ("workload.params.limit",), ("batch",)]


def test_a_search_is_refused_where_another_key_shrinks_with_the_searched_one() -> None:
    words = ("workload=generate", "model=gpt2", "inputs=limit", "workload.new_tokens=1,512")
    assert refused("design=frontier", *words) == (
        "design=frontier: context shrinks from 1023 to 512 while workload.new_tokens grows, so more of"
        " workload.new_tokens need not take more memory; list its values with design=grid"
    )
    assert len(plan(*words).points) == 2


def test_a_list_of_devices_is_one_value_however_it_is_typed() -> None:
    for typed in ("[cpu,cuda:0]", "cpu,cuda:0", "[cpu],[cuda]"):
        sweep = plan("batch=1,2", devices=typed)
        assert [device.name for device in sweep.devices] == ["cpu", "cuda:0"]
        assert len(sweep.points) == 2


def test_axes_are_a_star_with_each_point_once() -> None:
    star = plan("design=axes", "batch=1,2", "context=64,128")
    assert along(star, "batch", "context") == [(1, 64), (2, 64), (1, 128)]


def test_run_keys_are_not_in_the_id(tmp_path: Path) -> None:
    changed = plan("name=x", f"outputs={tmp_path}", "retry=oom", "heartbeat=1", "parallel=true")
    assert changed.points == plan().points


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = {
    "batch=abc": "batch=abc: must be a whole number",
    "batch=1e3": "batch=1e3: must be a whole number; write batch=1000",
    "batch=1,2.0": "batch=1,2.0: must be a whole number; write batch=1,2",
    "batch=true": "batch=true: must be a whole number",
    "batch=[1,2]": "batch=[1,2]: must be a whole number",
    "batch=null": "batch=null: must be a whole number",
    "tensors=maybe": "tensors=maybe: must be true or false",
    "timeout=soon": "timeout=soon: must be a number",
    "batch=": "batch=: a value is missing",
    "batch=1,": "cannot read 'batch=1,'",
    "batch==1": "cannot read 'batch==1'",
    "batch": "batch: no key=value; write sweeper batch=VALUE",
    "btach=1,2": "no such key: btach (did you mean batch?)",
    "btach=1": "no such key: btach (did you mean batch?)",
    "desing=axes": "no such key: desing (did you mean design?)",
    "expermient=x": "no such key: expermient (did you mean experiment?)",
    "+extra.foo=1": "no such key: extra.foo",
    "card=x": "no such key: card",
    "model=mpl": "model=mpl: no such model (did you mean mlp?); sweeper --help model lists all ",
    "model=${batch}": "model=${batch}: must be an option's name; a group cannot follow another key",
    "model=mlp,${batch}": "model=${batch}: must be an option's name; a group cannot follow another key",
    "workload=${none}": "workload=${none}: must be an option's name; a group cannot follow another key",
    "design=${batch}": "design=${batch}: must be an option's name; a group cannot follow another key",
    "model=350": "model=350: no such model; there are ",
    "model=mlp,mpl": "model=mpl: no such model (did you mean mlp?); sweeper --help model lists all ",
    "model=[mlp,gpt2]": 'model=["mlp","gpt2"]: takes one option',
    "model=null": "model=null: must be one of ",
    "model={a:1}": 'model={"a":1}: takes one option',
    "model@x=mlp": "model@x=mlp: a group cannot be put elsewhere",
    "model=glob(zz*)": "model=glob(zz*): matches nothing",
    "model.widht=3": "no such key: model.widht with model=tiny-llama",
    "model.config.hidden_sise=3": (
        "no such key: model.config.hidden_sise with model=tiny-llama (did you mean model.config.hidden_size?)"
    ),
    "model.config.hidden_size=wide": "model.config.hidden_size=wide: must be a whole number; it is 256 now",
    "model.config.hidden_size=8.0": "model.config.hidden_size=8.0: must be a whole number; it is 256 now; write ",
    "model.name=x": "model.name defines model=tiny-llama and cannot be changed",
    "workload.uses=[batch]": "workload.uses defines workload=forward and cannot be changed",
    "workload.concurrency=2": "no such key: workload.concurrency; it is called workload.prompt_lengths, the number of",
    "workload.params.x=1": "workload.params.x: workload=forward takes no params",
    "workload=custom": "workload.target has no value",
    "model=pretrained": "model.path has no value",
    "warmup=null": "warmup has no value, and workload=forward uses it",
    "batch=interval(1,4)": "batch=interval(1,4): design=grid lists its values",
    "batch=interval(4,1)": "batch=interval(4,1): give the smaller one first",
    "batch=interval(1,inf)": "batch=interval(1,inf): an interval has two whole numbers",
    "batch=interval(1,2.5)": "batch=interval(1,2.5): an interval has two whole numbers",
    "resolution.batch=2": "resolution.batch=2: must name an interval that is searched (there is none)",
    "margin.spread=1GX": "margin.spread=1GX: must be a size",
    "margin.safety=measured": "margin.safety=measured: a run measures spread, evaluation, export, longest",
    "margin.spread=calculated": "margin.spread=calculated: a run calculates evaluation, export, longest_input, unseen",
    "confirm=twice": "confirm=twice: must be edge, all or none, audit:8, or both, as in all+audit:8",
    "confirm=audit:0": "confirm=audit:0: must be edge, all or none, audit:8, or both, as in all+audit:8",
    "confirm=some+audit:8": "confirm=some+audit:8: must be edge, all or none, audit:8, or both, as in all+audit:8",
    "batch=interval(1,4),8": "an interval cannot be combined with other values",
    "objective=dtype": "objective=dtype: dtype is float32, which is not a number",
    "repeat_points=0": "repeat_points=0: must be 1 or more",
    "batch=range(1,1)": "batch=range(1,1): is empty",
    "timeout=range(0.1,0.5,0.1)": "timeout=range(0.1,0.5,0.1): a range counts in whole numbers",
    "batch=range(1,4,0)": "batch=range(1,4,0): a range with step 0",
    "design=grid,axes": "design=grid,axes: one design at a time",
    "experiment=a,b": "experiment=a,b: one experiment at a time",
    "design=frontier": "design=frontier: there is nothing to search",
    "model=mlp attention=sdpa": "attention=sdpa: mlp has no attention; leave it out or choose another model",
    "model=mlp workload=generate": "workload=generate: mlp generates no tokens; choose a decoder, as in",
    "model=gpt2 context=4096": "context=4096: gpt2 has 1024 positions; at most 1024 fit",
    "model=pretrained model.path=/nosuch": "model.path=/nosuch: no such folder",
    "model=pretrained model.path=..": "model.path=..: the folder has no config.json; name the one of a checkpoint",
    "model=gpt2,mlp model.config.n_layer=2": "no such key: model.config.n_layer with model=mlp",
    "model=gpt2,mlp model.config.num_hidden_layers=2": (
        "no such key: model.config.num_hidden_layers with model=gpt2 and model=mlp; give each model a sweep with keys"
    ),
    "design=nope": "design=nope: no such design",
    "design=list": "design=list: there are no points",
    "experiment=nosuch": "experiment=nosuch: no such experiment",
    "~warmup": "~warmup: a key cannot be removed",
    "grid.batch=[1]": "grid.batch: for experiment files",
    "outputs=a,b": "outputs=a,b: outputs takes one value",
    "name=a/b": "name=a/b: must be letters",
    "python=/nosuch/python": "python=/nosuch/python: is neither",
    "hydra.mode=RUN": "hydra.mode=RUN: sweeper does not use it; sweeper plans and starts its own processes",
    "hydra/launcher=joblib": "hydra/launcher=joblib: sweeper does not use it; sweeper plans and starts its own",
    "hydra.nosuch=1": "hydra.nosuch=1: sweeper does not use it; leave it out",
    "hydra.searchpath=[file:///nosuch]": "provider=hydra.searchpath",
    "--run": "--run is not supported",
    "-cn=mine": "-cn is not supported",
    "--frob": "no such flag: --frob",
    "--resolve": "--resolve and --package change how",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_a_mistake_is_one_line_that_names_it(typed: str) -> None:
    assert refused(*typed.split()).startswith(REFUSED[typed])


def test_a_combination_that_no_model_can_do_stays_in_a_sweep_in_which_a_part_of_it_varies() -> None:
    assert len(plan("model=gpt2", "context=1024,4096").points) == 2
    assert len(plan("model=gpt2,tiny-llama", "context=4096").points) == 2
    assert plan("model=gpt2", "context=interval(1,4096)", "design=frontier").points


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["workload.cache=quantized"], "workload.cache=quantized: each chunk would be quantized anew"),
        (["workload.cache=dynamic,quantized"], "workload.cache=quantized: each chunk would be quantized anew"),
        (["model=tiny-mamba"], "model=tiny-mamba (mamba): its layers cannot continue a prompt"),
        (["model=tiny-llama,tiny-jamba"], "model=tiny-jamba (jamba): its layers cannot continue a prompt"),
    ],
)
def test_chunks_of_a_prompt_that_cannot_be_continued_are_refused_before_anything_runs(
    words: list[str], mistake: str
) -> None:
    said = refused("workload=generate", "workload.prefill_chunk=16", *words)
    assert said == f"workload.prefill_chunk=16 with {mistake}; leave out one of them"
    whole = plan("workload=generate", "workload.prefill_chunk=16", *words, "context=16")
    assert {point["workload.prefill_chunk"] for point in whole.points} == {16}


def test_levers_leave_out_chunks_that_cannot_be_combined_with_a_cache() -> None:
    words = ["workload=generate", "design=levers", "context=64", "batch=2,1"]
    assert plan(*words, "workload.prefill_chunk=null,16", "workload.cache=dynamic,quantized").dimensions
    assert plan(*words, "workload.prefill_chunk=null,16", "model=tiny-mamba").dimensions


def test_the_actual_mistake_is_named_when_another_key_is_swept() -> None:
    assert refused("batch=1,2", "nosuch=3").startswith("no such key: nosuch")
    assert refused("batch=1,2", "model=nope").startswith("model=nope: no such model")
    assert refused("model=mlp,tiny-llama", "model.width=64") == (
        "no such key: model.width with model=tiny-llama; write model.config.hidden_size=64"
    )


@pytest.mark.parametrize("second", ["batch=4", "batch=4,8", "++batch=4", "+batch=4"])
def test_a_key_is_given_once(second: str) -> None:
    assert refused("batch=1,2", second) == "batch is given twice: write batch=A,B to try both"


@pytest.mark.parametrize("bad", ["[gpu]", "[cuda:x]", "[CUDA:0]", "[cuda:-1]", "[]", "cpu,gpu", "sim:h100"])
def test_a_bad_device_is_refused(bad: str) -> None:
    assert refused(devices=bad).startswith("devices=")


def test_two_options_of_the_same_name_are_refused(options: Callable[[str, str], str]) -> None:
    folder = options("model/other", "{name: mlp, library: torch, width: 9}")
    assert "both are named mlp" in refused("-cd", folder, "model=mlp,other")


def test_a_missing_folder_of_options_is_refused() -> None:
    assert refused("-cd", "/nosuch") == "--config-dir /nosuch: no such folder"


def test_an_interval_is_never_listed_and_both_ends_are_checked() -> None:
    ends = ["batch=interval(1,1000000)", "context=interval(256,131072)"]
    sweep = plan("design=frontier", *ends, "resolution.context=256")
    batch, context = (dimension.values for dimension in sweep.dimensions)
    assert (len(batch), batch[0], batch[-1]) == (10**6, 1, 10**6)
    assert (len(context), context[1]) == (512, 512)
    assert refused("design=frontier", "batch=interval(0,8)").startswith("batch=0: must be 1 or more")
    fine = "resolution.batch=0: must be a whole number, 1 or more"
    assert refused("design=frontier", "batch=interval(1,8)", "resolution.batch=0") == fine


def test_a_key_that_ends_in_tokens_is_an_objective_of_its_own() -> None:
    sweep = plan("workload=generate", "workload.new_tokens=4,8", "objective=workload.new_tokens")
    assert str(sweep.run.objective) == "workload.new_tokens"


def test_a_product_is_an_objective_without_quotes() -> None:
    assert plan("batch=1,2", "objective=batch^2*context").run.objective.exponents == {"batch": 2, "context": 1}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("workload.evaluation=5", "workload.evaluation=5: has keys of its own, as in workload.evaluation.batch=5"),
        ("workload.targets=5", "workload.targets=5: must be a list or a word"),
    ],
)
def test_a_number_does_not_replace_a_mapping_or_a_list(typed: str, message: str) -> None:
    assert refused("workload=train", "workload.method=lora", typed).startswith(message)


def test_a_frontier_of_listed_values_plans_every_point() -> None:
    sweep = plan("design=frontier", "batch=4,1,2", "context=8,16")
    assert len(sweep.points) == 6


# --- workloads of the user's own --------------------------------------------------------------------------------------


def test_params_need_no_plus_and_can_be_swept(mywork: Path) -> None:
    sweep = plan(CUSTOM, "workload.target=mywork:threshold", "workload.params.deep.x=1,2", "workload.params.s='a,b'")
    assert along(sweep, "workload.params.deep.x", "workload.params.s") == [(1, "a,b"), (2, "a,b")]
    assert plan(CUSTOM, "workload.target=mywork:threshold", "workload.params.x=[1,2],[3]").dimensions[0].values == (
        [1, 2],
        [3],
    )


def test_a_swept_value_that_is_not_json_is_refused(mywork: Path) -> None:
    custom = [CUSTOM, "workload.target=mywork:threshold"]
    assert refused(*custom, "workload.params.x=nan,1").startswith("workload.params.x=nan: must be a finite number")


def test_keys_that_a_function_does_not_accept_are_null_in_its_points(mywork: Path) -> None:
    narrow = [CUSTOM, "workload.target=mywork:narrow"]
    (point,) = plan(*narrow).points
    assert [point[key] for key in ("model", "context", "warmup")] == [None] * 3


@pytest.mark.parametrize(
    ("target", "overrides", "message"),
    [
        ("narrow", ["context=1,2"], "context has several values, and mywork:narrow takes no context"),
        ("narrow", ["warmup=0,3"], "warmup has several values, and mywork:narrow takes no warmup"),
        ("threshold", ["model=mlp,gpt2"], "model has several values, and workload=custom does not use it"),
        (
            "narrow",
            ["workload.params.widht=4"],
            "workload.params.widht: mywork:narrow takes no widht (did you mean width?)",
        ),
        ("narrow", ["workload.params.x=1,2"], "workload.params.x: mywork:narrow takes no x"),
        ("needy", [], "workload.params.width: mywork:needy needs it, as in workload.params.width=1"),
    ],
)
def test_a_key_that_a_function_does_not_accept_is_refused(
    mywork: Path, target: str, overrides: list[str], message: str
) -> None:
    assert refused(CUSTOM, f"workload.target=mywork:{target}", *overrides) == message


def test_a_parameter_of_a_function_that_takes_anything_is_in_the_point(mywork: Path) -> None:
    (point,) = plan(CUSTOM, "workload.target=mywork:threshold", "workload.params.limt=4").points
    assert point["workload.params.limt"] == 4


def test_a_function_that_cannot_be_imported_is_refused_with_the_root_cause(mywork: Path) -> None:
    (mywork / "broken.py").write_text("import not_there\n")
    assert "not_there" in refused(CUSTOM, "workload.target=broken:run")
    assert "nope" in refused(CUSTOM, "workload.target=mywork:nope")
    assert "nomodule" in refused(CUSTOM, "workload.target=nomodule:run")


def test_several_functions_can_be_compared(mywork: Path) -> None:
    sweep = plan(CUSTOM, "workload.target=mywork:narrow,mywork:threshold", "batch=1,2")
    assert len(sweep.points) == 4


def test_a_function_is_found_through_pythonpath(mywork: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mywork / "elsewhere").mkdir()
    monkeypatch.chdir(mywork / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", str(mywork))
    assert plan(CUSTOM, "workload.target=mywork:narrow").points


def test_an_interpreter_that_cannot_be_probed_is_named(mywork: Path) -> None:
    python = mywork / "python"
    python.write_text("#!/bin/sh\necho 'no such luck' >&2; exit 3\n")
    python.chmod(0o755)
    message = refused(CUSTOM, "workload.target=mywork:narrow", f"python={python}")
    assert message == f"python={python}: cannot be probed: no such luck"


@pytest.mark.parametrize(
    ("group", "text", "missing"),
    [
        ("model", "foo: 1", "name is missing, as in name: mine"),
        ("model", "name: mine", "library is missing, as in library: transformers"),
        ("model", "{name: mine, library: torch}", "width is missing, as in width: 512"),
        ("model", "{name: mine, library: transformers}", "model_type is missing, as in model_type: llama"),
        ("workload", "foo: 1", "name is missing, as in name: mine"),
    ],
)
def test_a_file_of_the_users_that_lacks_a_key_is_named(tmp_path: Path, group: str, text: str, missing: str) -> None:
    path = tmp_path / group / "mine.yaml"
    path.parent.mkdir()
    path.write_text(text)
    assert refused(f"{group}=mine", "-cd", str(tmp_path)) == f"{path}: {missing}"


def test_another_program_than_python_is_no_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "ls"
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo ls 9.1 && exit\necho "cannot access $5" >&2; exit 2\n')
    python.chmod(0o755)
    message = refused(CUSTOM, "workload.target=mywork:narrow", f"python={python}")
    assert message == f"python={python}: is no Python interpreter, but ls 9.1"


def test_the_gpus_are_those_the_measured_interpreter_sees(tmp_path: Path) -> None:
    gpus = [{"index": 0, "name": "H100", "uuid": "GPU-a", "total_bytes": 2**36, "idle": True, "capability": "9.0"}]
    answer = {"torch": "2.13.0", "torch_error": None, "gpus": gpus, "gpus_error": None, "target": None}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat <<'EOF'\nwhat a library prints\n{json.dumps(answer)}\nEOF\n")
    python.chmod(0o755)
    first, second = plan(f"python={python}", devices="cuda:0,cuda:1").devices
    assert (first.uuid, first.total_bytes, first.unavailable) == ("GPU-a", 2**36, None)
    assert second.unavailable == "there is no cuda:1 here, but cuda:0"


# --- experiments ------------------------------------------------------------------------------------------------------


def test_a_grid_in_a_file_equals_the_typed_one(options: Callable[[str, str], str]) -> None:
    folder = options(
        "experiment/mine",
        """\
        # @package _global_
        defaults: [override /workload: train]
        name: mine
        grid: {batch: [1, 2], context: "8,16", model: [mlp], model.width: [64]}
        """,
    )
    from_file = plan("-cd", folder, "experiment=mine")
    typed = plan("workload=train", "name=mine", "batch=1,2", "context=8,16", "model=mlp,mlp", "model.width=64,64")
    assert (from_file.points, from_file.dimensions, from_file.run) == (typed.points, typed.dimensions, typed.run)


def test_the_command_line_overrides_a_file_key_by_key(options: Callable[[str, str], str]) -> None:
    folder = options("experiment/mine", "# @package _global_\ngrid: {batch: [1, 2], context: [8, 16]}\nseed: 5\n")
    mine = ["-cd", folder, "experiment=mine"]
    assert along(plan(*mine, "batch=4"), "batch", "context") == [(4, 8), (4, 16)]
    assert along(plan(*mine, "context=1,2", "batch=4"), "batch", "context") == [(4, 1), (4, 2)]
    assert [each.key for each in plan(*mine, "timeout=5,6").dimensions] == ["timeout", "batch", "context"]
    assert along(plan(*mine, "batch=4", "context=1", "seed=6"), "seed") == [(6,)]


def test_points_in_a_file_are_planned_in_the_order_listed(options: Callable[[str, str], str]) -> None:
    folder = options(
        "experiment/mine",
        """\
        # @package _global_
        points:
          - {batch: 2, context: 8}
          - {model: mlp, model.width: 64, batch: 1}
          - {batch: 2, context: 8}
        """,
    )
    mine = ["-cd", folder, "experiment=mine"]
    assert plan(*mine).design == "list"
    assert along(plan(*mine), "model", "model.width", "batch", "context") == [
        ("tiny-llama", None, 2, 8), ("mlp", 64, 1, 512),
    ]  # fmt: skip
    assert along(plan(*mine, "batch=3"), "batch") == [(3,), (3,)]
    assert along(plan(*mine, "seed=1,2"), "seed", "batch") == [(1, 2), (1, 1), (2, 2), (2, 1)]
    assert len(plan(*mine, "warmup=0,3").points) == 4
    assert refused(*mine, "design=axes").startswith("design=axes: the experiment lists its points")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid: {batch: 4}", "grid: batch: must be a list of values"),
        ("grid: {batch: []}", "grid: batch: must be a list of values"),
        ("grid: {btach: [1, 2]}", "no such key: btach (did you mean batch?)"),
        ("grid: {devices: [cpu, cuda]}", "grid: devices: is a key of the run"),
        ("points: [4]", "points: 4: must be keys and values"),
        ("points: [{name: x}]", "points: name: is a key of the run"),
        ("{grid: {batch: [1]}, points: [{batch: 1}]}", "the experiment has both"),
        ("batch: 1.5", "batch=1.5: must be a whole number"),
        ("bacth: 1", "no such key: bacth"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(options: Callable[[str, str], str], text: str, message: str) -> None:
    folder = options("experiment/mine", f"# @package _global_\n{text}\n")
    assert message in refused("-cd", folder, "experiment=mine")


OF_HYDRA = {
    "hydra: {sweeper: {params: {batch: '1,2'}}}": "hydra.sweeper.params.batch: an experiment file",
    "hydra: {job: {env_set: {X: 1}}}": "hydra.job.env_set.X: env.NAME=VALUE sets",
    "hydra: {job: {chdir: true}}": "hydra.job.chdir: a workload runs in",
    "hydra: {run: {dir: x}}": "hydra.run.dir: outputs= and name= choose",
    "hydra: {sweep: {dir: x}}": "hydra.sweep.dir: outputs= and name= choose",
    "hydra: {mode: RUN}": "hydra.mode: sweeper plans",
    "defaults: [{override /hydra/launcher: basic}]": "hydra/launcher: sweeper plans",
    "defaults: [{override /hydra/sweeper: basic}]": "hydra/sweeper: an experiment file",
}


@pytest.mark.parametrize("text", OF_HYDRA)
@pytest.mark.parametrize("group", ["experiment", "model"])
def test_a_key_of_hydra_in_a_file_is_refused_with_what_replaces_it(
    options: Callable[[str, str], str], text: str, group: str
) -> None:
    model = "model: {name: mine, library: torch, width: 8}"
    folder = options(f"{group}/mine", f"# @package _global_\n{text}\n{model if group == 'model' else ''}\n")
    key, instead = OF_HYDRA[text].split(": ")
    expected = rf".*/{group}/mine\.yaml, line 2: {key}: sweeper does not use it; {instead}"
    assert re.match(expected, refused("-cd", folder, f"{group}=mine"))


def test_a_key_of_hydra_in_a_file_that_another_includes_is_refused(options: Callable[[str, str], str]) -> None:
    options("experiment/inner", "# @package _global_\nhydra: {job: {chdir: true}}\n")
    folder = options("experiment/mine", "# @package _global_\ndefaults: [inner]\nbatch: 2\n")
    expected = r".*/experiment/inner\.yaml, line 2: hydra\.job\.chdir: sweeper does not use it; a workload"
    assert re.match(expected, refused("-cd", folder, "experiment=mine"))


def test_an_environment_variable_keeps_its_text_and_can_be_swept(options: Callable[[str, str], str]) -> None:
    key = "env.MALLOC_ARENA_MAX"
    assert along(plan(f"{key}=007,1e3,true,null,'a,b'"), key) == [("007",), ("1e3",), ("true",), (None,), ("a,b",)]
    assert along(plan("env.X=fold_${batch}", "env.E=", "batch=1,2"), "env.X", "env.E") == [
        ("fold_1", ""),
        ("fold_2", ""),
    ]
    folder = options("experiment/mine", "# @package _global_\nenv: {X: a}\ngrid: {env.MALLOC_ARENA_MAX: [1, 2]}\n")
    assert along(plan("-cd", folder, "experiment=mine"), key, "env.X") == [("1", "a"), ("2", "a")]
    sweep = plan(f"{key}=choice(1,2)")
    assert sweep.settler.settings[sweep.points[1].id] == {key: "2"}


@pytest.mark.parametrize("word", ["env.PYTORCH_ALLOC_CONF=x", "env.PYTORCH_CUDA_ALLOC_CONF=x,y"])
def test_settings_of_cudas_allocator_are_refused_on_a_calculated_device(word: str) -> None:
    assert "has no effect on devices=sim:rtx-4090" in refused(word, devices="sim:rtx-4090")
    assert plan(word).points


RUN_KEYS_THAT_FOLLOW = (
    "name=b${batch}", "outputs=o/${batch}", "devices=['cuda:${batch}']", "heartbeat=${batch}", "repeat_points=${batch}",
    "stop_after_same_error=${batch}", "retry=['${batch}']", "objective='${batch}'", "margin.mine=${batch}",
    "python=${batch}", "quality.tolerance=${batch}", "confirm=${batch}", "resume=${batch}", "trace=${batch}",
)  # fmt: skip


@pytest.mark.parametrize("word", RUN_KEYS_THAT_FOLLOW)
def test_a_key_of_the_run_that_follows_a_swept_key_is_refused(word: str) -> None:
    message = refused(word, "batch=1,2", devices=None if word.startswith("devices") else "cpu")
    assert message.startswith(word.partition("=")[0])
    assert "a key of the run has one value for all points, and this one follows batch, which has several" in message


def test_a_key_of_the_run_may_refer_to_a_key_with_one_value(options: Callable[[str, str], str]) -> None:
    assert plan("name=b${batch}-${model.name}", "batch=4", "context=8,16", "model=mlp").run.name == "b4-mlp"
    assert "follows model" in refused("name=${model.name}", "model=mlp,gpt2")
    new_tokens = ("workload=generate", "workload.new_tokens=${batch}", "name=n${workload.new_tokens}")
    assert "follows batch" in refused(*new_tokens, "design=frontier", "batch=interval(1,4)")
    text = "# @package _global_\nname: e${batch}\npoints: [{batch: 1}, {batch: 2}]\n"
    assert "follows batch" in refused("-cd", options("experiment/mine", text), "experiment=mine")
    assert refused("name=x${hydra:job.num}") == "name: ${hydra:...} has no value, since Hydra runs no job here"


def test_a_batch_that_cannot_be_split_is_refused_in_a_grid_and_in_an_interval() -> None:
    train = ("workload=train", "workload.accumulate=4")
    assert "batch=6 cannot be split" in refused(*train, "batch=4,6")
    assert "batch=5 cannot be split" in refused(*train, "design=frontier", "batch=interval(4,64)")
    assert "batch=2 cannot be split" in refused(*train, "design=frontier", "batch=interval(2,64)", "resolution.batch=4")
    assert plan(*train, "design=frontier", "batch=interval(4,64)", "resolution.batch=4").dimensions


def test_every_experiment_in_conf_settles() -> None:
    for file in (CONF / "experiment").glob("*.yaml"):
        assert plan(f"experiment={file.stem}").points


def test_every_model_in_conf_settles_and_has_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for file in (CONF / "model").glob("*.yaml"):
        path = [f"model.path={tmp_path}"] if file.stem == "pretrained" else []
        (point,) = plan(f"model={file.stem}", "context=64", *path).points
        assert point["model"] == file.stem


# --- how --------------------------------------------------------------------------------------------------------------


TYPED: dict[str, dict[str, Any]] = {  # key -> as it is typed: the value it has
    "model": {"mlp": "mlp", "tiny-llama": "tiny-llama"},
    "workload": {"forward": "forward", "train": "train"},
    "batch": {"1": 1, "${seed}": "${seed}", "7": 7},
    "seed": {"2": 2, "3": 3},
    "dtype": {"float32": "float32", "'bfloat16'": "bfloat16"},
    "timeout": {"null": None, "5": 5, "2.5": 2.5},
    "warmup": {"0": 0, "4": 4},
    "tensors": {"true": True, "false": False},
}


def test_a_point_is_what_hydra_itself_would_compose() -> None:
    sweep = plan(*(f"{key}={','.join(values)}" for key, values in TYPED.items()))
    every = list(itertools.product(*TYPED.values()))
    assert len(sweep.points) == len(every)
    for chosen in random.Random(0).sample(every, 40):
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            composed = compose("config", overrides=[f"{key}={text}" for key, text in zip(TYPED, chosen, strict=True)])
        point = sweep.settle({key: TYPED[key][text] for key, text in zip(TYPED, chosen, strict=True)})
        assert point in sweep.points
        assert point.values["model"] == composed.model
        for key in TYPED:
            assert point[key] == (composed[key].name if key in ("model", "workload") else composed[key])


def test_a_thousand_points_take_a_second() -> None:
    before = time.process_time()
    assert len(plan("batch=range(1,101)", "context=range(1,11)").points) == 1000
    assert time.process_time() - before < 2  # 0.6 on an idle machine; composing each would take 50


def test_a_file_that_is_edited_after_the_plan_changes_no_point(options: Callable[[str, str], str]) -> None:
    folder = options("model/mine", "{name: mine, library: torch, width: 9}")
    sweep = plan("-cd", folder, "model=mine", "batch=1,2")
    options("model/mine", "{name: mine, library: torch, width: 10}")
    assert sweep.settle({"batch": 8})["model.width"] == 9
    assert [each.point for each in next(DESIGNS["grid"](sweep))] == list(sweep.points)


def test_a_plan_settles_choices_that_were_not_planned() -> None:
    sweep = plan("batch=1,2", "context=8,16")
    point = sweep.settle({"batch": 64, "context": 8})
    assert isinstance(point, Point)
    assert point["batch"] == 64
    with pytest.raises(Mistake, match="batch=0"):
        sweep.settle({"batch": 0, "context": 8})


def test_planning_leaves_the_process_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment, argv = dict(os.environ), list(sys.argv)
    plan_anew("batch=1,2")
    with pytest.raises(Mistake, match="must be a whole number"):
        plan_anew("batch=abc")
    assert (dict(os.environ), sys.argv) == (environment, argv)
    assert list(tmp_path.iterdir()) == []


def test_our_sweeper_is_registered_once_and_others_stay() -> None:
    plan_anew()
    plan_anew()
    names = [each.__name__ for each in Plugins.instance().discover(Sweeper)]
    assert names.count("DesignSweeper") == 1
    assert "BasicSweeper" in names


# --- parameters given together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["workload.params={width:1},{width:2}"],
        ["workload.params=choice({width:1},{width:2})"],
        ["experiment=points"],
        ["experiment=grid"],
        ["experiment=typed"],
    ],
)
def test_parameters_can_be_swept_together(mywork: Path, options: Callable[[str, str], str], words: list[str]) -> None:
    for name, text in {
        "points": "points: [{workload.params: {width: 1}}, {workload.params: {width: 2}}]",
        "grid": "grid: {workload.params: [{width: 1}, {width: 2}]}",
        "typed": "grid: {workload.params: '{width: 1},{width: 2}'}",
    }.items():
        folder = options(f"experiment/{name}", f"# @package _global_\n{text}\n")
    found = plan("-cd", folder, CUSTOM, "workload.target=mywork:narrow", *words)
    assert along(found, "workload.params.width") == [(1,), (2,)]
    assert [each.key for each in found.dimensions] == ["workload.params"]


def test_a_parameter_beside_those_that_are_swept_together_holds_for_all_of_them(mywork: Path) -> None:
    words = [CUSTOM, "workload.target=mywork:threshold", "workload.params={limit:1},{limit:2}"]
    found = plan(*words, "workload.params.other=3")
    assert along(found, "workload.params.limit", "workload.params.other") == [(1, 3), (2, 3)]
    expected = 'workload.params.limit is given twice, by itself and in workload.params={"limit":1}; keep one'
    assert refused(*words, "workload.params.limit=3") == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["workload.params={width:1},{nosuch:2}"], "workload.params.nosuch: mywork:narrow takes no nosuch"),
        (["workload.params={width:1},2"], "workload.params=2: has keys of its own, as in workload.params.KEY=2"),
        (["workload.params.width=1", "env={A:1},{A:2}"], 'env={"A":1}: write each variable, as in env.A=1,2'),
    ],
)
def test_a_mistake_in_values_given_together_names_its_key(mywork: Path, words: list[str], message: str) -> None:
    assert refused(CUSTOM, "workload.target=mywork:narrow", *words) == message


def test_parameters_of_a_workload_without_any_are_refused_in_a_file_too(options: Callable[[str, str], str]) -> None:
    folder = options("experiment/mine", "# @package _global_\nworkload:\n  params: {width: 1}\n")
    message = "workload.params.width: workload=forward takes no params; workload=custom does"
    assert refused("-cd", folder, "experiment=mine").endswith(f"mine.yaml, line 3: {message}")

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture
def call(run: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a function that is written out, of a module of its own."""
    made = []

    def call(code: str, name: str = "run", **changes: Any) -> Any:
        folder: Path = tmp_path_factory.mktemp("user")
        module = f"users_{folder.name.replace('-', '_')}_{len(made)}"
        made.append(module)
        (folder / f"{module}.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(folder)
        workload = {"target": f"{module}:{name}", "params": changes.pop("params", {})}
        return run("custom", model=None, workload=workload, **changes)

    return call


def test_a_function_receives_the_arguments_that_it_names(call: Any) -> None:
    code = """
    def run(*, batch, context, dtype, device, warmup, repeats, seed, width):
        return dict(locals())
    """
    recorded = call(code, params={"width": 3}, warmup=4, repeats=5, seed=6).returned["metrics"]
    assert recorded == {
        "batch": 2, "context": 8, "dtype": "float32", "device": "cpu", "warmup": 4, "repeats": 5, "seed": 6, "width": 3,
    }  # fmt: skip


def test_a_function_receives_no_argument_that_it_does_not_name(call: Any) -> None:
    assert call("def run(batch): return batch").returned["metrics"] == {"result": 2}
    assert call("def run(): pass").returned["metrics"] == {}


def test_a_function_that_takes_anything_gets_all_of_it_but_the_phase(call: Any) -> None:
    recorded = call("def run(**all): return sorted(all)", params={"width": 3}).returned["metrics"]["result"]
    assert recorded == sorted(["batch", "context", "dtype", "device", "warmup", "repeats", "seed", "width"])


def test_a_function_without_phases_is_one_phase(call: Any) -> None:
    assert call("def run(**_): pass").names == [("run", None)]


def test_a_function_marks_its_own_phases(call: Any) -> None:
    code = """
    def run(phase, **_):
        for step in range(2):
            with phase("step", step) as notes:
                notes.metrics["loss"] = 1.5
    """
    result = call(code)
    assert result.names == [("step", 0), ("step", 1)]
    assert result.phase("step", 1)["metrics"] == {"loss": 1.5}


def test_methods_and_other_callables_can_be_named(call: Any) -> None:
    code = """
    class Case:
        @staticmethod
        def measure(batch): return batch * 10
    """
    assert call(code, "Case.measure").returned["metrics"] == {"result": 20}


@pytest.mark.parametrize(
    ("returned", "metrics"),
    [
        ("None", {}),
        ("1.5", {"result": 1.5}),
        ("[1, 2]", {"result": [1, 2]}),
        ("{'loss': 1, 'why': None, 2: True}", {"loss": 1, "why": None, "2": True}),
        ("{'loss': float('nan'), 'high': [float('-inf')]}", {"loss": "nan", "high": ["-inf"]}),
        ("{'loss': __import__('torch').tensor(0.5)}", {"loss": 0.5}),
        ("{'count': __import__('numpy').int64(2**53 + 1)}", {"count": 2**53 + 1}),
        ("{'shape': {1}, 'path': '\\udc80'}", {"shape": "{1}", "path": "?"}),
    ],
)
def test_returned_values_become_metrics_in_json(call: Any, returned: str, metrics: dict[str, Any]) -> None:
    recorded = call(f"def run(**_): return {returned}").returned["metrics"]
    assert recorded == metrics
    assert json.loads(json.dumps(recorded, allow_nan=False)) == metrics


def test_a_value_that_cannot_be_printed_does_not_cost_the_measurement(call: Any) -> None:
    code = """
    class Mute:
        def __repr__(self): raise RuntimeError("no")
    def run():
        loop = []
        loop.append(loop)
        return {"mute": Mute(), "loop": loop, "meta": __import__("torch").empty((), device="meta")}
    """
    recorded = call(code).returned["metrics"]
    assert recorded["mute"].endswith(".Mute, whose repr() raised RuntimeError: no>")
    assert json.dumps(recorded)


@pytest.mark.parametrize(
    ("code", "name", "kind", "message"),
    [
        ("import not_there\ndef run(): pass", "run", ModuleNotFoundError, "not_there"),
        ("def run(): pass", "nope", AttributeError, "nope"),
        ("run = 3", "run", TypeError, "is a int, not a callable"),
        ("def run(needed): pass", "run", TypeError, "needed"),
    ],
)
def test_a_target_that_cannot_be_called_is_explained(call: Any, code: str, name: str, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        call(code, name)


def test_a_missing_module_is_named(run: Any) -> None:
    with pytest.raises(ModuleNotFoundError, match="nomodule"):
        run("custom", workload={"target": "nomodule:run", "params": {}})


def test_a_target_is_written_with_a_colon(run: Any) -> None:
    with pytest.raises(ValueError, match=r"workload.target=mywork.run: write module:function"):
        run("custom", workload={"target": "mywork.run", "params": {}})


def test_a_parameter_that_the_function_does_not_take_is_named(call: Any) -> None:
    with pytest.raises(TypeError, match=r"workload.params.limt: .* takes limit"):
        call("def run(limit=1): pass", params={"limt": 4})


def test_a_parameter_cannot_hide_a_key(call: Any) -> None:
    with pytest.raises(TypeError, match=r"workload.params.batch: batch is a top-level key"):
        call("def run(**_): pass", params={"batch": 4})


def test_exceptions_of_the_function_propagate_unchanged(call: Any) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried"):
        call("import torch\ndef run(): raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')")

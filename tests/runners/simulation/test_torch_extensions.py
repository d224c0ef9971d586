"""Operators of extensions take what their rules make, and without a rule they are refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.workloads import custom
from tests.measuring import SETTLED
from tests.programs import H100, HOST, MIB, calculated, calculated_point

PAGE = Path(__file__).parents[3] / "docs" / "calculated-devices.md"
MY_WORK = """
import torch

def run(*, device, **_):
    query = torch.ones(4, 256, 256, device=device)
    before = torch.cuda.memory_allocated()
    out = torch.ops.my_kernels.attend(query, query, query)
    return {"kept": torch.cuda.memory_allocated() - before, "peak": torch.cuda.max_memory_allocated() - before}
"""


@pytest.fixture
def kernels() -> Iterator[Any]:
    """An extension that has registered its operators, as its import does. None of them computes anything here."""
    library: Any = torch.library.Library("my_kernels", "DEF")  # type: ignore[no-untyped-call]
    library.define("attend(Tensor query, Tensor key, Tensor value) -> Tensor")
    library.define("project(Tensor input) -> Tensor")
    yield torch.ops.my_kernels
    library._destroy()


def test_the_rule_on_the_page_decides_what_an_extension_takes(
    kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rule,) = re.findall(r"<!-- tested rule -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_rules.py").write_text(rule)
    (tmp_path / "mywork.py").write_text(MY_WORK)
    monkeypatch.syspath_prepend(tmp_path)
    workload = {"name": "custom", "target": "mywork:run", "params": {}, "rules": "my_rules"}
    found = calculated_point({**SETTLED, "model": None, "workload": workload}, custom)
    assert found.returned == {"kept": MIB, "peak": 2 * MIB}  # its result, and the scores while it makes that


@pytest.mark.parametrize("card", [H100, HOST])
def test_an_operator_without_a_rule_is_refused_with_the_rule_that_it_needs(kernels: Any, card: Any) -> None:
    def program(device: str) -> None:
        kernels.project(torch.ones(4, device=device))

    error = calculated(program, card).error
    assert error is not None
    assert "no rule says which tensors it makes" in error
    assert "torch.library.register_fake('my_kernels::project')" in error
    assert "workload.rules" in error


def test_positions_that_a_rule_leaves_undefined_exist_where_the_program_uses_them_on_the_host(kernels: Any) -> None:
    """As a program suppresses boxes after it has copied them to the host: the rule makes an empty tensor."""
    kernels_of = torch.library.Library("my_kernels", "FRAGMENT")  # type: ignore[no-untyped-call]
    kernels_of.define("suppress(Tensor boxes) -> Tensor")

    def kept(boxes: torch.Tensor) -> torch.Tensor:
        return boxes.new_empty((len(boxes),), dtype=torch.long)

    torch.library.register_fake("my_kernels::suppress", kept, lib=kernels_of)

    def program(device: str) -> dict[str, Any]:
        for _ in range(20):
            held = torch.full((512,), 10**12)  # what uninitialised memory has next
            del held
            boxes = torch.rand(512, 4, device=device).cpu()
            chosen = boxes[torch.ops.my_kernels.suppress(boxes)]
        return {"chosen": list(chosen.shape)}

    found = calculated(program, H100)
    kernels_of._destroy()
    assert found.returned == {"chosen": [512, 4]}

"""When the measured interpreter is probed, and for what. The interpreter is a script of a few lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper import inquiry
from sweeper.errors import Mistake
from sweeper.planning import devices, probes
from sweeper.planning.probes import Probes

SIGNATURE = {"parameters": ["batch", "width"], "required": ["width"], "takes_any": False}
ANSWER = {"gpus": [], "target": SIGNATURE}


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    """Writes an interpreter that notes each question and then runs these lines of shell."""

    def write(lines: str) -> str:
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {tmp_path}/questions\n{lines}\n')
        script.chmod(0o755)
        return str(script)

    return write


def answering(answer: Any) -> str:
    return f"echo noise of an import\ncat <<'END'\n{json.dumps(answer)}\nEND"


def questions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "questions").read_text().splitlines()]


def test_each_probe_starts_once(python: Callable[[str], str], tmp_path: Path) -> None:
    with Probes() as probing:
        interpreter = python(answering(ANSWER))
        assert probing.devices(interpreter) == probing.devices(interpreter) == ANSWER
        signature = probing.signature(interpreter, "workload.target", "mywork:run")
        assert probing.signature(interpreter, "workload.target", "mywork:run") == signature
    assert (signature.parameters, signature.required, signature.takes_any) == (("batch", "width"), ("width",), False)
    assert questions(tmp_path) == [{"devices": True, "target": None}, {"devices": False, "target": "mywork:run"}]


def test_a_probe_that_was_started_early_is_not_started_again(python: Callable[[str], str], tmp_path: Path) -> None:
    interpreter = python(answering(ANSWER))
    arguments = [f"python={interpreter}", "devices=[cuda:0]", "workload.target=mywork:run", "batch=1,2", "-m"]
    with Probes() as probing:
        probing.foresee(arguments)
        assert probing.devices(interpreter) == ANSWER
        assert probing.signature(interpreter, "workload.target", "mywork:run").takes("width")
    assert questions(tmp_path) == [{"devices": True, "target": "mywork:run"}]


def test_swept_functions_are_probed_beside_each_other_in_one_process_each(
    python: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.planning.probes.os.cpu_count", lambda: 2)
    names = [f"mywork:run_{number}" for number in range(4)]
    interpreter = python(answering(ANSWER))
    with Probes() as probing:
        probing.foresee([f"python={interpreter}", "devices=cpu", f"workload.target={','.join([*names, names[0]])}"])
        assert [each.target for each in probing._started] == names[:2]
        assert probing.signature(interpreter, "workload.target", names[0]).takes("width")
        assert [each.target for each in probing._started] == names[:3]
        for name in (*names, *names):
            assert probing.signature(interpreter, "workload.target", name).takes("width")
    assert sorted(each["target"] for each in questions(tmp_path)) == names


@pytest.mark.parametrize("arguments", [["devices=cpu"], ["devices=sim:h100"], [], ["devices=auto", "batch=1,2"]])
def test_no_probe_starts_without_a_gpu_or_a_function(
    arguments: list[str], tmp_path: Path, python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "DRIVERS", (tmp_path / "nosuch",))
    with Probes() as probing:
        probing.foresee([f"python={python('exit 1')}", *arguments])
    assert not (tmp_path / "questions").exists()


def test_an_interpreter_that_cannot_be_one_is_reported_only_when_it_is_needed(tmp_path: Path) -> None:
    with Probes() as probing:
        probing.foresee([f"python={tmp_path / 'nosuch'}", "devices=cuda:0"])
        with pytest.raises(Mistake, match="cannot be started"):
            probing.devices(str(tmp_path / "nosuch"))


def test_a_function_that_cannot_be_imported_is_refused_with_the_cause(python: Callable[[str], str]) -> None:
    interpreter = python(answering({"target": {"error": "there is no module mywork"}}))
    with Probes() as probing, pytest.raises(Mistake, match=r"^quality.target=mywork:f: there is no module mywork$"):
        probing.signature(interpreter, "quality.target", "mywork:f")


@pytest.mark.parametrize(
    ("lines", "reason"), [("echo no such luck >&2; exit 1", "no such luck"), ("exit 3", "exit code 3")]
)
def test_a_probe_without_an_answer_is_reported(python: Callable[[str], str], lines: str, reason: str) -> None:
    with Probes() as probing, pytest.raises(Mistake, match=f"^python=.*/python: .*{reason}"):
        probing.devices(python(lines))


def test_a_probe_that_hangs_is_given_up(python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(probes, "TIMEOUT_SECONDS", 0.1)
    with Probes() as probing, pytest.raises(Mistake, match=r"no report on its devices within 0\.1 seconds"):
        probing.devices(python("exec sleep 60"))


def test_an_unused_probe_is_ended(python: Callable[[str], str]) -> None:
    with Probes() as probing:
        probing.foresee([f"python={python('exec sleep 60')}", "devices=cuda:0"])
        (started,) = probing._started
        assert started.inquiry._process.poll() is None
    assert started.inquiry._process.poll() is not None

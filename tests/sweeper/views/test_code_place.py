from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.views.code_place import RUNNERS, place_in

HEAD = "Traceback (most recent call last):\n"


def frames(*files: str) -> str:
    lines = (f'  File "{file}", line {number}, in run\n    x = 1\n' for number, file in enumerate(files, 1))
    return HEAD + "".join(lines) + "ValueError: odd\n"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ([f"{RUNNERS}/child.py", "/home/me/train.py"], "/home/me/train.py:2"),
        (
            ["/home/me/train.py", "/home/me/data.py", "/x/lib/python3.11/site-packages/torch/nn.py"],
            "/home/me/data.py:2",
        ),
        (["/home/me/train.py", "/usr/lib/python3.11/json/decoder.py", "<string>"], "/home/me/train.py:1"),
        ([f"{RUNNERS}/child.py", f"{RUNNERS}/workloads/train.py", "/x/dist-packages/torch/nn.py"], None),
        ([], None),
    ],
)
def test_the_place_of_an_error_is_the_last_frame_in_the_users_own_files(files: list[str], place: str | None) -> None:
    assert place_in(frames(*files)) == place


def test_a_place_inside_the_current_folder_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_in(frames(f"{tmp_path}/src/train.py")) == "src/train.py:1"


def test_a_syntax_error_has_the_place_that_python_names() -> None:
    assert (
        place_in(f'{HEAD}  File "/home/me/train.py", line 3\n    def (\n        ^\nSyntaxError: x\n')
        == "/home/me/train.py:3"
    )


def test_without_a_traceback_there_is_no_place() -> None:
    assert place_in(None) is None

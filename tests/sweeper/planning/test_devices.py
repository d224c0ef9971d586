"""The canonical name of each device, and the device of this machine that it refers to, given a probe's report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners import cgroups
from runners.device import CPU_CARD, Device
from runners.point import Point
from sweeper.cards import Cards
from sweeper.errors import Mistake
from sweeper.planning import devices

GIB = 2**30
H100 = {
    "name": "NVIDIA H100", "vendor": "nvidia", "architecture": "sm_90", "total_bytes": 80 * GIB, "context_bytes": GIB
}  # fmt: skip
NO_CARDS = Cards((), H100.__getitem__)  # type: ignore[arg-type, return-value]
CARDS = Cards(("h100", "twin"), lambda name: H100)


def gpu(index: int, idle: bool | None = True, total: int = 80 * GIB) -> dict[str, Any]:
    uuid = f"GPU-{index}"
    return {"index": index, "name": "H100", "uuid": uuid, "total_bytes": total, "idle": idle, "capability": "9.0"}


def answer(*gpus: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    return {"torch": "2.13.0", "torch_error": None, "gpus": list(gpus), "gpus_error": None, **others}


def resolved(names: list[str], answered: Mapping[str, Any]) -> tuple[tuple[Device, ...], list[str]]:
    reported: list[str] = []
    return devices.resolve(devices.canonical(names), lambda: answered, reported.append, NO_CARDS), reported


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVERS", (tmp_path,))


@pytest.fixture
def no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVERS", (tmp_path / "nosuch",))


def never() -> Mapping[str, Any]:
    raise AssertionError("the probe was started without need")


def test_one_device_under_two_spellings_is_one_device() -> None:
    assert devices.canonical(["cuda", "cpu", "cuda:0", "cpu"]) == ("cuda:0", "cpu")
    assert devices.canonical(["cuda+cuda:1"]) == ("cuda:0+cuda:1",)


@pytest.mark.parametrize(
    "name",
    ["gpu", "cuda:x", "CUDA:0", "cuda:-1", "cuda:01", "cuda:", "CPU", "", "cpu+cuda:0", "cuda:0+cuda",
     "mps", 0, "cuda:0,cpu"],
)  # fmt: skip
def test_an_invalid_device_is_refused_by_name(name: Any) -> None:
    with pytest.raises(Mistake, match=rf"^devices={re.escape(str(name))}: (not a device|names one device twice)"):
        devices.canonical([name])


def test_no_device_at_all_is_refused() -> None:
    with pytest.raises(Mistake, match=r"devices=\[\]"):
        devices.canonical([])


def test_auto_stands_alone() -> None:
    with pytest.raises(Mistake, match="stand alone"):
        devices.canonical(["auto", "cpu"])


def test_the_cpu_needs_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "limits", list)
    (cpu,) = devices.resolve(("cpu",), never, print, NO_CARDS)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (cpu.name, cpu.type, cpu.unavailable, cpu.total_bytes) == ("cpu", "cpu", None, machine)


def test_a_named_gpu_is_matched_by_its_index() -> None:
    (second,), _ = resolved(["cuda:1"], answer(gpu(0), gpu(1, total=24 * GIB)))
    assert (second.name, second.type, second.uuid, second.total_bytes) == ("cuda:1", "cuda", "GPU-1", 24 * GIB)


def test_the_memory_of_several_devices_is_never_summed() -> None:
    (pair,), _ = resolved(["cuda:0+cuda:1"], answer(gpu(0), gpu(1, total=24 * GIB)))
    assert (pair.uuid, pair.total_bytes) == ("GPU-0+GPU-1", 24 * GIB)


def test_a_missing_gpu_is_unavailable_with_a_reason_and_not_replaced() -> None:
    (missing, cpu), _ = resolved(["cuda:7", "cpu"], answer(gpu(0)))
    assert missing.unavailable == "there is no cuda:7 here, but cuda:0"
    assert cpu.unavailable is None
    (without_torch,), _ = resolved(["cuda:0"], answer(torch=None, torch_error="torch cannot be imported"))
    assert without_torch.unavailable == "torch cannot be imported"


def test_a_gpu_that_cannot_be_opened_is_unavailable_and_costs_no_other() -> None:
    broken = {**gpu(0), "name": None, "uuid": None, "total_bytes": None, "idle": None, "error": "ERR!"}
    names = ["cuda:0", "cuda:1", "cuda:0+cuda:1"]
    (first, second, both), _ = resolved(names, answer(broken, gpu(1), backend="cuda"))
    assert first.unavailable == both.unavailable == "cuda:0: ERR!"
    assert (second.unavailable, second.backend) == (None, "cuda")


@pytest.mark.usefixtures("driver")
def test_auto_takes_no_gpu_that_cannot_be_opened() -> None:
    broken = {**gpu(0, idle=None), "error": "ERR!"}
    (chosen,), _ = resolved(["auto"], answer(broken, gpu(1, idle=None)))
    assert chosen.name == "cuda:1"
    (cpu,), reported = resolved(["auto"], answer(broken))
    assert (cpu.name, reported) == ("cpu", ["devices=auto: cpu, since ERR!"])


@pytest.mark.usefixtures("no_driver")
def test_auto_without_a_driver_is_the_cpu_and_is_reported() -> None:
    reported: list[str] = []
    (cpu,) = devices.resolve(("auto",), never, reported.append, NO_CARDS)
    assert cpu.name == "cpu"
    assert reported == ["devices=auto: cpu, since there is no GPU here"]


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("gpus", "chosen", "line"),
    [
        ([gpu(0, idle=False), gpu(1)], "cuda:1", "cuda:1, H100"),
        ([gpu(0, idle=None), gpu(1)], "cuda:1", "cuda:1, H100"),
        ([gpu(0, idle=None)], "cuda:0", "cuda:0, H100"),
        ([gpu(0, idle=False)], "cpu", "cpu, since every GPU is in use"),
        ([], "cpu", "cpu, since torch sees no device"),
    ],
)
def test_auto_is_one_idle_gpu_else_the_cpu_and_is_reported(gpus: list[dict[str, Any]], chosen: str, line: str) -> None:
    (device,), reported = resolved(["auto"], answer(*gpus, gpus_error=None if gpus else "torch sees no device"))
    assert device.name == chosen
    assert reported == [f"devices=auto: {line}"]


@pytest.mark.usefixtures("driver")
def test_all_is_every_visible_gpu() -> None:
    found, _ = resolved(["all"], answer(gpu(0, idle=False), gpu(1)))
    assert [device.name for device in found] == ["cuda:0", "cuda:1"]


@pytest.mark.usefixtures("driver")
def test_all_without_a_visible_gpu_is_refused_with_the_reason() -> None:
    with pytest.raises(Mistake, match="hides every device"):
        resolved(["all"], answer(gpus_error="CUDA_VISIBLE_DEVICES='' hides every device"))


@pytest.mark.usefixtures("no_driver")
def test_all_without_a_driver_is_refused() -> None:
    with pytest.raises(Mistake, match="devices=all"):
        devices.resolve(("all",), never, print, NO_CARDS)


def test_a_calculated_device_has_the_figures_of_its_card() -> None:
    (device,) = devices.resolve(("sim:h100",), never, print, CARDS)
    assert (device.name, device.type, device.total_bytes) == ("sim:h100", "sim", 80 * GIB)
    assert device.card is not None
    assert device.card.context_bytes == GIB


def test_sim_all_is_every_card_once() -> None:
    found = devices.resolve(("sim:h100", "sim:all"), never, print, CARDS)
    assert [device.name for device in found] == ["sim:h100", "sim:twin"]


def test_an_unknown_card_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(Mistake, match=r"devices=sim:h10: no such card \(did you mean sim:h100\?\)"):
        devices.resolve(("sim:h10",), never, print, CARDS)


@pytest.mark.parametrize("key", ["total_bytes", "context_bytes"])
def test_a_card_without_a_figure_is_refused_by_its_file(key: str) -> None:
    cards = Cards(("mine",), lambda name: {**H100, key: None})
    with pytest.raises(Mistake, match=rf"card/mine.yaml: {key} is missing: a whole number of bytes"):
        devices.resolve(("sim:mine",), never, print, cards)


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("vendor", "intel", "must be nvidia or amd"),
        ("architecture", "hopper", "must be as in sm_90 or gfx942"),
        ("total_bytes", 2**70, "must be a whole number of bytes"),
        ("context_bytes", 81 * GIB, "must be less than total_bytes"),
        ("memory", 1, "is not a key of a card"),
    ],
)
def test_an_invalid_card_is_refused_by_its_key(key: str, value: Any, right: str) -> None:
    cards = Cards(("mine",), lambda name: {**H100, key: value})
    with pytest.raises(Mistake, match=rf"card/mine.yaml: {key}.*{right}"):
        devices.resolve(("sim:mine",), never, print, cards)


def test_a_variable_that_is_not_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with pytest.raises(Mistake, match="PYTORCH_NO_CUDA_MEMORY_CACHING=1 is not simulated; unset it"):
        devices.resolve(("sim:h100",), never, print, CARDS)


def test_an_allocator_setting_that_is_not_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "pinned_use_background_threads:True")
    with pytest.raises(Mistake, match=r"devices=sim:h100: allocator setting .* is not simulated"):
        devices.resolve(("sim:h100",), never, print, CARDS)


VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
READ = "import torch; print(torch._C._accelerator_getAllocatorSettings())"


@pytest.mark.parametrize("given", [(0, 1, 2), (1, 2), (0, 2), (2,), ()], ids=str)
def test_of_several_allocator_variables_the_one_that_torch_reads_is_simulated(
    given: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, name in enumerate(VARIABLES):
        monkeypatch.delenv(name, raising=False)
        if place in given:
            monkeypatch.setenv(name, f"max_split_size_mb:{100 + place}")
    (device,) = devices.resolve(("sim:h100",), never, print, CARDS)
    assert device.card is not None
    assert device.card.settings == (f"max_split_size_mb:{100 + given[0]}" if given else "")
    if given != (0, 1, 2):  # an interpreter that imports torch takes seconds
        return
    torch = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=False)
    if torch.returncode == 0:  # since torch 2.9
        assert torch.stdout.strip() == device.card.settings


def test_an_allocator_variable_that_is_set_to_nothing_hides_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:100")
    (device,) = devices.resolve(("sim:h100",), never, print, CARDS)
    assert device.card is not None
    assert device.card.settings == ""


SIM = Device(name="sim:h100", card=CARDS["h100"])
HOME = Cards(("home",), lambda name: {**H100, "has_display": True, "context_range_bytes": [GIB, 2 * GIB]})


def with_others(*values: int | None) -> list[Point]:
    return [Point(values={} if value is None else {"used_by_others": value}) for value in values]


@pytest.mark.parametrize("device", [Device(name="cuda:0"), Device(name="cpu"), Device(name="sim:cpu", card=CPU_CARD)])
def test_what_others_use_is_refused_where_it_would_change_nothing(device: Device) -> None:
    with pytest.raises(
        Mistake, match=rf"^used_by_others=1KiB: has no effect on {device.name}; use it with calculated cards"
    ):
        devices.check_others([SIM, device], with_others(1024), budget_of_card=False)
    devices.check_others([SIM, device], with_others(None), budget_of_card=False)
    devices.check_others([device], with_others(1024), budget_of_card=True)


def test_an_assumed_number_is_refused_where_every_number_is_there() -> None:
    points = [Point(values={}), Point(values={"workload": {"name": "custom", "assume": 0.5}})]
    with pytest.raises(Mistake, match=r"^workload.assume=0.5: has no effect on cuda:0; "):
        devices.check_assumed([Device(name="cuda:0"), Device(name="cpu")], points)
    devices.check_assumed([Device(name="cpu"), SIM], points)
    devices.check_assumed([Device(name="cpu")], points[:1])


def test_a_budget_above_a_calculated_card_is_reported() -> None:
    budgets = [Point(values={"budget": size}) for size in (None, GIB, 96 * GIB)]
    room = f"{CARDS['h100'].usable_bytes / GIB:.2f} GiB"
    expected = f"sim:h100: budget=96GiB is more than the {room} of the card, which is the limit"
    assert devices.lowered_budgets([SIM, Device(name="cpu"), Device(name="sim:cpu", card=CPU_CARD)], budgets) == [
        expected
    ]
    assert devices.lowered_budgets([SIM], budgets[:2]) == []
    (line,) = devices.lowered_budgets([SIM] * 4, budgets)
    assert line == "budget=96GiB is more than 4 of the calculated cards have, which limit themselves"


def test_others_that_leave_a_card_no_room_are_refused() -> None:
    devices.check_others([SIM], with_others(78 * GIB), budget_of_card=False)
    with pytest.raises(Mistake, match=r"^used_by_others=79GiB: must be less than the 79.00 GiB of sim:h100$"):
        devices.check_others([SIM], with_others(79 * GIB), budget_of_card=False)


def test_what_is_taken_off_a_calculated_cards_total_is_shown_as_assumed_with_the_published_range() -> None:
    assert devices.assumptions([SIM], with_others(None)) == [
        "sim:h100: assumes 1.00 GiB of 80.00 GiB for the context and libraries and nothing for other processes"
    ]
    home = Device(name="sim:home", card=HOME["home"])
    line = "sim:home: assumes 1.00 GiB of 80.00 GiB for the context and libraries (published: 1.00 GiB to 2.00 GiB)"
    desktop = "; a desktop takes some 0.5 to 1.5 GiB of it: used_by_others=1GiB"
    assert devices.assumptions([home], with_others(None)) == [line + " and nothing for other processes" + desktop]
    assert devices.assumptions([home], with_others(GIB)) == [line + " and 1.00 GiB for other processes"]
    assert devices.assumptions([home], with_others(0, GIB)) == [line]
    assert devices.assumptions([home] * 4, with_others(None)) == [
        "4 calculated cards: the memory of the context, the libraries and other processes is taken off their totals"
    ]
    assert devices.assumptions([Device(name="cpu"), Device(name="sim:cpu", card=CPU_CARD)], with_others(None)) == []


@pytest.mark.parametrize("wrong", [[GIB], [2 * GIB, 3 * GIB], [0, 1], "1GiB", [None, GIB]])
def test_a_range_of_contexts_has_the_context_in_it(wrong: Any) -> None:
    cards = Cards(("mine",), lambda name: {**H100, "context_range_bytes": wrong})
    with pytest.raises(
        Mistake, match=r"^card/mine.yaml: context_range_bytes=.*: must be null, or two numbers of bytes"
    ):
        devices.resolve(("sim:mine",), never, print, cards)


def test_whether_a_card_has_a_display_is_yes_or_no() -> None:
    cards = Cards(("mine",), lambda name: {**H100, "has_display": "two"})
    with pytest.raises(Mistake, match=r"^card/mine.yaml: has_display=two: must be true or false$"):
        devices.resolve(("sim:mine",), never, print, cards)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:100, backend: cudaMallocAsync"),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "0"),
    ],
)
def test_a_budget_that_no_allocator_would_keep_to_is_refused_before_anything_starts(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, missing = Device(name="cuda:0"), Device(name="cuda:1", unavailable="it is gone")
    with_budget = [Point(values={"budget": None}), Point(values={"budget": GIB})]
    for variable in (*VARIABLES, "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        monkeypatch.delenv(variable, raising=False)
    devices.check_budgets([gpu], with_budget)
    monkeypatch.setenv(name, value)
    with pytest.raises(Mistake, match=rf"^{name}={value}: a budget limits .*, and cuda:0 would not use it; unset it$"):
        devices.check_budgets([Device(name="cpu"), gpu], with_budget)
    devices.check_budgets([gpu], with_budget[:1])
    devices.check_budgets([Device(name="cpu"), SIM, missing], with_budget)


def test_the_native_allocator_takes_a_budget_whatever_its_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native,expandable_segments:True")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")  # torch does not read it
    devices.check_budgets([Device(name="cuda:0")], [Point(values={"budget": GIB})])

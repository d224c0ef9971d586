"""Device names: their canonical form, and the device of this machine that each refers to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.device import HOST, SIM, Card, Device
from runners.meters import cpu
from runners.point import Point
from runners.simulation.allocator import Settings
from sweeper.cards import ALL, Cards, card_named
from sweeper.errors import Mistake
from sweeper.plan import typed
from sweeper.planning.suggestions import no_device, no_such_card
from sweeper.units import format_bytes, typed_bytes

# Created by the kernel driver of a GPU (NVIDIA, AMD, either of them under WSL). Without any of them the probe is not
# started: importing torch takes two seconds.
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
FORM = "write cpu, cuda:0, cuda:0+cuda:1, sim:CARD, auto or all"
# These change CUDA's memory use and are not simulated.
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
UNSUPPORTED_VARIABLES = (UNCACHED, "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE")
# torch reads the first that is set, even if it is empty (tried with 2.13: _accelerator_getAllocatorSettings)
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

Answer = Callable[[], Mapping[str, Any]]  # returns the report of runners.probe about devices


def gpu_driver() -> bool:
    return any(driver.exists() for driver in DRIVERS)


def canonical(names: Sequence[Any], cards: Sequence[str] = ()) -> tuple[str, ...]:
    """Each device once, in canonical form (`cuda` is `cuda:0`). Raises Mistake. `cards`: the names of those known."""
    if not names:
        raise Mistake(f"devices=[]: there is none; {FORM}")
    found = tuple(dict.fromkeys(_canonical(typed(name), list(map(typed, names)), cards) for name in names))
    if len(found) > 1 and {"auto", "all"} & set(found):
        raise Mistake(f"devices={','.join(found)}: auto and all choose the devices, and stand alone")
    return found


def _canonical(name: str, names: Sequence[str], cards: Sequence[str]) -> str:
    if name in ("auto", "all", "cpu"):
        return name
    if name.startswith(SIM) and name != SIM:
        return name
    parts = ["cuda:0" if part == "cuda" else part for part in name.split("+")]
    if not all(re.fullmatch(r"cuda:(0|[1-9][0-9]{0,5})", part) for part in parts):
        raise Mistake(no_device(name, names, cards, FORM))
    if len(set(parts)) < len(parts):
        raise Mistake(f"devices={name}: names one device twice")
    return "+".join(parts)


def resolve(names: Sequence[str], answer: Answer, report: Callable[[str], None], cards: Cards) -> tuple[Device, ...]:
    """The devices with these names; a missing one is marked unavailable and never replaced. Raises Mistake."""
    if names == ("auto",):
        return (_auto(answer, report),)
    if names == ("all",):
        return _all(answer)
    found: list[Device] = []
    for name in names:
        if name.startswith(SIM):
            found += _sim(name.removeprefix(SIM), cards, report)
        else:
            found.append(_cpu() if name == "cpu" else _cuda(name, answer()))
    return tuple({device.name: device for device in found}.values())


def of_kind(card: Card, answer: Answer) -> str | None:
    """The first idle GPU here that the driver calls as it calls the card; None if there is none."""
    if not gpu_driver():
        return None
    gpus = [gpu for gpu in answer()["gpus"] if gpu.get("name") == card.name and gpu["idle"] is not False]
    return f"cuda:{gpus[0]['index']}" if gpus else None


def check_variables(found: Sequence[Device], variables: Collection[str]) -> None:
    """Raises Mistake if a point sets a variable of CUDA's allocator and is calculated, where it has no effect."""
    calculated = next((device.name for device in found if device.is_calculated), None)
    for name in (*ALLOCATOR_VARIABLES, *UNSUPPORTED_VARIABLES):
        if calculated is not None and name in variables:
            cure = "set it in the shell, for all points" if name in ALLOCATOR_VARIABLES else "leave one of them out"
            raise Mistake(f"env.{name}: has no effect on devices={calculated}, which is calculated; {cure}")


def _sim(typed_name: str, cards: Cards, report: Callable[[str], None]) -> list[Device]:
    """The calculated device of a card, or of every card."""
    if typed_name == ALL:
        return [each for name in cards for each in _sim(name, cards, report)]
    card = typed_name if typed_name == HOST else card_named(typed_name, cards)
    if card is None:
        raise Mistake(no_such_card(f"devices={SIM}{typed_name}", typed_name, list(cards), SIM))
    if card != typed_name:
        report(f"devices={SIM}{typed_name}: {SIM}{card}")
    found = cards[card]
    for name in UNSUPPORTED_VARIABLES:
        if name in os.environ:
            raise Mistake(f"devices=sim:{card}: {name}={os.environ[name]} is not simulated; unset it")
    settings = next((os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ), "")
    try:
        Settings.parse(settings)
    except ValueError as error:
        raise Mistake(f"devices=sim:{card}: {error}") from None
    described = replace(found, settings=settings)
    return [Device(name=f"{SIM}{card}", total_bytes=found.total_bytes, card=described)]


def check_others(devices: Sequence[Device], points: Iterable[Point], budget_of_card: bool) -> None:
    """Raise Mistake for `used_by_others` where it changes nothing, or leaves a card no room."""
    values = {others: None for point in points if (others := point.get("used_by_others")) is not None}
    for others in values:
        for device in devices:
            if device.card is None or device.card.is_host:
                if not budget_of_card:
                    rule = "use it with calculated cards (devices=[sim:CARD]) or with budget=card:NAME"
                    raise Mistake(f"used_by_others={typed_bytes(others)}: has no effect on {device.name}; {rule}")
            elif others >= device.card.usable_bytes:
                room = format_bytes(device.card.usable_bytes)
                raise Mistake(f"used_by_others={typed_bytes(others)}: must be less than the {room} of {device.name}")


def check_assumed(devices: Sequence[Device], points: Iterable[Point]) -> None:
    """Raise Mistake for `workload.assume` where every number is calculated or measured."""
    assumed = next((value for point in points if (value := point.get("workload.assume")) is not None), None)
    if assumed is not None and not any(device.is_calculated for device in devices):
        rule = "use it with calculated devices (devices=[sim:CARD])"
        raise Mistake(f"workload.assume={assumed:g}: has no effect on {devices[0].name}; {rule}")


def check_budgets(devices: Sequence[Device], points: Iterable[Point]) -> None:
    """Raise Mistake for a budget on a GPU whose allocator would not keep to it, by the variables that torch reads."""
    measured = [each.name for each in devices if not each.is_cpu and not each.is_calculated and not each.unavailable]
    name = next((name for name in ALLOCATOR_VARIABLES if name in os.environ), None)
    backend = None if name is None else re.search(r"(?:^|,)backend:(\w+)", "".join(os.environ[name].split()))
    if UNCACHED in os.environ:
        name = UNCACHED
    elif backend is None or backend[1] == "native":
        return
    if measured and any(point.get("budget") is not None for point in points):
        limits = "a budget limits what PyTorch's own caching allocator reserves"
        raise Mistake(f"{name}={os.environ[str(name)]}: {limits}, and {measured[0]} would not use it; unset it")


def lowered_budgets(devices: Sequence[Device], points: Iterable[Point]) -> list[str]:
    """A line for each calculated card that a budget exceeds: the card itself is then the limit."""
    budget = max((point.get("budget") or 0 for point in points), default=0)
    cards = [each for each in devices if each.card is not None and not each.card.is_host]
    small = [(each.name, each.card.usable_bytes) for each in cards if each.card and each.card.usable_bytes < budget]
    exceeds = f"budget={typed_bytes(budget)} is more than"
    if len(small) > MOST_LINES:
        return [f"{exceeds} {len(small)} of the calculated cards have, which limit themselves"]
    return [f"{name}: {exceeds} the {format_bytes(room)} of the card, which is the limit" for name, room in small]


MOST_LINES = 3  # of cards; sim:all has 42
DESKTOP = "a desktop takes some 0.5 to 1.5 GiB of it"


def unmeasured(devices: Sequence[Device]) -> list[str]:
    """A line if the resident peaks of phases cannot be measured on the cpu: their columns are null."""
    measures_cpu = any(device.is_cpu and device.unavailable is None for device in devices)
    if not measures_cpu or not sys.platform.startswith("linux") or os.access(cpu.CLEAR_REFS, os.W_OK):
        return []
    why = f"since {cpu.CLEAR_REFS} cannot be written"
    return [
        f"cpu: the resident peak of a phase cannot be measured, {why}: it is null; peak_tensor_bytes counts tensors"
    ]


def assumptions(devices: Sequence[Device], points: Iterable[Point]) -> list[str]:
    """A line for each calculated card: what is taken off its total, and how sure that is."""
    cards = [device for device in devices if device.card is not None and not device.card.is_host]
    if len(cards) > MOST_LINES:
        taken = "the memory of the context, the libraries and other processes"
        return [f"{len(cards)} calculated cards: {taken} is taken off their totals"]
    given = frozenset(point.get("used_by_others") for point in points)
    return [_assumption(device.name, device.card, given) for device in cards if device.card is not None]


def _assumption(name: str, card: Card, given: frozenset[int | None]) -> str:
    assert card.total_bytes is not None
    text = (
        f"{name}: assumes {format_bytes(card.context_bytes)} of {format_bytes(card.total_bytes)}"
        " for the context and libraries"
    )
    if card.context_range_bytes is not None:
        least, most = map(format_bytes, card.context_range_bytes)
        text += f" (published: {least} to {most})"
    others = {card.used_by_others_bytes or 0 if each is None else each for each in given} or {0}
    if len(others) == 1:
        taken = others.pop()
        text += f" and {format_bytes(taken) if taken else 'nothing'} for other processes"
    if card.has_display and given <= {None}:
        text += f"; {DESKTOP}: used_by_others=1GiB"
    return text


def _cpu() -> Device:
    return Device(name="cpu", total_bytes=cpu.total_memory_bytes())


def _cuda(name: str, answer: Mapping[str, Any]) -> Device:
    by_name = {f"cuda:{gpu['index']}": gpu for gpu in answer["gpus"]}
    device = Device(name=name)
    for part in device.parts:
        if part not in by_name:
            return replace(device, unavailable=_why_not(part, by_name, answer))
    gpus = [by_name[part] for part in device.parts]
    errors = [f"{part}: {gpu['error']}" for part, gpu in zip(device.parts, gpus, strict=True) if gpu.get("error")]
    if errors:
        return replace(device, unavailable="; ".join(errors))
    uuids = [gpu["uuid"] for gpu in gpus]
    return replace(
        device,
        uuids=() if None in uuids else tuple(uuids),
        total_bytes=min(gpu["total_bytes"] for gpu in gpus),
        backend=answer.get("backend"),
    )


def _why_not(name: str, by_name: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    reason = answer.get("torch_error") or answer.get("gpus_error")
    return str(reason) if reason else f"there is no {name} here, but {', '.join(by_name)}"


def _auto(answer: Answer, report: Callable[[str], None]) -> Device:
    if not gpu_driver():
        report("devices=auto: cpu, since there is no GPU here")
        return _cpu()
    answered = answer()
    # None: unknown, because the library that reports it is missing. Such a device is taken if none is known to be idle.
    usable = [gpu for gpu in answered["gpus"] if not gpu.get("error")]
    for idle in (True, None):
        for gpu in usable:
            if gpu["idle"] is idle:
                report(f"devices=auto: cuda:{gpu['index']}, {gpu['name']}")
                return _cuda(f"cuda:{gpu['index']}", answered)
    broken = next((gpu["error"] for gpu in answered["gpus"] if gpu.get("error")), None)
    busy = "every GPU is in use" if usable else broken or _why_not("GPU", {}, answered)
    report(f"devices=auto: cpu, since {busy}")
    return _cpu()


def _all(answer: Answer) -> tuple[Device, ...]:
    if not gpu_driver():
        raise Mistake(f"devices=all: there is no GPU here ({sys.platform}, no driver); devices=cpu measures on the cpu")
    answered = answer()
    if not answered["gpus"]:
        raise Mistake(f"devices=all: no GPU is visible: {_why_not('GPU', {}, answered)}")
    return tuple(_cuda(f"cuda:{gpu['index']}", answered) for gpu in answered["gpus"])

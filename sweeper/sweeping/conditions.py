"""The limits of open files, the environment variables of a measured process, and the locks of its device."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from runners import files, locks
from runners.device import Device
from runners.libraries import needed_by
from runners.point import Point
from sweeper.errors import Mistake
from sweeper.sweeping.recall import Fingerprint
from sweeper.units import format_count

# A sweep on one device ran with 16 at a time. Each further device has two pipes, and libraries open a few more.
OPEN_FILES, OPEN_FILES_PER_DEVICE = 28, 4


def check_limits(devices: int) -> None:
    """Raises Mistake if this process may open fewer files than a sweep on so many devices."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OPEN_FILES + OPEN_FILES_PER_DEVICE * devices
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        on = "a device" if devices == 1 else f"{devices} devices"
        raise Mistake(f"ulimit -n is {allowed}: a sweep on {on} opens up to {needed} files; raise the limit")


def check_libraries(points: Sequence[Point], fingerprint: Fingerprint, report: Callable[[str], None]) -> None:
    """Raises Mistake if every point needs a library that is missing; reports one that only some of them need."""
    lacking = [
        {name: setting for name, setting in needed_by(point.values).items() if name in fingerprint.missing}
        for point in points
    ]
    needs = {name: setting for each in lacking for name, setting in each.items()}
    if not needs:
        return
    missing = "; ".join(f"{setting}: {name} is not installed" for name, setting in needs.items())
    cure = f"to install: {fingerprint.install}"
    if all(lacking):
        raise Mistake(
            f"{missing}; {cure}" + ("; model=mlp needs torch alone" if list(needs) == ["transformers"] else "")
        )
    count = sum(map(bool, lacking))
    report(f"{missing}, so {count} of {format_count(len(points), 'point')} cannot be measured; {cure}")


def check_locks(devices: Iterable[Device], report: Callable[[str], None]) -> None:
    """Reports why the locks of devices are not in their usual folder. Raises Mistake if one cannot be opened."""
    try:
        opened = {path: device for device in devices for path in locks_of(device)}
        for path in opened:
            os.close(files.open_to_write(Path(path), os.O_RDWR | os.O_CREAT, locks.PRIVATE_FILE))
    except OSError as error:
        place = f"{error.filename} cannot be locked: " if error.filename else ""
        raise Mistake(f"TMPDIR={os.environ.get('TMPDIR', '')}: {place}{files.why(error)}") from None
    elsewhere = opened and locks.why_not_usual(Path(next(iter(opened))).parent)
    if elsewhere:
        report(elsewhere)


def calculated_lane(core: int) -> str:
    """The engine's lane of calculated attempts on one core."""
    return f"sim-{core}"


MOST_CALCULATED = 8  # lanes of calculated attempts: each has a process with torch, of some 400 MiB


def calculated_lanes() -> int:
    """The number of calculated attempts that run at once: the cores of this process, MOST_CALCULATED at the most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_CALCULATED)


AMD_DRIVER = Path("/dev/kfd")


def environ_of(point: Point, device: Device) -> dict[str, str | None]:
    """Variables that are set before the measured interpreter starts, and recorded with the attempt."""
    environ = _visible(device)
    # Threads that spin while waiting slow other attempts down: 3-22 s instead of 1.1-2.4 s for one point.
    if "OMP_WAIT_POLICY" not in os.environ:
        environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if point.get("allocator") == "repeatable":
        # Fixed: glibc's own threshold rises to 32 MiB after the first free, and resident memory then varies by 93 MiB.
        environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)
        # MKL's scratch memory per thread depends on the processor: a forward pass takes 944 MiB with AVX-512 and 934
        # with AVX2, which every processor of the last ten years has (931 on one without AVX-512).
        if "MKL_ENABLE_INSTRUCTIONS" not in os.environ:
            environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"
    if point.get("start") == "warm" and "OPENBLAS_NUM_THREADS" not in os.environ:
        environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads on import, and threads are lost in a fork
    return environ | (point.values.get("env") or {})


def _visible(device: Device) -> dict[str, str | None]:
    """The variables that show the process its own GPUs alone.

    CUDA takes UUIDs. HIP reads HIP_VISIBLE_DEVICES before CUDA_VISIBLE_DEVICES, and its documentation promises indices
    only. An index counts within the list that this process was given itself.
    """
    if device.is_cpu or device.is_calculated:  # code that uses plain `cuda` finds no device
        hidden: dict[str, str | None] = {"CUDA_VISIBLE_DEVICES": ""}
        return {**hidden, "HIP_VISIBLE_DEVICES": "-1"} if AMD_DRIVER.exists() else hidden
    is_amd = device.backend == "hip"
    if device.uuids and not is_amd:
        return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuids)}
    given = (is_amd and os.environ.get("HIP_VISIBLE_DEVICES")) or os.environ.get("CUDA_VISIBLE_DEVICES") or ""
    listed = [entry.strip() for entry in given.split(",") if entry.strip()]
    indices = [int(part.rpartition(":")[2]) for part in device.parts]
    own = ",".join(listed[index] if index < len(listed) else str(index) for index in indices)
    return {"HIP_VISIBLE_DEVICES": own, "CUDA_VISIBLE_DEVICES": None} if is_amd else {"CUDA_VISIBLE_DEVICES": own}


def locks_of(device: Device) -> tuple[str, ...]:
    """The lock files of a device's parts, shared by all sweeps of this user: one attempt at a time on each of them.

    A calculated device has none.
    """
    if device.is_calculated:
        return ()
    folder = locks.device_folder()
    names = device.uuids or device.parts
    return tuple(str(folder / f"{name.replace('/', '-').replace(':', '-')}.lock") for name in names)

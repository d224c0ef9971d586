"""The memory limit of an attempt: the budget, or on cpu a guard that keeps the kernel from killing it."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator

from runners import facts
from runners.facts import ADDRESS_LIMIT, ALLOCATOR, CGROUP, DATA_LIMIT, GUARD, INHERITED_DATA_LIMIT, WORKLOAD_LIMIT
from runners.meters import cpu
from runners.point import Attempt

getrlimit, setrlimit = resource.getrlimit, resource.setrlimit  # the workload may replace them


class Budget:
    """On cpu, a limit of the data segment (RLIMIT_DATA) above what the process holds when it is imposed. On CUDA, the
    allocator's own limit.

    Not RLIMIT_AS: address space depends on the number of threads, and a CUDA build reserves tens of GiB of it. A
    refusal under RLIMIT_DATA is the CPU allocator's RuntimeError (384 of 384 runs in trials).
    """

    def __init__(self, attempt: Attempt) -> None:
        self._on_cpu = attempt.device.is_cpu
        self._devices = attempt.device.parts
        self._budget: int | None = attempt.point.get("budget")
        self._limits: tuple[int, int] | None = None  # soft (while imposed) and hard, bytes
        self._imposed: dict[int, tuple[int, int]] = {}  # soft limit and what was held under it, bytes, by resource

    @property
    def is_set(self) -> bool:
        """Whether the user limits memory, by a budget or by a limit that the process was started with."""
        limits = (resource.RLIMIT_DATA, resource.RLIMIT_AS) if self._on_cpu else ()
        return self._budget is not None or any(resource.getrlimit(each)[0] != resource.RLIM_INFINITY for each in limits)

    def impose(self) -> list[facts.Budget]:
        """Set the limit. Returns its fact, or nothing if there is no limit."""
        if self._on_cpu:
            held = cpu.status_lines()
            lines = self.decide(held.get("VmData"), held.get("VmSize", 0))
            if self._limits is not None:
                resource.setrlimit(resource.RLIMIT_DATA, self._limits)
            counted = {resource.RLIMIT_DATA: "VmData", resource.RLIMIT_AS: "VmSize"}
            self._imposed = {each: (getrlimit(each)[0], held.get(line, 0)) for each, line in counted.items()}
            return lines
        if self._budget is None:
            return []
        from runners.meters import cuda

        for index, name in enumerate(self._devices):
            cuda.limit(name, index, self._budget)
        return [facts.Budget(ALLOCATOR, self._budget)]

    def lowered(self) -> list[facts.Budget]:
        """The fact of a limit that the workload lowered since this one was imposed; nothing if it lowered none."""
        left = []
        for each, (soft, held) in self._imposed.items():
            now = getrlimit(each)[0]
            if now != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or now < soft):
                left.append(max(0, now - held))
        return [facts.Budget(WORKLOAD_LIMIT, min(left))] if left else []

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Lift the limits of memory, the workload's own too, as far as they can be while facts are written down."""
        # As they are now: the workload may have lowered them for good.
        limits = {each: getrlimit(each) for each in (resource.RLIMIT_DATA, resource.RLIMIT_AS)}
        for each, (_, hard) in limits.items():
            setrlimit(each, (hard, hard))
        try:
            yield
        finally:
            for each, found in limits.items():
                setrlimit(each, found)

    def decide(self, held: int | None, address_space: int = 0) -> list[facts.Budget]:
        """Decide the limit on cpu above the bytes of data held (0 for a program that starts), which is imposed.

        Returns the least of all limits that hold, which may be one that the process was started with. With RLIMIT_AS
        that is what it leaves above the address space in use.
        """
        if sys.platform != "linux" or held is None:
            return []
        limits = {} if self._budget is None else {DATA_LIMIT: self._budget}
        available, in_cgroup = cpu.available_memory_bytes(), cpu.cgroup_available_bytes()
        if available is not None:
            kind = CGROUP if in_cgroup is not None and in_cgroup <= available else GUARD
            limits[kind] = available - cpu.guard_reserve_bytes(available)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft != resource.RLIM_INFINITY:
            limits[INHERITED_DATA_LIMIT] = soft - held
        limits = {kind: max(0, limit) for kind, limit in limits.items()}
        if limits:
            self._limits = held + min(limits.values()), hard
        addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
        if addresses != resource.RLIM_INFINITY:
            limits[ADDRESS_LIMIT] = max(0, addresses - address_space)
        least = min(limits, key=lambda kind: limits[kind], default=None)
        return [] if least is None else [facts.Budget(least, limits[least])]

    def impose_on(self, pid: int) -> None:
        """Set the limit that was decided for another process that has just started; its children inherit it."""
        if self._limits is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(pid, resource.RLIMIT_DATA, self._limits)

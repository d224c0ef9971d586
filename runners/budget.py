"""The memory limit of an attempt: the budget, or on cpu a guard that keeps the kernel from killing it."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator

from runners import facts
from runners.meters import cpu
from runners.point import Attempt


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

    def impose(self) -> list[facts.Budget]:
        """Set the limit. Returns its fact, or nothing if there is no limit."""
        if self._on_cpu:
            lines = self.decide(cpu.status_lines().get("VmData"))
            if self._limits is not None:
                resource.setrlimit(resource.RLIMIT_DATA, self._limits)
            return lines
        if self._budget is None:
            return []
        from runners.meters import cuda

        for index, name in enumerate(self._devices):
            cuda.limit(name, index, self._budget)
        return [facts.Budget("allocator", self._budget)]

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Lift the limit while a failure is written down."""
        if self._limits is None:
            yield
            return
        soft, hard = self._limits
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def decide(self, held: int | None) -> list[facts.Budget]:
        """Decide the limit on cpu above the bytes held (0 for a program that starts). Returns the same as `impose`."""
        kind, budget = "data_limit", self._budget
        if budget is None:
            available = cpu.available_memory_bytes()
            if available is None:
                return []
            kind, budget = "guard", max(0, available - cpu.guard_reserve_bytes(available))
        if sys.platform != "linux" or held is None:
            return []
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = held + budget
        if hard != resource.RLIM_INFINITY and soft > hard:
            soft = hard
        self._limits = soft, hard
        return [facts.Budget(kind, soft - held)]

    def impose_on(self, pid: int) -> None:
        """Set the limit that was decided for another process that has just started; its children inherit it."""
        if self._limits is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(pid, resource.RLIMIT_DATA, self._limits)

"""CUDA as a program finds it through torch.cuda, answered for a card that is not there.

PyTorch's own Python code runs unchanged over the functions of torch._C that a build for CUDA has and this build lacks.
A function that is not here is missing, and the AttributeError names it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from runners.device import Card
from runners.phases import Unavailable
from runners.simulation.kernels.torch_gpu_architecture import gpu_architecture
from runners.simulation.live_memory import LiveMemory

DEVICE = torch.device("cuda", 0)
CUDA_VERSION, HIP_VERSION = "13.0", "7.0"  # assumed: of the builds that PyTorch 2.13 has on PyPI and its own index
DEVICE_TYPE_CUDA = 1  # c10/core/DeviceType.h
ABSENT: Any = object()


class Stream:
    """A stream of the card. Its work is done as soon as it is issued."""

    _numbers = itertools.count(1)

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any) -> None:
        self.stream_id = next(self._numbers) if stream_id is None else stream_id
        self.device_index, self.device_type = 0, DEVICE_TYPE_CUDA
        self.device, self.priority = DEVICE, priority
        self._restore: list[Any] = []

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __enter__(self) -> Stream:
        context: Any = torch.cuda.stream(self)  # type: ignore[arg-type]
        self._restore.append(context)
        context.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._restore.pop().__exit__(*raised)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return Event() if event is None else event


class Event:
    """An event of a stream: reached as soon as it is recorded."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: Any
    ) -> None:
        self.device = DEVICE

    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two events. Nothing runs here, so the time is assumed."""
        return 1.0


class CudaGenerator(torch.Generator):
    """A generator of random numbers on the card, whose state is a host's."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def __reduce__(self) -> Any:
        return CudaGenerator, ()


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)

    def __call__(cls, device: Any = "cpu") -> Any:
        return (CudaGenerator if torch.device(device).type == "cuda" else torch._C.Generator)()


class Generator(metaclass=_AnyGenerator):
    """In place of torch.Generator, for either device."""


class DeviceProperties:
    """Of torch.cuda.get_device_properties. Raises Unavailable for what the card's file does not have."""

    def __init__(self, card: Card) -> None:
        architecture = gpu_architecture(card)
        self.name, self.total_memory = card.name, card.total_bytes
        self.major, self.minor = architecture.capability or (9, 4)
        self.multi_processor_count = architecture.processors
        self.max_threads_per_multi_processor = architecture.threads
        self.warp_size = 64 if card.vendor == "amd" and card.architecture.startswith("gfx9") else 32
        self.gcnArchName = card.architecture
        self.is_integrated, self.is_multi_gpu_board = 0, 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unavailable(f"torch.cuda.get_device_properties(0).{name} is not known for {self.name}")

    def __repr__(self) -> str:
        total = f"{(self.total_memory or 0) // 2**20}MB"
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, total_memory={total}, "
            f"multi_processor_count={self.multi_processor_count})"
        )


class CudaBackend:
    """The functions of torch._C for one card, over the memory that the program sees."""

    def __init__(self, card: Card, memory: LiveMemory, follow: Callable[[int], None], empty_cache: Callable[[], None]):
        """`follow` is called with the number of the stream that becomes the current one."""
        self._card, self._memory, self._follow, self._empty = card, memory, follow, empty_cache
        self._stream = 0
        self._fraction = 1.0
        self._properties = DeviceProperties(card)
        self._started = {"allocated_bytes": 0, "reserved_bytes": 0, "active_bytes": 0, "requested_bytes": 0}
        self.was_asked = False  # about the card itself: its name, its size, its capability

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Give PyTorch the card until the end."""
        is_amd = self._card.vendor == "amd"
        generator = CudaGenerator()
        with contextlib.ExitStack() as stack:
            replacements: tuple[tuple[Any, dict[str, Any]], ...] = (
                (torch._C, self._functions()),
                (
                    torch.cuda,
                    {
                        "_cudart": self._cudart(),
                        "_get_device_properties": self._properties_of,
                        "default_generators": (generator,),
                        "Stream": Stream,
                        "Event": Event,
                        "_initialized": True,
                        "_cached_device_count": 1,
                        "_is_in_bad_fork": lambda: False,
                        "is_bf16_supported": self._supports_bfloat16,
                    },
                ),
                (torch.cuda.streams, {"Stream": Stream, "Event": Event}),
                (torch.version, {"hip": HIP_VERSION} if is_amd else {"cuda": CUDA_VERSION}),
                (torch, {"Generator": Generator}),
            )
            for where, names in replacements:
                stack.enter_context(_attributes(where, names))
            yield

    def _supports_bfloat16(self, including_emulation: bool = True) -> bool:
        self.was_asked = True
        return including_emulation or self._card.vendor == "amd" or (self._properties.major or 0) >= 8

    def _properties_of(self, device: Any) -> DeviceProperties:
        self._check(device)
        self.was_asked = True
        return self._properties

    def _check(self, device: Any) -> None:
        if device not in (0, -1):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")

    def _cudart(self) -> Any:
        def memory_info(device: int) -> tuple[int, int]:
            self._check(device)
            allocator = self._memory.read().allocator  # type: ignore[attr-defined]
            total = self._card.total_bytes or 0
            return max(0, total - self._card.outside_bytes - allocator.reserved), total

        return SimpleNamespace(
            cudaMemGetInfo=memory_info,
            cudaError=SimpleNamespace(success=0),
            cudaGetErrorString=lambda code: "no error",
            cudaProfilerStart=lambda: 0,
            cudaProfilerStop=lambda: 0,
        )

    def _functions(self) -> dict[str, Any]:
        def nothing(*_: Any) -> None: ...

        def exchange(device: int) -> int:
            self._check(device)
            return 0

        current = lambda device: (self._stream, 0, DEVICE_TYPE_CUDA)  # noqa: E731
        return {
            "_cuda_init": nothing,
            "_cuda_getDeviceCount": lambda: 1,
            "_cuda_getDevice": lambda: 0,
            "_cuda_setDevice": exchange,
            "_cuda_exchangeDevice": exchange,
            "_cuda_maybeExchangeDevice": exchange,
            "_cuda_isInBadFork": lambda: False,
            "_cuda_synchronize": nothing,
            "_cuda_ipc_collect": nothing,
            "_cuda_sleep": nothing,
            "_cuda_canDeviceAccessPeer": lambda device, peer: False,
            "_cuda_getArchFlags": lambda: self._card.architecture,
            "_cuda_getCompiledVersion": lambda: int(CUDA_VERSION.replace(".", "0")) * 10,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_getCurrentStream": current,
            "_cuda_getDefaultStream": lambda device: (0, 0, DEVICE_TYPE_CUDA),
            "_cuda_getCurrentRawStream": lambda device: self._stream,
            "_cuda_setStream": self._set_stream,
            "_cuda_memoryStats": self._statistics,
            "_cuda_memorySnapshot": self._snapshot,
            "_cuda_resetPeakMemoryStats": self._reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": nothing,
            "_cuda_emptyCache": self._empty,
            "_cuda_getMemoryFraction": lambda device: self._fraction,
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_get_sync_debug_mode": lambda: 0,
            "_cuda_set_sync_debug_mode": nothing,
            "_cuda_tunableop_enable": nothing,
            "_host_emptyCache": nothing,
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_getDeviceIndex": lambda: 0,
            "_accelerator_setDeviceIndex": exchange,
            "_accelerator_exchangeDevice": exchange,
            "_accelerator_maybeExchangeDevice": exchange,
            "_accelerator_synchronizeDevice": nothing,
            "_accelerator_getStream": lambda device: Stream(stream_id=self._stream),
            "_accelerator_setStream": lambda stream: self._set_stream(stream.stream_id, 0, DEVICE_TYPE_CUDA),
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_emptyCache": self._empty,
            "_accelerator_emptyHostCache": nothing,
            "_accelerator_getDeviceStats": self._statistics,
            "_accelerator_resetPeakStats": self._reset_peaks,
            "_accelerator_resetAccumulatedStats": nothing,
            "_accelerator_getMemoryInfo": lambda device: self._cudart().cudaMemGetInfo(device),
        }

    def _set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        if stream_id != self._stream:
            self._stream = stream_id
            self._follow(stream_id)

    def _set_fraction(self, fraction: float, device: int) -> None:
        raise Unavailable("torch.cuda.set_per_process_memory_fraction is not simulated; use a budget in bytes instead")

    def _statistics(self, device: int) -> Mapping[str, Any]:
        self._check(device)
        return self._memory.read().allocator.statistics()  # type: ignore[attr-defined, no-any-return]

    def _snapshot(self, *_: Any) -> Mapping[str, Any]:
        segments = self._memory.read().allocator.segments()  # type: ignore[attr-defined]
        return {"segments": segments, "device_traces": [], "allocator_settings": {}, "external_annotations": []}

    def _reset_peaks(self, device: int) -> None:
        self._memory.read().allocator.reset_peaks()  # type: ignore[attr-defined]


@contextmanager
def _attributes(where: Any, names: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes, some of which are new, until the end."""
    before = {name: vars(where).get(name, ABSENT) for name in names}
    for name, value in names.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is ABSENT:
                delattr(where, name)
            else:
                setattr(where, name, value)

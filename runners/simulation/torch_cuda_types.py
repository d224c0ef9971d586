"""Classes of CUDA that a program makes objects of: streams, events, generators, properties, legacy tensor types."""

from __future__ import annotations

import struct
from numbers import Integral
from typing import Any

import torch

from runners.device import Card
from runners.simulation.assumptions import Assumptions
from runners.simulation.kernels.torch_gpu_architecture import gpu_architecture
from runners.simulation.levels import Level
from runners.simulation.torch_assumed_numbers import SeededGenerator

AcceleratorError: Any = getattr(torch, "AcceleratorError", RuntimeError)  # PyTorch 2.5 raises the second
DEVICE = torch.device("cuda", 0)
DEVICE_TYPE_CUDA = 1  # c10/core/DeviceType.h
STREAMS_OF_A_PRIORITY = 32  # made in turn: the next one is the first again (c10/cuda/CUDAStream.cpp)
PRIORITIES = 4
DEFAULT_SEED = 67280421310721  # c10/core/GeneratorImpl.h

# Bytes of shared memory of a multiprocessor, and the most that one block can ask for: CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability".
SHARED_MEMORY = {
    (7, 0): (96 * 1024, 96 * 1024),
    (7, 5): (64 * 1024, 64 * 1024),
    (8, 0): (164 * 1024, 163 * 1024),
    (8, 6): (100 * 1024, 99 * 1024),
    (8, 9): (100 * 1024, 99 * 1024),
    (9, 0): (228 * 1024, 227 * 1024),
    (10, 0): (228 * 1024, 227 * 1024),
    (12, 0): (100 * 1024, 99 * 1024),
}
REGISTERS = 64 * 1024  # 32-bit registers of a multiprocessor, from compute capability 5.0 on
THREADS_OF_A_BLOCK = 1024


class Stream(torch.Stream):
    """A stream of the card. Its work is done as soon as it is issued; what it allocates is in a pool of its own."""

    _made = [0] * PRIORITIES  # by priority

    def __new__(cls, device: Any = None, priority: int = 0, **known: Any) -> Stream:
        number = known.get("stream_id")
        if number is None:
            level = min(max(-priority, 0), PRIORITIES - 1)
            number = 1 + level * STREAMS_OF_A_PRIORITY + cls._made[level] % STREAMS_OF_A_PRIORITY
            cls._made[level] += 1
        stream: Any = super().__new__(cls, stream_id=number, device_index=0, device_type=DEVICE_TYPE_CUDA)
        stream.priority = priority
        stream._restore = []
        return stream  # type: ignore[no-any-return]

    @property
    def cuda_stream(self) -> int:
        return int(self.stream_id)

    _as_parameter_ = cuda_stream
    native_handle = cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch._C.Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self) -> Stream:
        context: Any = torch.cuda.stream(self)  # type: ignore[arg-type]
        self._restore.append(context)  # type: ignore[attr-defined]
        context.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._restore.pop().__exit__(*raised)  # type: ignore[attr-defined]

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 1 - PRIORITIES

    def synchronize(self) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        event = torch.cuda.Event() if event is None else event  # type: ignore[no-untyped-call]
        event.record(self)
        return event


class ExternalStream(Stream):
    """A stream that another library made."""

    def __new__(cls, stream_ptr: int, device: Any = None, **_: Any) -> Any:
        return super().__new__(cls, device, stream_id=stream_ptr)


class Event:
    """An event of a stream: reached as soon as it is recorded."""

    assumptions: Assumptions

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: Any
    ) -> None:
        self.cuda_event = id(self)
        self._has_timing, self._is_recorded = enable_timing, False

    device = DEVICE

    def record(self, stream: Any = None) -> None:
        self._is_recorded = True

    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between two events. Nothing runs here, so the time is assumed."""
        if not (self._is_recorded and end_event._is_recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self._has_timing and end_event._has_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        time: float = self.assumptions.number(1.0, Level.ASSUMED, "Event.elapsed_time")
        return time


def event_class(assumptions: Assumptions) -> type[Event]:
    """The class of the events of one attempt, which counts the times that it assumes."""
    return type("Event", (Event,), {"__module__": "torch.cuda", "assumptions": assumptions})


# The classes of PyTorch's that its compiler wants these to be, where it has them (2.4 and 2.5).
_streambase: Any = getattr(torch, "_streambase", None)
for base, kind in (("_StreamBase", Stream), ("_EventBase", Event)):
    if hasattr(_streambase, base):
        getattr(_streambase, base).register(kind)


class Generator(torch.Generator):
    """A generator of random numbers on the card: a seed and an offset, from which nothing is drawn."""

    def __init__(self, device: Any = "cuda") -> None:
        self._seed, self._offset = DEFAULT_SEED, 0

    device: Any = DEVICE

    def manual_seed(self, seed: int) -> Generator:
        self._seed, self._offset = seed % 2**64, 0
        return self

    def seed(self) -> int:
        self.manual_seed(int(torch._C.Generator().seed()))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:  # type: ignore[override]  # the stub says Generator; C returns None
        self._offset = offset

    def get_state(self) -> torch.Tensor:
        """16 bytes (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)."""
        with torch._C.DisableTorchFunction():
            return torch.frombuffer(bytearray(struct.pack("<Qq", self._seed, self._offset)), dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> Generator:
        if new_state.numel() < 16:
            raise RuntimeError("RNG state is wrong size")
        self._seed, self._offset = struct.unpack("<Qq", bytes(new_state[:16].tolist()))
        return self

    def clone_state(self) -> Generator:
        clone = Generator()
        clone._seed, clone._offset = self._seed, self._offset
        return clone

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, state: Any) -> Generator:
        self._seed, self._offset = state._seed, state._offset
        return self

    def __reduce__(self) -> Any:
        return _generator, (self._seed, self._offset)


def _generator(seed: int, offset: int) -> Generator:
    made = Generator().manual_seed(seed)
    made._offset = offset
    return made


class EitherDevice(type):
    """The metaclass of what stands in place of a class of torch: it makes objects of the card or of the host."""

    host: Any
    card: Any
    default: str  # the type of device where none is named

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.host, cls.card))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, (cls.host, cls.card))

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if args and isinstance(args[0], (int, str, torch.device)):
            device, *args = args  # type: ignore[assignment]
        kind = "cuda" if isinstance(device, int) else torch.device(device or cls.default).type
        if kind == "cuda":
            return cls.card(*args, **kwargs)
        return cls.host(*args, **kwargs) if device is None else cls.host(device, *args, **kwargs)


def classes_of_either_device(event: type[Event]) -> dict[str, Any]:
    """By the names that they have in torch."""
    pairs = (SeededGenerator, Generator, "cpu"), (torch.Stream, Stream, "cuda"), (torch.Event, event, "cuda")
    return {
        card.__name__: EitherDevice(card.__name__, (), {"host": host, "card": card, "default": default})
        for host, card, default in pairs
    }


class LegacyTensor(type):
    """The metaclass of torch.cuda.FloatTensor and its like."""

    dtype: torch.dtype
    is_cuda = True

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

    def __call__(cls, *values: Any, **_: Any) -> torch.Tensor:
        if len(values) == 1 and type(values[0]) is not torch.Size and not isinstance(values[0], Integral):
            if isinstance(values[0], torch.Tensor):
                return values[0].detach()
            return torch.tensor(values[0], dtype=cls.dtype, device="cuda")
        sizes = values[0] if values and type(values[0]) is torch.Size else values
        return torch.empty(*sizes if sizes else (0,), dtype=cls.dtype, device="cuda")


def legacy_tensors() -> dict[str, Any]:
    """By the names that they have in torch.cuda."""
    names = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
    return {
        f"{name}Tensor": LegacyTensor(
            f"{name}Tensor", (), {"__module__": "torch.cuda", "dtype": getattr(torch, f"{name}Tensor").dtype}
        )
        for name in names
    }


class DeviceProperties:
    """The result of torch.cuda.get_device_properties. Raises AttributeError for a property that is not known."""

    def __init__(self, card: Card) -> None:
        architecture = gpu_architecture(card)
        self.name, self.total_memory = card.name, card.total_bytes
        self.major, self.minor = architecture.capability or _of_gfx(card.architecture)
        if architecture.capability is not None:
            self.multi_processor_count = architecture.processors
        self.max_threads_per_multi_processor = architecture.threads
        self.max_threads_per_block = THREADS_OF_A_BLOCK
        self.warp_size = 64 if card.vendor == "amd" and card.architecture.startswith("gfx9") else 32
        self.gcnArchName = card.architecture if card.vendor == "amd" else card.name
        self.is_integrated, self.is_multi_gpu_board = 0, 0
        if shared := SHARED_MEMORY.get(architecture.capability or (0, 0)):
            self.shared_memory_per_multiprocessor, self.shared_memory_per_block_optin = shared
            self.shared_memory_per_block = 48 * 1024
            self.regs_per_multiprocessor = REGISTERS

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"torch.cuda.get_device_properties(0).{name} is not answered on a calculated card")

    def __repr__(self) -> str:
        total = f"{(self.total_memory or 0) // 2**20}MB"
        gfx = f"gcnArchName='{self.gcnArchName}', " if self.gcnArchName.startswith("gfx") else ""
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, {gfx}"
            f"total_memory={total}, multi_processor_count={vars(self).get('multi_processor_count', 'unknown')})"
        )


def _of_gfx(name: str) -> tuple[int, int]:
    """The version that HIP gives a card of AMD: gfx942 is (9, 4), gfx1100 is (11, 0)."""
    digits = name.removeprefix("gfx").partition(":")[0]
    return int(digits[:-2] or 0), int(digits[-2], 16)

"""CUDA as a program finds it through torch.cuda, answered for a card that is not there.

PyTorch's own Python code runs unchanged over the functions of torch._C that a build for CUDA has and this build lacks.
A function that is not here is missing, and the AttributeError names it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from runners.device import Card
from runners.simulation.allocator import Settings
from runners.simulation.kernels.torch_attention import can_use
from runners.simulation.kernels.torch_gpu_architecture import gpu_architecture
from runners.simulation.live_memory import LiveMemory
from runners.simulation.torch_cuda_types import (
    DEVICE,
    DEVICE_TYPE_CUDA,
    AcceleratorError,
    DeviceProperties,
    ExternalStream,
    Generator,
    Stream,
    classes_of_either_device,
    event_class,
    legacy_tensors,
)
from runners.simulation.torch_replaced import members_set
from runners.simulation.torch_tracer import MetaTracer

CUDA_VERSION, HIP_VERSION = "13.0", "7.0"  # assumed: of the builds that PyTorch 2.13 has on PyPI and its own index
CUDNN_VERSION, MIOPEN_VERSION = 91900, 3005000  # assumed likewise
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# The types of c10/core/ScalarType.h that a tensor of the card can have.
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.complex32),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.float8_e4m3fn, torch.float8_e5m2),
]
RAW_ADDRESSES = 0x7000_0000_0000  # of memory that a program requests from the allocator without a tensor

# Functions of torch._C in PyTorch's build for CUDA that have no effect on memory.
WITHOUT_EFFECT = [
    "_cuda_init",
    "_cuda_synchronize",
    "_cuda_ipc_collect",
    "_cuda_sleep",
    "_cuda_set_sync_debug_mode",
    "_cuda_lock_mutex",
    "_cuda_unlock_mutex",
    "_cuda_tunableop_enable",
    "_cuda_set_cudnn_benchmark_limit",
    "_cuda_resetPeakHostMemoryStats",
    "_cuda_resetAccumulatedHostMemoryStats",
    "_host_emptyCache",
    "_accelerator_emptyHostCache",
    "_cuda_setMemoryMetadata",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
]


class CudaBackend:
    """The functions of torch._C for one card, over the memory that the program sees."""

    def __init__(self, card: Card, memory: LiveMemory, tracer: MetaTracer) -> None:
        self._card, self._memory, self._tracer = card, memory, tracer
        self._stream = 0
        self._cards: int | None = None  # that the program has left itself, once it has asked
        self._is_used, self._settings = False, _settings_of(os.environ)
        self._hiding = {name: os.environ.get(name) for name in HIDING}
        self._fraction = 1.0
        self._properties = DeviceProperties(card)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Give PyTorch the card until the end."""
        event = event_class(self._tracer.assumptions)
        of_cuda = {
            "_cudart": self._cudart(),
            "_get_device_properties": self._properties_of,
            "_exchange_device": self._exchange,
            "_maybe_exchange_device": self._exchange,
            "default_generators": (Generator(),),
            "Stream": Stream,
            "ExternalStream": ExternalStream,
            "Event": event,
            "_initialized": True,
            "_cached_device_count": None,
            "_device_count_nvml": lambda: -1,  # the real cards of this machine
            "_device_count_amdsmi": lambda: -1,
            "_is_in_bad_fork": lambda: False,
            "is_bf16_supported": self._supports_bfloat16,
            **legacy_tensors(),
        }
        is_amd = self._card.vendor == "amd"
        versions = {"hip": HIP_VERSION if is_amd else None, "cuda": None if is_amd else CUDA_VERSION}
        with contextlib.ExitStack() as stack:
            stack.enter_context(_without_real_cards(set(self._functions())))
            for where, names in (
                (torch._C, self._functions() | _transfers()),
                (torch.cuda, of_cuda),
                (torch.cuda.streams, {"Stream": Stream, "ExternalStream": ExternalStream, "Event": event}),
                (torch.cuda.graphs, {"_cuda_isCurrentStreamCapturing": lambda: False} | self._graphs()),
                (torch.cuda, self._graphs() | self._pools()),
                (torch.cuda.memory, self._pools()),
                (vars(torch.backends.cudnn)["m"], {"version": lambda: self._dnn_version, "_init": lambda: True}),
                (torch.cuda.nvtx, {"_nvtx": _Nvtx()}),
                (torch.autograd.profiler.profile, {"config": _of_host(torch.autograd.profiler.profile.config)}),
                (torch.version, versions),
                (torch, classes_of_either_device(event) | {"set_default_tensor_type": _set_default_tensor_type}),
            ):
                stack.enter_context(members_set(where, names))
            yield

    # --- the card itself ---

    def use(self) -> int:
        """The number of cards, for a program that uses one. The first time the allocator reads its settings."""
        if not self._is_used:
            self._is_used = True
            settings = _settings_of(os.environ)
            if settings != self._settings:
                self._set_settings_by_environment(settings or "")
        return self.cards()

    def _set_settings_by_environment(self, settings: str) -> None:
        try:
            Settings.parse(settings)
        except ValueError as error:
            raise self._tracer.unavailable(f"the allocator's settings that the program sets: {error}") from None
        self._memory.settings = settings
        self._tracer.notes[f"the program set the allocator's settings: {settings or 'none'}"] = None

    def cards(self) -> int:
        """1, or 0 if the program hid the card from itself before it first looked for one."""
        if self._cards is None:
            now = {name: os.environ.get(name) for name in HIDING}
            hidden = (now[name] for name in HIDING if now[name] != self._hiding[name])
            self._cards = 0 if any(each is not None and each.strip() in ("", "-1") for each in hidden) else 1
        return self._cards

    def _supports_bfloat16(self, including_emulation: bool = True) -> bool:
        self._memory.is_of_one_card = True
        return including_emulation or self._card.vendor == "amd" or (self._properties.major or 0) >= 8

    def _properties_of(self, device: Any) -> DeviceProperties:
        self._check(device)
        self._memory.is_of_one_card = True  # its name and its size are not those of another card
        return self._properties

    def _check(self, device: Any) -> None:
        if device not in (0, -1, None):
            raise AcceleratorError("CUDA error: invalid device ordinal")

    def _exchange(self, device: int) -> int:
        self._check(device)
        return 0

    def _memory_info(self, device: int) -> tuple[int, int]:
        self._check(device)
        self._memory.is_of_one_card = True
        total = self._card.total_bytes or 0
        return max(0, total - self._card.outside_bytes - self._allocator.reserved), total

    def _cudart(self) -> Any:
        return SimpleNamespace(
            cudaMemGetInfo=self._memory_info,
            cudaError=SimpleNamespace(success=0),
            cudaGetErrorString=lambda code: "no error",
            cudaDeviceSynchronize=lambda: 0,
            cudaStreamSynchronize=lambda stream: 0,
            cudaProfilerStart=lambda: 0,
            cudaProfilerStop=lambda: 0,
            cudaHostRegister=lambda pointer, size, flags: 0,
            cudaHostUnregister=lambda pointer: 0,
        )

    def _refusing(self, name: str, why: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise self._tracer.unavailable(f"{name} is not followed: {why}")

        known = getattr(torch.cuda, name.rpartition(".")[2], None)
        if isinstance(known, type):  # libraries write it in annotations: transformers does when it is imported
            return type(known.__name__, (known,), {"__new__": refuse})
        return refuse

    def _graphs(self) -> dict[str, Any]:
        return {
            name: self._refusing(f"torch.cuda.{name}", "a graph's memory is in a pool of its own")
            for name in ("CUDAGraph", "graph_pool_handle", "make_graphed_callables")
        }

    def _pools(self) -> dict[str, Any]:
        return {
            name: self._refusing(f"torch.cuda.{name}", "only PyTorch's own allocator and its default pool are imitated")
            for name in ("MemPool", "use_mem_pool", "CUDAPluggableAllocator", "change_current_allocator")
        }

    @property
    def _dnn_version(self) -> int:
        return MIOPEN_VERSION if self._card.vendor == "amd" else CUDNN_VERSION

    def _has_flash_attention(self) -> bool:
        return self._card.vendor == "amd" or (self._properties.major or 0) >= 8

    def _can_use(self, kernel: str) -> Any:
        architecture = gpu_architecture(self._card)

        def answer(params: Any, debug: bool = False) -> bool:
            with torch._C.DisableTorchFunction():
                return can_use(architecture, kernel, params)

        return answer

    def _missing(self, name: str) -> Any:
        """For what a build for CUDA has in torch._C and is not here. Code that looks whether it is there goes on."""
        raise AttributeError(f"torch._C.{name} is not answered on a calculated card")

    # --- the functions of torch._C ---

    def _functions(self) -> dict[str, Any]:
        def nothing(*_: Any, **__: Any) -> None: ...

        return {
            **dict.fromkeys(WITHOUT_EFFECT, nothing),
            "_has_cuda": True,
            "_cuda_getDeviceCount": self.cards,
            "_cuda_getDevice": lambda: 0,
            "_cuda_setDevice": self._exchange,
            "_cuda_exchangeDevice": self._exchange,
            "_cuda_maybeExchangeDevice": self._exchange,
            "_cuda_isInBadFork": lambda: False,
            "_cuda_canDeviceAccessPeer": lambda device, peer: False,
            "_cuda_getArchFlags": lambda: self._card.architecture,
            "_cuda_getCompiledVersion": lambda: int(CUDA_VERSION.replace(".", "0")) * 10,
            "_cuda_get_sync_debug_mode": lambda: 0,
            "_cuda_get_cudnn_benchmark_limit": lambda: 10,
            "_cuda_isCurrentStreamCapturing": lambda: False,
            "_has_cudnn": True,
            "__getattr__": self._missing,
            "_cuda_hasPrimaryContext": lambda device: True,
            "_cuda_isHistoryEnabled": lambda: False,
            "_is_flash_attention_available": self._has_flash_attention,
            "_can_use_flash_attention": self._can_use("flash"),
            "_can_use_mem_efficient_attention": self._can_use("efficient"),
            "_can_use_cudnn_attention": self._can_use("cudnn"),
            "_get_accelerator": lambda check=None: torch.device("cuda"),
            "_accelerator_getDeviceCapability": lambda device: {"supported_dtypes": set(DTYPES)},
            **{
                f"_cuda_{what}Cublas{kind}WorkspaceSize": self._refusing(
                    f"torch._C._cuda_{what}Cublas{kind}WorkspaceSize",
                    "the workspace has the size that the environment gives it (CUBLAS_WORKSPACE_CONFIG)",
                )
                for what in ("set", "reset")
                for kind in ("", "Lt")
            },
            **self._functions_of_streams(),
            **self._functions_of_memory(),
            "_accelerator_getAccelerator": lambda: torch.device("cuda"),
            "_accelerator_getDeviceIndex": lambda: 0,
            "_accelerator_setDeviceIndex": self._exchange,
            "_accelerator_exchangeDevice": self._exchange,
            "_accelerator_maybeExchangeDevice": self._exchange,
            "_accelerator_synchronizeDevice": nothing,
            "_accelerator_getStream": lambda device: Stream(stream_id=self._stream),
            "_accelerator_setStream": lambda stream: self._set_stream(stream.stream_id, 0, DEVICE_TYPE_CUDA),
            "_accelerator_isAllocatorInitialized": lambda: True,
            "_accelerator_emptyCache": self._tracer.empty_cache,
            "_accelerator_getDeviceStats": self._statistics,
            "_accelerator_resetPeakStats": self._reset_peaks,
            "_accelerator_resetAccumulatedStats": self._reset_accumulated,
            "_accelerator_getMemoryInfo": self._memory_info,
            "_accelerator_setAllocatorSettings": self._set_settings,
        }

    def _functions_of_streams(self) -> dict[str, Any]:
        return {
            "_cuda_getCurrentStream": lambda device: (self._stream, 0, DEVICE_TYPE_CUDA),
            "_cuda_getDefaultStream": lambda device: (0, 0, DEVICE_TYPE_CUDA),
            "_cuda_getCurrentRawStream": lambda device: self._stream,
            "_cuda_getStreamFromExternal": lambda pointer, device: (pointer, 0, DEVICE_TYPE_CUDA),
            "_cuda_setStream": self._set_stream,
        }

    def _functions_of_memory(self) -> dict[str, Any]:
        return {
            "_cuda_memoryStats": self._statistics,
            "_cuda_memorySnapshot": self._snapshot,
            "_cuda_resetPeakMemoryStats": self._reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": self._reset_accumulated,
            "_cuda_clearCublasWorkspaces": self._tracer.clear_workspaces,
            "_cuda_emptyCache": self._tracer.empty_cache,
            "_cuda_getMemoryFraction": lambda device: self._fraction,
            "_cuda_setMemoryFraction": self._set_fraction,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_getMemoryMetadata": lambda: "",
            "_cuda_hostMemoryStats": self._host_statistics,
            "_cuda_cudaCachingAllocator_raw_alloc": self._allocate,
            "_cuda_cudaCachingAllocator_raw_delete": self._free,
            "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
            "_cuda_cudaCachingAllocator_enable": self._enable_cache,
        }

    def _set_stream(self, stream_id: int, device_index: int, device_type: int) -> None:
        if stream_id != self._stream:
            self._stream = stream_id
            self._tracer.use_stream(stream_id)

    # --- memory ---

    @property
    def _allocator(self) -> Any:
        return self._memory.read().allocator  # type: ignore[attr-defined]

    def _set_fraction(self, fraction: float, device: int) -> None:
        self._check(device)
        self._fraction = fraction
        self._tracer.refuse_beyond(fraction)

    def _statistics(self, device: int) -> Mapping[str, Any]:
        self._check(device)
        return self._allocator.statistics()  # type: ignore[no-any-return]

    def _snapshot(self, *_: Any) -> Mapping[str, Any]:
        segments = [
            {"device": 0, "segment_pool_id": (0, 0), "frames": []} | each for each in self._allocator.segments()
        ]
        return {"segments": segments, "device_traces": [[]], "allocator_settings": {}, "external_annotations": []}

    def _reset_peaks(self, device: int) -> None:
        self._check(device)
        self._allocator.reset_peaks()

    def _reset_accumulated(self, device: int) -> None:
        self._check(device)
        self._allocator.reset_accumulated()

    def _host_statistics(self) -> Mapping[str, Any]:
        raise self._tracer.unavailable("torch.cuda.host_memory_stats(): pinned memory of the host is not counted")

    def _set_settings(self, text: str) -> None:
        raise self._tracer.unavailable(
            f"the allocator's settings ({text}) are not changed in a program; set PYTORCH_ALLOC_CONF before it starts"
        )

    def _enable_cache(self, value: bool) -> None:
        if not value:
            raise self._tracer.unavailable("torch.cuda.caching_allocator_enable(False) is not followed")

    def _allocate(self, size: int, stream: int) -> int:
        before = self._stream
        self._set_stream(stream, 0, DEVICE_TYPE_CUDA)
        try:
            return RAW_ADDRESSES + self._tracer.allocate(size)
        finally:
            self._set_stream(before, 0, DEVICE_TYPE_CUDA)

    def _free(self, address: int) -> None:
        self._tracer.free(address - RAW_ADDRESSES)


class _Nvtx:
    """Marks for a profiler: no profiler runs."""

    def rangePushA(self, message: str) -> int:
        return 0

    def rangePop(self) -> int:
        return 0

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, number: int) -> None: ...
    def markA(self, message: str) -> None: ...


def _settings_of(environment: Mapping[str, str]) -> str | None:
    """The allocator's settings, of which PyTorch reads the first that are set."""
    return next((environment[name] for name in SETTINGS if name in environment), None)


def _of_host(config: Any) -> Any:
    """The settings of a profiler that looks at the host only: its own events of CUDA would fail one by one."""
    state: Any = torch._C._profiler.ProfilerState

    def of_host(profile: Any, *args: Any, **kwargs: Any) -> Any:
        if profile.profiler_kind == state.KINETO_GPU_FALLBACK:
            profile.profiler_kind = state.KINETO
        return config(profile, *args, **kwargs)

    return of_host


@contextmanager
def _without_real_cards(answered: set[str]) -> Iterator[None]:
    """Remove what a build of PyTorch for CUDA has of real cards, except for these names: it would look for a driver."""
    names = [each for each in vars(torch._C) if each.startswith(("_cuda_", "_nccl_")) and each not in answered]
    is_built: Any = torch.backends.cuda.is_built
    before = {name: getattr(torch._C, name) for name in names if is_built()}
    for name in before:
        delattr(torch._C, name)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch._C, name, function)


def _transfers() -> dict[str, Any]:
    """What nn.DataParallel calls, for one card (torch/csrc/cuda/comm.cpp)."""

    def scatter(
        tensor: torch.Tensor, devices: Sequence[int], sizes: Any = None, dim: int = 0, streams: Any = None
    ) -> list[torch.Tensor]:
        chunks = tensor.split_with_sizes(sizes, dim) if sizes is not None else tensor.chunk(len(devices), dim)
        return [_on_stream(chunk, streams and streams[index]) for index, chunk in enumerate(chunks)]

    def broadcast_coalesced(tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer: int) -> Any:
        return [list(tensors)]

    return {"_scatter": scatter, "_broadcast_coalesced": broadcast_coalesced}


def _on_stream(tensor: torch.Tensor, stream: Any) -> torch.Tensor:
    with torch.cuda.stream(stream):
        return tensor.to(DEVICE, non_blocking=True)


def _set_default_tensor_type(wanted: Any) -> None:
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    on_card = name.startswith("torch.cuda.")
    torch.set_default_dtype(getattr(torch, name.rpartition(".")[2]).dtype)
    torch.set_default_device("cuda" if on_card else None)

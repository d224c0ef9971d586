"""Which failures are refused allocations, whose memory was refused, and how many bytes were requested."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runners.facts import Cause
from runners.refusals import Refusal, RefusalCount, gave_up, refusal_in, requested_in

MIB = 2**20
GIB = 2**30


def cause(type_: str, message: str, *bases: str) -> Cause:
    return Cause(type_, [*bases, "Exception", "BaseException"], message)


def runtime_error(message: str) -> Cause:
    return cause("RuntimeError", message)


CUDA = (
    "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 79.10 GiB of which 12.69 MiB is free. "
    "Including non-PyTorch memory, this process has 79.08 GiB memory in use. 1.00 GiB allowed; Of the allocated memory "
    "78.41 GiB is allocated by PyTorch, and 186.26 MiB is reserved by PyTorch but unallocated."
)
OLD_CUDA = (
    "CUDA out of memory. Tried to allocate {} (GPU 0; 15.78 GiB total capacity; 14.56 GiB already allocated; 38.44 MiB "
    "free; 14.80 GiB reserved in total by PyTorch)"
)
ASYNC = (
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 9.43 GiB\n"
    "Requested               : {}\nDevice limit            : 11.59 GiB\nFree (according to CUDA): 7.12 MiB\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "{} bytes. Error code 12 (Cannot allocate memory)"
)
WINDOWS = (
    "[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you tried to allocate {} bytes."
)
MPS = (
    "MPS backend out of memory (MPS allocated: 17.36 GB, other allocations: 613.56 MB, max allowed: 18.13 GB). Tried "
    "to allocate {} on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit"
)
NVML_FAILED = '{} INTERNAL ASSERT FAILED at "{}":1016, please report a bug to PyTorch. '


@pytest.mark.parametrize(
    ("failure", "scope", "requested"),
    [
        # by the type alone, whatever the message
        (cause("torch.OutOfMemoryError", CUDA.format("20.00 MiB"), "RuntimeError"), "device", 20 * MIB),
        (cause("torch.cuda.OutOfMemoryError", OLD_CUDA.format("1024.00 MiB"), "RuntimeError"), "device", GIB),
        (cause("torch.OutOfMemoryError", ASYNC.format("640.00 MiB"), "RuntimeError"), "device", 671_083_398),
        (cause("torch.OutOfMemoryError", "XPU out of memory. Tried to allocate 4.00 MiB."), "device", 4 * MIB),
        (cause("torch.OutOfMemoryError", "HIP out of memory. Tried to allocate 512.00 MiB."), "device", 512 * MIB),
        (
            cause("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate more than 1EB memory."),
            "device",
            None,
        ),
        (
            cause("cupy.cuda.memory.OutOfMemoryError", "Out of memory allocating 512 bytes", "MemoryError"),
            "device",
            None,
        ),
        (cause("mine.Full", "", "torch.OutOfMemoryError", "RuntimeError"), "device", None),
        (cause("MemoryError", ""), "host", None),
        (
            cause(
                "numpy._core._exceptions._ArrayMemoryError",
                "Unable to allocate 7.28 TiB for an array with shape (1000000000000,) and data type float64",
                "MemoryError",
            ),
            "host",
            7_998_947_092_071,
        ),
        # torch's RuntimeErrors, by their texts
        (runtime_error(CPU.format(140737488355328)), "host", 140737488355328),
        (runtime_error(WINDOWS.format(1)), "host", 1),
        (runtime_error("unable to mmap 4096 bytes from file </tmp/x>: Cannot allocate memory (12)"), "host", 4096),
        (runtime_error("std::bad_alloc"), "host", None),
        (runtime_error(OLD_CUDA.format("2.00 MiB")), "device", 2 * MIB),
        (runtime_error("HIP out of memory. Tried to allocate 30.00 MiB (GPU 0; ..."), "device", 30 * MIB),
        (
            runtime_error("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
            "device",
            None,
        ),
        (cause("torch.AcceleratorError", "CUDA error: out of memory", "RuntimeError"), "device", None),
        (runtime_error("HIP error: out of memory"), "device", None),
        (runtime_error("CUDA driver error: out of memory"), "device", None),
        (runtime_error("Triton Error [CUDA]: out of memory"), "device", None),
        (
            cause(
                "torch.distributed.DistBackendError", "NCCL error ... Cuda failure 2 'out of memory'", "RuntimeError"
            ),
            "device",
            None,
        ),
        (
            runtime_error("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "device",
            None,
        ),
        (runtime_error("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"), "device", None),
        (runtime_error("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "device", None),
        (runtime_error("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling ..."), "device", None),
        (runtime_error("cuFFT error: CUFFT_ALLOC_FAILED"), "device", None),
        (runtime_error("miopenStatusAllocFailed"), "device", None),
        (runtime_error(MPS.format("192.00 MB")), "device", 201_321_350),
        (runtime_error(MPS.format("384.00 MiB")), "device", 402_647_942),
        (cause("OSError", "[Errno 12] Cannot allocate memory"), "host", None),
        (
            runtime_error(NVML_FAILED.format("NVML_SUCCESS == r", "../c10/cuda/CUDACachingAllocator.cpp")),
            "device",
            None,
        ),
        (
            runtime_error(
                NVML_FAILED.format(
                    "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_()",
                    "/opt/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp",
                )
            ),
            "device",
            None,
        ),
        (
            cause(
                "ray.exceptions.OutOfMemoryError",
                "Task was killed due to the node running low on memory.",
                "ray.exceptions.RayError",
            ),
            "host",
            None,
        ),
        (
            cause(
                "torch.AcceleratorError",
                "Caught AcceleratorError in pin memory thread for device 0.\nOriginal Traceback (most recent "
                "call last):\n...\ntorch.AcceleratorError: CUDA error: out of memory",
                "RuntimeError",
            ),
            "host",
            None,
        ),
        (runtime_error("cudaHostAlloc(&ptr, 4096, 0) failed: out of memory"), "host", None),
        (
            cause("MemoryError", "std::bad_alloc: out_of_memory: CUDA error (2 cudaErrorMemoryAllocation)"),
            "device",
            None,
        ),
        (
            cause("cupy_backends.cuda.api.runtime.CUDARuntimeError", "cudaErrorMemoryAllocation: ...", "RuntimeError"),
            "device",
            None,
        ),
    ],
    ids=lambda value: (value.message or value.type)[:40] if isinstance(value, Cause) else None,
)
def test_a_refused_allocation_is_recognised(failure: Cause, scope: str, requested: int | None) -> None:
    refusal = refusal_in([failure])
    assert refusal is not None
    assert (refusal.scope, refusal.requested_bytes) == (scope, requested)


@pytest.mark.parametrize(
    ("message", "least", "most"),
    [  # what was handed out (78.41, 14.56 or 9.43 GiB), with the least of a segment
        (CUDA.format("20.00 MiB"), 78.40 * GIB, 78.415 * GIB + MIB + 512),
        (CUDA.format("2.00 MiB"), 78.40 * GIB, 78.415 * GIB + 512),
        (CUDA.format("64.00 MiB"), 78.40 * GIB + 62 * MIB, 78.415 * GIB + 62 * MIB + 512),
        (OLD_CUDA.format("64.00 MiB"), 14.55 * GIB + 62 * MIB, 14.565 * GIB + 62 * MIB + 512),
        (ASYNC.format("640.00 MiB"), 9.42 * GIB + 639 * MIB, 9.435 * GIB + 640 * MIB),
    ],
)
def test_a_message_with_what_was_handed_out_gives_a_lower_bound(message: str, least: float, most: float) -> None:
    refusal = refusal_in([cause("torch.OutOfMemoryError", message, "RuntimeError")])
    assert refusal is not None
    assert refusal.needs_bytes is not None
    assert least < refusal.needs_bytes <= most


@pytest.mark.parametrize(
    "failure",
    [
        runtime_error("CUDA error: device-side assert triggered"),
        runtime_error("CUDA error: invalid configuration argument"),  # a grid limit, at a large size
        runtime_error("CUDA error: an illegal memory access was encountered"),
        runtime_error("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        runtime_error("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        runtime_error("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        runtime_error(NVML_FAILED.format("NVML_SUCCESS == r", "../c10/cuda/CUDAFunctions.cpp")),
        runtime_error(NVML_FAILED.format("ptr", "../c10/cuda/CUDACachingAllocator.cpp")),
        runtime_error("CUDA error: invalid argument, in cudaHostRegister"),
        runtime_error("Triton Error [CUDA]: out of resource: shared memory"),
        runtime_error("Storage size calculation overflowed with sizes=[4611686018427387904]"),
        runtime_error("nonzero is not supported for tensors with more than INT_MAX elements"),
        runtime_error("DataLoader worker (pid 4711) is killed by signal: Killed. "),
        runtime_error("can't start new thread"),
        runtime_error("out of memory"),
        runtime_error("we caught CUDA out of memory before, and went on"),
        runtime_error("shape mismatch: not enough memory slots"),
        cause("ValueError", CUDA.format("2.00 GiB"), "Exception"),
        cause("AssertionError", "MemoryError"),
        cause("OSError", "[Errno 28] No space left on device"),
        cause("OSError", "[Errno 122] Disk quota exceeded"),
        cause("SystemExit", "CUDA error: out of memory"),
        cause("KeyError", "'OutOfMemoryError'"),
    ],
    ids=lambda failure: failure.message[:40],
)
def test_a_failure_that_only_mentions_memory_is_no_refusal(failure: Cause) -> None:
    assert refusal_in([failure]) is None


HANDLES = [
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(handle)`",
    "CUDA error: CUSPARSE_STATUS_NOT_INITIALIZED when calling `cusparseCreate(handle)`",
    "cusolver error: CUSOLVER_STATUS_NOT_INITIALIZED, when calling `cusolverDnCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
]


@pytest.mark.parametrize("message", HANDLES)
def test_a_handle_that_cannot_be_made_is_a_refusal_on_a_full_device_only(message: str) -> None:
    failure = runtime_error(message)
    assert refusal_in([failure], free_bytes=8 * MIB) == Refusal("device", None)
    assert refusal_in([failure], free_bytes=2 * GIB) is None
    assert refusal_in([failure]) is None, "whether it was full is not known"


def test_a_handle_that_fails_in_use_is_no_refusal_on_a_full_device_either() -> None:
    failure = runtime_error("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSgemm(handle, ...)`")
    assert refusal_in([failure], free_bytes=0) is None


@pytest.mark.parametrize(
    ("source", "scope"),
    [
        ("batch = batch.pin_memory()", "host"),
        ("buffer = torch.empty(2**36, pin_memory=True)", "host"),
        ("graph.replay()", "device"),
    ],
)
def test_pinned_memory_is_the_hosts_though_its_refusal_has_the_words_of_the_devices(source: str, scope: str) -> None:
    failure = cause("torch.AcceleratorError", "CUDA error: out of memory\nSearch for `cudaError...'", "RuntimeError")
    traceback = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 9, in run\n    loader.pin_memory_all()\n'
        f'  File "/w/pinned/data.py", line 3, in load\n    {source}\n    ^^^^^\n'
        "torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaError...'\n"
    )
    assert refusal_in([failure], traceback) == Refusal(scope, None)
    refused = refusal_in([cause("torch.OutOfMemoryError", CUDA.format("2.00 MiB"), "RuntimeError")], traceback)
    assert refused is not None
    assert refused.scope == "device"


def test_a_message_that_is_missing_is_no_obstacle() -> None:
    assert refusal_in([Cause("RuntimeError"), Cause("MemoryError")]) == Refusal("host", None)


def test_a_refusal_is_found_behind_the_exception_that_it_caused() -> None:
    chain = [
        cause("ValueError", "the trainer failed"),
        runtime_error("step 3"),
        cause("torch.OutOfMemoryError", CUDA.format("64.00 MiB"), "RuntimeError"),
    ]
    refusal = refusal_in(chain)
    assert refusal is not None
    assert (refusal.scope, refusal.requested_bytes) == ("device", 64 * MIB)


def test_the_outermost_of_two_refusals_counts() -> None:
    chain = [runtime_error(CPU.format(10)), cause("torch.OutOfMemoryError", CUDA.format("64.00 MiB"))]
    assert refusal_in(chain) == Refusal("host", 10)


def test_nothing_is_refused_where_nothing_was_raised() -> None:
    assert refusal_in([]) is None


def printed(size: int) -> str:
    """As torch prints a size: c10::CachingAllocator::format_size."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size > unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def in_segments(size: int) -> int:
    """What the caching allocator asks the driver for: CUDACachingAllocator's get_allocation_size."""
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


@given(st.integers(1, GIB))
def test_up_to_one_gib_the_segment_that_cuda_requested_is_exact(size: int) -> None:
    in_driver = in_segments(size)
    assert requested_in(CUDA.format(printed(in_driver))) == in_driver
    assert requested_in(OLD_CUDA.format(printed(in_driver))) == in_driver


@given(st.integers(GIB, 2**45))
@example(GIB + 1)
@example(1_207_959_553)  # half way between two prints
def test_beyond_that_it_is_a_lower_bound_that_prints_the_same(size: int) -> None:
    in_driver = in_segments(size)
    requested = requested_in(CUDA.format(printed(in_driver)))
    assert requested is not None
    assert in_driver - 2**30 // 100 <= requested <= in_driver
    assert printed(requested) == printed(in_driver)
    assert requested % (2 * MIB) == 0


@given(st.integers(1, 2**45))
def test_the_number_that_other_allocators_print_is_a_lower_bound(size: int) -> None:
    requested = requested_in(ASYNC.format(printed(size)))
    assert requested is not None
    assert requested <= size
    assert size - requested <= max(1, size // 100)


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("512 bytes", 512),
        ("1.50 KiB", 1531),
        ("1.00 GiB", GIB),
        ("72.8 GiB", 78_114_717_696),
        ("728. MiB", 762_839_040),
    ],
)
def test_numpys_three_digits_are_a_lower_bound_too(text: str, least: int) -> None:
    message = f"Unable to allocate {text} for an array with shape (9,) and data type float64"
    assert requested_in(message) == least


@given(st.integers(0, 2**63 - 1))
def test_the_cpu_allocators_number_is_exact(size: int) -> None:
    assert requested_in(CPU.format(size)) == size
    assert requested_in(WINDOWS.format(size)) == size


@pytest.mark.parametrize("message", ["", "CUDA error: out of memory", "Tried to allocate a lot", "tried 3.00 GiB"])
def test_a_message_without_a_number_has_no_bytes_requested(message: str) -> None:
    assert requested_in(message) is None


def test_the_text_of_the_torch_that_is_installed_is_recognised() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**45)
    error = refused.value
    chain = [cause(type(error).__name__, str(error), *(base.__name__ for base in type(error).__mro__[1:-1]))]
    assert refusal_in(chain) == Refusal("host", 4 * 2**45)


def test_the_text_of_the_numpy_that_is_installed_is_a_lower_bound() -> None:
    numpy = pytest.importorskip("numpy")
    for size in (2**45, 64 * 10**12, 2**49):
        with pytest.raises(MemoryError) as refused:
            numpy.empty(size, dtype="f8")
        requested = requested_in(str(refused.value))
        assert requested is not None
        assert 0.99 * 8 * size < requested <= 8 * size


# -- refusals that the workload catches --------------------------------------------------------------------------------


def test_refused_allocations_are_counted_with_the_largest_since_the_last_reading() -> None:
    refusals = RefusalCount()
    for error in (RuntimeError(CPU.format(4096)), ValueError(CPU.format(2**40)), RuntimeError(CPU.format(1024))):
        refusals.see(error)
    assert (refusals.take(), refusals.take()) == ((2, 4096), (0, None))
    refusals.see(MemoryError())
    assert (refusals.count, refusals.take()) == (3, (1, None))


def test_a_batch_size_finder_without_a_size_left_is_recognised_by_its_message() -> None:
    assert gave_up([runtime_error("No executable batch size found, reached zero.")])
    assert not gave_up([runtime_error("no batch size was given")])

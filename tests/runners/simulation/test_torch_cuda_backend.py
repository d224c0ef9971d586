"""torch.cuda and torch.accelerator of a card that is not there: each call is answered, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.programs import H100, HOST, MI300X, MIB, calculated

Json = dict[str, Any]


def answered(expression: str, card: Any = H100) -> str:
    """What an expression is on the card, beside a tensor `x` of 1 MiB, as text."""

    def program() -> Json:
        x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        return {"answer": str(eval(expression, {"torch": torch, "nn": nn, "x": x}))}

    found = calculated(program, card)
    assert found.error is None, found.lines[-1]["traceback"] or found.error
    return str(found.returned["answer"])


def refusal(expression: str, card: Any = H100) -> str:
    """The exception that an expression ends with on the card."""

    def program() -> None:
        x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        eval(expression, {"torch": torch, "nn": nn, "x": x})

    return str(calculated(program, card).error)


HERE = "device(type='cuda', index=0)"
ANSWERS = {
    "torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device()": "(True, 1, 0)",
    "torch.cuda.get_device_name()": ("NVIDIA H100 80GB HBM3", "AMD MI300X"),
    "torch.cuda.get_device_capability('cuda:0')": ("(9, 0)", "(9, 4)"),
    "torch.cuda.get_device_properties(0).total_memory": ("85045477376", "206158430208"),
    "torch.cuda.get_device_properties(x.device).warp_size": ("32", "64"),
    "torch.version.cuda, torch.version.hip": ("('13.0', None)", "(None, '7.0')"),
    "torch.cuda.get_arch_list()": ("['sm_90']", "['gfx942']"),
    "torch.cuda.is_bf16_supported(), torch.cuda.is_tf32_supported()": "(True, True)",
    "torch.accelerator.current_accelerator(), torch.accelerator.device_count()": "(device(type='cuda'), 1)",
    "torch.bfloat16 in torch.accelerator.get_device_capability()['supported_dtypes']": "True",
    "torch.get_device_module().__name__": "torch.cuda",
    "torch.backends.cuda.is_built(), torch.backends.cudnn.is_available()": "(True, True)",
    "torch.backends.cudnn.is_acceptable(x.float()), torch.backends.cudnn.version() > 0": "(True, True)",
    "torch.backends.cuda.is_flash_attention_available()": "True",
    "torch.backends.cuda.cufft_plan_cache.max_size, torch.backends.cuda.cufft_plan_cache.clear()": "(4096, None)",
    "torch.amp.is_autocast_available('cuda'), torch.amp.GradScaler('cuda').is_enabled()": "(True, True)",
    "torch.cuda.get_sync_debug_mode(), torch.cuda.can_device_access_peer(0, 0)": "(0, False)",
    "torch.cuda.memory.get_allocator_backend(), torch.cuda.get_per_process_memory_fraction()": "('native', 1.0)",
    "torch.device(0), torch.cuda.FloatTensor(2).type(), x.type()": (
        f"({HERE}, 'torch.cuda.FloatTensor', 'torch.cuda.ByteTensor')"
    ),
    "x.device, x.is_cuda, x.is_cpu, x.is_meta, x.get_device()": f"({HERE}, True, False, False, 0)",
    "x.cuda() is x, x.to('cuda') is x, x.to(0) is x, x.to(x) is x": "(True, True, True, True)",
    "x.cpu().device, x.cpu().to(x).device": f"(device(type='cpu'), {HERE})",
    "x.is_shared(), x.share_memory_() is x, x.is_pinned(), x.cpu().pin_memory().is_pinned()": (
        "(True, True, False, True)"
    ),
    "repr(x)": "tensor(..., device='cuda:0', size=(1048576,), dtype=torch.uint8)",
}


@pytest.mark.parametrize("expression", ANSWERS)
@pytest.mark.parametrize("card", [H100, MI300X])
def test_a_card_is_as_its_file_describes_it(expression: str, card: Any) -> None:
    wanted = ANSWERS[expression]
    assert answered(expression, card) == (wanted if isinstance(wanted, str) else wanted[card is MI300X])


def test_on_a_calculated_host_there_is_no_card() -> None:
    def program() -> Json:
        torch.empty(MIB, dtype=torch.uint8)
        return {
            "found": str((torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available())),
            "pinned": torch.ones(1).is_pinned(),
        }

    assert calculated(program, HOST).returned == {"found": "(False, 0, False)", "pinned": False}


@pytest.mark.parametrize(
    "expression",
    ["torch.cuda.set_device(1)", "torch.cuda.mem_get_info(2)", "x.cuda(1)", "torch.accelerator.set_device_index(1)"],
)
def test_another_card_is_refused_in_cudas_words(expression: str) -> None:
    assert refusal(expression) == "torch.AcceleratorError: CUDA error: invalid device ordinal"


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("torch.cuda.get_device_properties(0).L2_cache_size", "get_device_properties(0).L2_cache_size is not answered"),
        ("torch.cuda.CUDAGraph()", "torch.cuda.CUDAGraph is not followed"),
        ("torch.cuda.make_graphed_callables(nn.Linear(2, 2).cuda(), (x,))", "make_graphed_callables is not followed"),
        ("torch.cuda.MemPool()", "torch.cuda.MemPool is not followed"),
        ("torch.cuda.memory.change_current_allocator(None)", "change_current_allocator is not followed"),
        ("torch.cuda.caching_allocator_enable(False)", "torch.cuda.caching_allocator_enable(False) is not followed"),
        ("torch.cuda.host_memory_stats()", "torch.cuda.host_memory_stats()"),
        ("torch._C._accelerator_setAllocatorSettings('max_split_size_mb:64')", "the allocator's settings (max_split"),
        ("torch._C._cuda_setCublasWorkspaceSize(0, 1)", "torch._C._cuda_setCublasWorkspaceSize is not followed"),
        ("torch.backends.cuda.cufft_plan_cache.size", "the number of cuFFT's plans is not followed"),
        ("torch.cuda.current_blas_handle()", "torch._C._cuda_getCurrentBlasHandle is not answered"),
        ("torch.cuda.nccl.version()", "torch._C._nccl_version is not answered"),
    ],
)
def test_what_is_not_known_or_not_followed_is_refused_by_name(expression: str, name: str) -> None:
    error = refusal(expression)
    assert error.startswith("runners.phases.Unavailable: ")
    assert name in error


def test_a_library_that_looks_whether_a_function_is_there_goes_on() -> None:
    assert answered("hasattr(torch._C, '_cuda_getCurrentBlasHandle')") == "False"
    assert answered("hasattr(torch._C, '_cuda_getCurrentRawStream')") == "True"
    assert answered("getattr(torch.cuda.get_device_properties(0), 'clock_rate', None)") == "None"


def test_a_build_for_cuda_offers_nothing_of_real_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = object()
    monkeypatch.setattr(torch._C, "_cuda_getCurrentBlasHandle", real, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    assert answered("hasattr(torch._C, '_cuda_getCurrentBlasHandle')") == "False"
    assert answered("torch.version.cuda", MI300X) == "None"
    assert vars(torch._C)["_cuda_getCurrentBlasHandle"] is real


def test_how_many_processors_a_card_has_is_not_known_for_amd() -> None:
    assert answered("torch.cuda.get_device_properties(0).multi_processor_count") == "132"
    assert "multi_processor_count is not answered" in refusal(
        "torch.cuda.get_device_properties(0).multi_processor_count", MI300X
    )
    assert "multi_processor_count=unknown" in answered("torch.cuda.get_device_properties(0)", MI300X)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_all_ways_to_ask_for_the_memory_agree() -> None:
    def program() -> Json:
        kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        stats, accelerator = torch.cuda.memory_stats(), torch.accelerator.memory_stats()
        (line,) = [each for each in torch.cuda.memory_summary().splitlines() if each.startswith("| Allocated memory")]
        segments = torch.cuda.memory_snapshot()
        return {
            "now": str((torch.cuda.memory_allocated(), torch.accelerator.memory_allocated(), kept.numel())),
            "peak": str((torch.cuda.max_memory_allocated(), torch.accelerator.max_memory_allocated())),
            "reserved": str((torch.cuda.memory_reserved(), torch.accelerator.max_memory_reserved())),
            "stats": stats == accelerator,
            "active": stats["active_bytes.all.peak"] == stats["allocated_bytes.all.peak"],
            "times": str((stats["allocation.all.allocated"], stats["allocation.all.freed"], stats["num_ooms"])),
            "summary": " ".join(line.split()),
            "segments": str([(each["total_size"] // MIB, each["allocated_size"] // MIB) for each in segments]),
            "free": torch.cuda.mem_get_info()[0] + stats["reserved_bytes.all.current"],
            "same": torch.cuda.mem_get_info() == torch.accelerator.get_memory_info(),
        }

    assert calculated(program).returned == {
        "now": f"({3 * MIB}, {3 * MIB}, {3 * MIB})",
        "peak": f"({43 * MIB}, {43 * MIB})",
        "reserved": f"({60 * MIB}, {60 * MIB})",
        "stats": True,
        "active": True,
        "times": "(2, 1, 0)",
        "summary": "| Allocated memory | 3072 KiB | 44032 KiB | 44032 KiB | 40960 KiB |",
        "segments": "[(20, 3), (40, 0)]",
        "free": 85045477376 - 2**29,
        "same": True,
    }


@pytest.mark.parametrize("module", ["cuda", "accelerator"])
def test_peaks_and_sums_start_again_where_a_program_resets_them(module: str) -> None:
    def program() -> Json:
        where = getattr(torch, module)
        torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        where.reset_peak_memory_stats()
        where.reset_accumulated_memory_stats()
        stats = where.memory_stats()
        return {
            "peak": where.max_memory_allocated() // MIB,
            "times": stats["allocation.all.allocated"],
            "kept": kept.is_cuda,
        }

    assert calculated(program).returned == {"peak": 1, "times": 0, "kept": True}


def test_a_refusal_has_torchs_words_and_figures() -> None:
    def program() -> Json:
        kept = torch.empty(24 * MIB, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            stats = torch.cuda.memory_stats()
            return {
                "why": str(error),
                "ooms": stats["num_ooms"],
                "retries": stats["num_alloc_retries"],
                "kept": len(kept),
            }
        return {}

    found = calculated(program, total=48 * MIB).returned
    assert (found["ooms"], found["retries"], found["kept"]) == (1, 1, 24 * MIB)
    for each in (
        "CUDA out of memory. Tried to allocate 40.00 MiB.",
        "24.00 MiB is free",
        "24.00 MiB is allocated by PyTorch",
    ):
        assert each in found["why"]


# --- streams, events, random numbers ----------------------------------------------------------------------------------


def test_streams_are_entered_and_left_and_differ() -> None:
    def program() -> Json:
        torch.empty(1, device="cuda")
        first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
        seen = [torch.cuda.current_stream() == torch.cuda.default_stream()]
        with torch.cuda.stream(first):
            seen.append(torch.cuda.current_stream() == first)
            with second:
                seen += [torch.cuda.current_stream() == second, first != second]
            seen.append(torch.cuda.current_stream() == first)
        event = first.record_event()
        second.wait_event(event)
        second.wait_stream(first)
        event.synchronize()
        torch.cuda.synchronize()
        seen += [event.query(), first.query(), torch.cuda.current_stream() == torch.cuda.default_stream()]
        seen.append(isinstance(first, torch.Stream) and isinstance(event, torch.Event))
        return {"all": all(seen), "priority": second.priority}

    assert calculated(program).returned == {"all": True, "priority": -1}


@pytest.mark.parametrize("way", ["not recorded", "without timing"])
def test_a_time_between_events_that_have_none_is_refused_as_on_a_card(way: str) -> None:
    def program() -> None:
        torch.empty(1, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=way == "not recorded") for _ in range(2))
        if way == "without timing":
            start.record()
            end.record()
        start.elapsed_time(end)

    assert str(calculated(program).error).startswith("ValueError: Both events must be ")


def test_states_of_random_numbers_are_kept_and_given_back() -> None:
    def program() -> Json:
        torch.manual_seed(5)
        by_default = torch.cuda.initial_seed()
        torch.cuda.manual_seed_all(11)
        state = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(3)
        torch.cuda.set_rng_state(state)
        with torch.random.fork_rng():
            torch.cuda.manual_seed(4)
        generator = torch.Generator(device="cuda")
        generator.manual_seed(7)
        twin = torch.Generator("cuda").set_state(generator.get_state())
        torch.randn(2, device="cuda", generator=twin)
        return {
            "seeds": str((by_default, torch.cuda.initial_seed(), twin.initial_seed())),
            "state": str((state.device.type, state.numel(), len(torch.cuda.get_rng_state_all()))),
            "device": str((generator.device, torch.Generator().device)),
        }

    assert calculated(program).returned == {
        "seeds": "(5, 11, 7)",
        "state": "('cpu', 16, 1)",
        "device": "(device(type='cuda', index=0), device(type='cpu'))",
    }


def test_a_step_with_a_gradient_scaler_runs_as_with_finite_gradients() -> None:
    def program() -> Json:
        model = nn.Linear(512, 512, bias=False).cuda()
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                out = model(torch.ones(4, 512, device="cuda"))
                loss = out.float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return {"dtype": str(out.dtype), "scale": scaler.get_scale(), "device": str(loss.device)}

    assert calculated(program).returned == {"dtype": "torch.float16", "scale": 65536.0, "device": "cuda:0"}


@pytest.mark.parametrize(
    ("card", "dtype", "mask", "expected"),
    [
        (H100, torch.bfloat16, False, (True, True, True)),
        (H100, torch.float32, False, (False, True, False)),
        (H100, torch.bfloat16, True, (False, True, True)),
        (MI300X, torch.float16, False, (True, True, False)),
    ],
)
def test_what_attention_a_program_can_use_is_what_is_calculated_with(
    card: Any, dtype: torch.dtype, mask: bool, expected: tuple[bool, ...]
) -> None:
    def program() -> Json:
        x = torch.empty(2, 8, 128, 64, dtype=dtype, device="cuda")
        bias = torch.empty(2, 8, 128, 128, dtype=dtype, device="cuda") if mask else None
        params = torch.backends.cuda.SDPAParams(x, x, x, bias, 0.0, False, False)
        where = torch.backends.cuda
        asked = where.can_use_flash_attention, where.can_use_efficient_attention, where.can_use_cudnn_attention
        return {"usable": str(tuple(ask(params) for ask in asked))}

    assert calculated(program, card).returned == {"usable": str(expected)}


def test_nothing_of_the_card_is_left_when_an_attempt_is_over() -> None:
    names = {name for name in dir(torch.cuda) if not name.startswith("__")}
    of_core = {name for name in dir(torch._C) if name.startswith(("_cuda", "_accelerator"))}
    made = torch.UntypedStorage.__new__, torch.load, torch.Generator, torch.cuda.Event
    answered("x.device")
    assert (torch.cuda.is_available(), torch.version.cuda) == (False, None)
    assert {name for name in dir(torch.cuda) if not name.startswith("__")} - names <= {"graphs", "comm"}
    assert {name for name in dir(torch._C) if name.startswith(("_cuda", "_accelerator"))} == of_core
    assert (torch.UntypedStorage.__new__, torch.load, torch.Generator, torch.cuda.Event) == made
    assert torch.UntypedStorage(4).nbytes() == 4
    assert torch.empty(2, device="meta").is_meta
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        torch.ones(1, device="cuda")

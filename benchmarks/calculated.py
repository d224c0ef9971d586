"""Compare what `devices=[sim:cpu]` calculates with PyTorch's own CPU counter.

    python benchmarks/calculated.py            # all rows
    python benchmarks/calculated.py bert phi3  # rows whose command line contains one of these words

PyTorch's counter is the profiler's: the bytes that c10 has allocated, after each allocation. Its maximum over a run,
less its value before the workload, is compared with the maximum of `tensor` in the point's calculated journal. Both
come from processes of their own, forked from one that has imported the libraries.

The counter sums requested sizes, the calculation sums sizes aligned to 64 bytes as by the allocator. The counter also
includes memory that kernels allocate within an operator. It belongs to no tensor and is not in `tensor`, neither
measured nor calculated. Where it decides a peak, the row is an exception, and the rules in SCRATCH predict its size.
"""

from __future__ import annotations

import argparse
import importlib
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runners.device import CPU_CARD, Device
from runners.phases import Phases, Reading
from runners.point import Attempt, Point
from sweeper.planning.command_line import read
from sweeper.planning.planner import plan_of
from sweeper.planning.probes import Probes

MIB = 2**20
TOLERANCE = 0.1 * MIB
MOST_EXCEPTIONS = 3

# Rows of an earlier study with its figures in MiB, which the counter must reproduce.
STUDY = {
    "train smollm2-135m batch=1 context=256 workload.set_to_none=false": 2537.488,
    "train smollm2-135m batch=8 context=256 workload.set_to_none=false": 5830.764,
    "forward smollm2-135m batch=8 context=256": 901.650,
    "train small-llama batch=4 context=256 workload.set_to_none=false": 377.891,
}
MORE = """
    train tiny-llama batch=4 context=256
    train tiny-llama batch=4 context=256 attention=eager
    train tiny-llama batch=4 context=256 workload.checkpointing=true
    train tiny-llama batch=4 context=256 workload.checkpointing=true attention=eager
    train tiny-llama batch=4 context=256 workload.method=lora
    train tiny-llama batch=4 context=256 workload.method=lora workload.checkpointing=true workload.dropout=0.1
    train tiny-llama batch=2 context=128 dtype=bfloat16
    train tiny-llama batch=2 context=128 workload.precision=bfloat16
    train tiny-llama batch=2 context=128 workload.precision=bfloat16 workload.checkpointing=true
    train tiny-llama batch=2 context=128 workload.precision=bfloat16 attention=eager
    train tiny-llama batch=2 context=128 workload.precision=float16
    train tiny-llama batch=8 context=128 workload.accumulate=4 workload.max_grad_norm=1.0
    train tiny-llama batch=2 context=128 workload.optimizer=adamw-foreach
    train tiny-llama batch=2 context=128 workload.optimizer=adamw-fused workload.max_grad_norm=1.0
    train tiny-llama batch=2 context=128 workload.optimizer=sgd
    train tiny-llama batch=2 context=128 workload.optimizer=adam
    train small-llama batch=2 context=256 workload.evaluation.batch=8
    train tiny-gpt2 batch=32 context=128
    train tiny-gpt2 batch=32 context=128 attention=eager workload.checkpointing=true
    train tiny-gpt-neox batch=32 context=128
    train tiny-phi3 batch=32 context=128 workload.checkpointing=true
    train tiny-bert batch=32 context=128
    train tiny-bert batch=32 context=128 workload.precision=bfloat16
    train tiny-t5 batch=32 context=128
    train tiny-vit batch=64 context=1
    train tiny-whisper batch=32 context=64
    train tiny-gemma2 batch=32 context=128
    train tiny-modernbert batch=32 context=128
    train tiny-mixtral batch=16 context=64
    train tiny-resnet batch=32 context=1 inputs.resolution=64
    train tiny-mamba batch=16 context=64
    train mlp batch=16 context=256 workload.precision=bfloat16
    forward tiny-llama batch=8 context=512
    forward tiny-llama batch=8 context=512 workload.logits=last dtype=bfloat16
    forward tiny-gpt2 batch=64 context=256 attention=eager
    forward tiny-bert batch=64 context=256
    forward tiny-clip batch=64 context=64
    forward tiny-swin batch=64 context=1
    generate tiny-llama batch=8 context=256 workload.new_tokens=8
    generate tiny-llama batch=8 context=256 workload.new_tokens=8 workload.cache=static
    generate tiny-llama batch=2 context=256 workload.new_tokens=8 workload.prompt_lengths=4 workload.packing=packed
    generate tiny-gemma2 batch=64 context=256 workload.new_tokens=8 workload.cache=sliding
    generate tiny-gemma2 batch=64 context=256 workload.new_tokens=8 workload.cache=static
    generate tiny-phi3 batch=64 context=256 workload.new_tokens=8 attention=eager
"""


@dataclass(frozen=True, slots=True)
class Compared:
    row: str
    counted: int  # bytes, as the next two
    calculated: int | None  # None if the point could not be calculated
    with_scratch: int | None = None  # calculated with kernels' own memory, where the two differ
    why: str = ""  # why the point could not be calculated

    @property
    def equal(self) -> bool:
        return self.calculated is not None and abs(self.calculated - self.counted) <= TOLERANCE

    @property
    def explained(self) -> bool:
        return self.equal or (self.with_scratch is not None and abs(self.with_scratch - self.counted) <= TOLERANCE)

    @property
    def as_studied(self) -> bool:
        return self.row not in STUDY or abs(self.counted / MIB - STUDY[self.row]) < 0.001

    def __str__(self) -> str:
        row = self.row if self.as_studied else f"{self.row}  <- the study counted {STUDY[self.row]:.3f}"
        if self.calculated is None:
            return f"{self.counted / MIB:9.3f}          -          -  {row}  <- {self.why}"
        difference = self.calculated - self.counted
        figures = f"{self.counted / MIB:9.3f}  {self.calculated / MIB:9.3f}  {difference / MIB:9.3f}  {row}"
        if self.with_scratch is None:
            return figures
        return f"{figures}  <- with the kernels' own memory {self.with_scratch / MIB:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    words = parser.parse_args(arguments).words
    rows = [*STUDY, *filter(None, map(str.strip, MORE.splitlines()))]
    rows = [row for row in rows if not words or any(word in row for word in words)]
    began = time.perf_counter()
    print("  counter calculated difference, MiB")
    compared = list(each_compared(rows))
    exceptions = [each for each in compared if not each.equal]
    print(
        f"{len(compared) - len(exceptions)} of {len(compared)} equal within {TOLERANCE / MIB} MiB, "
        f"{sum(each.explained for each in exceptions)} more with the kernels' own memory, "
        f"{time.perf_counter() - began:.0f} s"
    )
    explained = all(each.explained and each.as_studied for each in compared)
    return 0 if explained and len(exceptions) <= MOST_EXCEPTIONS else 1


def each_compared(rows: Sequence[str]) -> Iterator[Compared]:
    importlib.import_module("torch._dynamo")  # the first optimizer would import it, in each process again
    for row in rows:
        point = point_of(row)
        for module in workload_of(point).imports(point.values):
            importlib.import_module(module)
        counted = in_a_process(counter, point)
        calculated, why = in_a_process(calculation, point)
        compared = Compared(row, counted, calculated, why=why)
        if calculated is not None and not compared.equal:
            compared = replace(compared, with_scratch=in_a_process(calculation_with_scratch, point)[0])
        print(compared, flush=True)
        yield compared


def point_of(row: str) -> Point:
    workload, model, *overrides = row.split()
    line = read([f"workload={workload}", f"model={model}", "devices=[sim:cpu]", *overrides])
    with Probes() as probes:
        (point,) = plan_of(line, probes, print).points
    return point


def workload_of(point: Point) -> Any:
    return importlib.import_module(f"runners.workloads.{point['workload']}")


def in_a_process(function: Callable[[Point], Any], point: Point) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as process:
        return process.submit(function, point).result()


# --- PyTorch's own counter --------------------------------------------------------------------------------------------


def counter(point: Point) -> int:
    """The highest number of bytes that c10 had allocated, less those before the workload."""
    from torch.profiler import ProfilerActivity, profile

    workload, values = workload_of(point), point.values
    workload.prepare(values, "cpu")
    ignored = Ignored()
    phases = Phases(ignored, ignored)  # type: ignore[arg-type]
    phases.open()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        workload.run(values, "cpu", phases)
    allocations = list(allocations_of(recorded))
    first = allocations[0]
    before: int = first.total_allocated - first.alloc_size
    most: int = max(each.total_allocated for each in allocations)
    return most - before


def allocations_of(recorded: Any) -> Iterator[Any]:
    """All allocations in order of time. The profiler has them in a tree, below their operators."""
    from torch._C._profiler import _EventType

    pending, found = list(recorded.profiler.kineto_results.experimental_event_tree()), []
    while pending:
        event = pending.pop()
        pending += event.children
        if event.tag == _EventType.Allocation:
            found.append(event)
    return (event.extra_fields for event in sorted(found, key=lambda event: event.start_time_ns))


class Ignored:
    """The meter and the journal of a run whose phases are not needed."""

    def boundary(self, failed: bool = False) -> Mapping[str, Reading]:
        return {}

    glance = boundary

    def write(self, *lines: Mapping[str, Any]) -> None:
        pass


# --- the calculation ---------------------------------------------------------------------------------------------


def calculation(point: Point) -> tuple[int | None, str]:
    """The highest `tensor` in bytes; or None, and why there is none."""
    from runners.simulation.card_memory import memory_of
    from runners.simulation.replay import replay
    from runners.simulation.trace import trace_workload

    attempt = Attempt(point=point, device=Device(name="sim:cpu", card=CPU_CARD))
    trace = trace_workload(attempt, workload_of(point), lambda error: {"why": f"{type(error).__name__}: {error}"})
    largest = 0
    for line in replay(trace, attempt.device.name, memory_of(CPU_CARD, None)):
        if line["kind"] == "failed":
            return None, line["why"]
        if line["kind"] == "ended":
            largest = max(largest, line["counters"][attempt.device.name]["peak"]["tensor"])
    return largest, ""


# --- memory that CPU kernels allocate for themselves ------------------------------------------------------------------


def calculation_with_scratch(point: Point) -> tuple[int | None, str]:
    """The same with kernels' own memory. It changes CpuRules for the whole process."""
    from runners.simulation.torch_device_rules import CpuRules

    CpuRules.temporaries = lambda self, *call: scratch(*call)  # type: ignore[method-assign]
    return calculation(point)


def scratch(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sequence[int]:
    """The most bytes that a kernel holds at once in addition to its results."""
    rule = SCRATCH.get(str(operator))
    return () if rule is None else (rule(args, kwargs, result),)


def loss_bytes(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The losses of all elements, before their mean (aten/src/ATen/native/Loss.cpp)."""
    return int(args[0].nbytes) if result.ndim == 0 else 0


def convolution_bytes(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """oneDNN computes in a layout of blocks of channels, then copies. First the input and the weights exist in that
    layout in addition to the output, then a second output."""
    image, weight = args[:2]
    return max(int(result.nbytes), blocked(image, args[8]) + int(weight.nbytes))


def convolution_backward_bytes(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """The same for the gradient of the input and then of the weights. With a stride the input's gradient is copied
    twice."""
    gradient, image, weight = args[:3]
    read = int(gradient.nbytes) + blocked(image, args[9]) + partial_sums(gradient, image, weight, args[4], args[9])
    made = blocked(image, args[9]) * (2 if max(args[4]) > 1 else 1)
    copied = 0 if gradient.is_contiguous() else int(gradient.nbytes)
    return copied + max(read, made if args[10][0] else 0)


def blocked(image: Any, groups: int) -> int:
    """Bytes of a copy in blocks of channels. With few channels or several groups the image is read without a copy."""
    return int(image.nbytes) if groups == 1 and image.shape[1] % 8 == 0 else 0


def partial_sums(gradient: Any, image: Any, weight: Any, stride: Sequence[int], groups: int) -> int:
    """Bytes in which threads sum the gradient of the weights: a buffer for each group of images after the first.

    Only oneDNN's kernel for AVX-512 divides images between threads. On AVX2, or with one thread, there is no buffer.
    Source: oneDNN 3.12, src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_scratchpad. A buffer has weights and biases
    in float32, with channels rounded up to 16. All together add 128 bytes of alignment and a barrier of 4096 bytes,
    aligned to 4096. Kernels of 1 x 1 have an implementation of their own, and their buffers are not in here.
    """
    import torch

    if groups != 1 or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return 0
    positions = math.prod(weight.shape[2:])
    outputs, inputs = (-(-channels // 16) for channels in weight.shape[:2])
    buffers = image_groups(gradient, image, positions, math.prod(stride), outputs, inputs) - 1
    return int(buffers * 4 * 16 * outputs * (16 * inputs * positions + 1) + 128 + 2 * 4096) if buffers else 0


def image_groups(gradient: Any, image: Any, positions: int, stride: int, outputs: int, inputs: int) -> int:
    """The number of groups in which oneDNN's threads divide the images (same source, balance).

    The threads are split between images, `outputs` and `inputs`, which are blocks of 16 channels: first for the least
    memory traffic of a thread, then for the least work of a thread at up to 110 % of that traffic.
    """
    import torch

    threads, by_row = torch.get_num_threads(), gradient.shape[2] > 9
    rows_in, rows_out = (each.shape[2] if by_row else 1 for each in (image, gradient))
    row_in, row_out = image[0, 0].numel() // rows_in, gradient[0, 0].numel() // rows_out
    count = len(image)
    most = min(threads, count * max(1, rows_out // 9))

    def traffic(split: tuple[int, int, int]) -> int:
        images, blocks_out, blocks_in = split
        blocks_out, blocks_in = -(-outputs // blocks_out), -(-inputs // blocks_in)
        read = -(-count * rows_in // images) * blocks_in * 16 * row_in // stride
        written = -(-count * rows_out // images) * blocks_out * 16 * row_out
        return int(read + written + 8 * blocks_out * blocks_in * 256 * positions)

    def work(split: tuple[int, int, int]) -> int:
        images, blocks_out, blocks_in = split
        return -(-count * rows_out // images) * -(-outputs // blocks_out) * -(-inputs // blocks_in)

    splits = [
        (images, blocks_out, min(threads // images // blocks_out, inputs))
        for images in range(1, most + 1)
        for blocks_out in range(1, min(threads // images, outputs) + 1)
    ]
    chosen = min(reversed(splits), key=traffic)
    least = traffic(chosen)
    for split in splits:
        near = work(split) <= work(chosen) and traffic(split) < 1.1 * least
        if near or 4 * work(split) <= 3 * work(chosen):
            chosen = split
    groups = chosen[0]
    return most if threads // 2 < groups < threads else groups


def attention_bytes(args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Each thread has a block of scores, maxima, sums and outputs in float32 (native/cpu/FlashAttentionKernel.cpp)."""
    import torch

    query, key = args[:2]
    length, size = query.shape[-2:]
    rows = min(256 if length >= 768 else 64 if length >= 192 else 32, length)
    columns = min(512, key.shape[-2])
    return int(4 * torch.get_num_threads() * rows * (columns + 2 + size))


SCRATCH: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any], Any], int]] = {
    "aten.mse_loss.default": loss_bytes,
    "aten.convolution.default": convolution_bytes,
    "aten.convolution_backward.default": convolution_backward_bytes,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention_bytes,
}


if __name__ == "__main__":
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "KINETO_LOG_LEVEL": "99"}  # idle threads sleep; a silent profiler
    sys.exit(main())

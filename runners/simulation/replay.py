"""Replays a trace on the simulated memory of a card or a host, to add the counters to the journal's lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runners import facts
from runners.journal import BETWEEN
from runners.phases import Reading
from runners.simulation.allocator import Refused
from runners.simulation.card_memory import HostMemory, Memory
from runners.simulation.events import Player
from runners.simulation.trace import EVENT, AllocationTrace


def replay(trace: AllocationTrace, device: str, memory: Memory) -> Iterator[dict[str, Any]]:
    """The journal's lines with the counters of `memory`, under the name `device`. A refusal ends them."""
    player = Player(memory)
    done, before = 0, memory.boundary()
    phase: dict[str, Any] = {"phase": BETWEEN, "run_index": None}
    for line in trace.lines:
        retries, ooms = memory.alloc_retries, memory.num_ooms
        line = dict(line)
        until = line.pop(EVENT)
        try:
            player.play(trace.events, done, until)
        except Refused as refused:
            counters = _counters(before, memory.boundary(), memory, retries, ooms)
            yield {
                **{"kind": "ended", **phase, "completed": False, "elapsed_s": None},
                # A traced program cannot catch what is refused in the replay, so it is not known whether it would.
                "counters": {
                    device: counters | {"refused": _as_fact(refused, counters["end"])._asdict(), "refusals": None}
                },
            }
            yield {"kind": "failed", "chain": [_error_of(refused, memory)], "traceback": None}
            return
        done = until
        if line["kind"] == "ended":
            after = memory.boundary()
            counters = _counters(before, after, memory, retries, ooms)
            if refusals := player.take_refusals():  # the program learnt of them
                counters["refusals"] = len(refusals)
                counters["refused"] = _as_fact(*refusals[-1])._asdict()
                counters["refused_bytes"] = max(refused.requested for refused, _ in refusals)
            line |= {"counters": {device: counters}, "elapsed_s": None}
            before, phase = after, {"phase": BETWEEN, "run_index": None}
        elif line["kind"] == "began":
            line["counters"] = {device: {"baseline": before.now}}
            phase = {"phase": line["phase"], "run_index": line["run_index"]}
        yield line


def _counters(before: Reading, after: Reading, memory: Memory, retries: int | None, ooms: int | None) -> dict[str, Any]:
    def rise(then: int | None, now: int | None) -> int | None:
        return None if then is None or now is None else now - then

    return {
        "baseline": before.now,
        "end": after.now,
        "peak": after.peak,
        "alloc_retries": rise(retries, memory.alloc_retries),
        "num_ooms": rise(ooms, memory.num_ooms),
        "refusals": 0,
    }


def _as_fact(refused: Refused, held: Mapping[str, int]) -> facts.Refused:
    return facts.Refused(refused.requested, dict(held), refused.needs)


def _error_of(refused: Refused, memory: Memory) -> dict[str, Any]:
    """PyTorch's own exception for this refusal, so that the outcome recognises it as for a measured attempt."""
    kind = "RuntimeError" if isinstance(memory, HostMemory) else "torch.OutOfMemoryError"
    return {"type": kind, "bases": ["RuntimeError", "Exception"], "message": str(refused)}

"""The simulated allocator: PyTorch's rules one by one, histories by these rules, and invariants of any history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runners.facts import Cause
from runners.refusals import Refusal, least_block_bytes, refusal_in, requested_in
from runners.simulation.allocator import FIRST_ADDRESS, CachingAllocator, Refused, Settings

KIB = 2**10
MIB = 2**20
GIB = 2**30
EXPANDABLE = Settings(expandable_segments=True)
UNSPLIT = Settings(max_split_size=20 * MIB)


def sizes(allocator: CachingAllocator) -> list[int]:
    return [segment["total_size"] for segment in allocator.segments()]


def states(allocator: CachingAllocator) -> list[list[tuple[str, int]]]:
    return [[(block["state"], block["size"]) for block in segment["blocks"]] for segment in allocator.segments()]


# Sizes, pools and segments


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB)])
def test_a_block_is_a_multiple_of_512_bytes(size: int, block: int) -> None:
    allocator = CachingAllocator(None)
    allocator.allocate(size)
    assert (allocator.requested, allocator.allocated, allocator.active) == (size, block, block)


def test_an_allocation_of_no_bytes_takes_nothing() -> None:
    allocator = CachingAllocator(None)
    handle = allocator.allocate(0)
    assert (allocator.requested, allocator.allocated, allocator.reserved) == (0, 0, 0)
    allocator.free(handle)
    assert allocator.segments() == []


@pytest.mark.parametrize(
    ("size", "segment", "kind"),
    [
        (1, 2 * MIB, "small"),
        (MIB, 2 * MIB, "small"),
        (MIB + 1, 20 * MIB, "large"),
        (10 * MIB - 512, 20 * MIB, "large"),
        (10 * MIB - 511, 10 * MIB, "large"),
        (10 * MIB, 10 * MIB, "large"),
        (10 * MIB + 1, 12 * MIB, "large"),
        (GIB, GIB, "large"),
    ],
)
def test_a_segment_is_2_mib_or_20_mib_or_the_size_in_2_mib(size: int, segment: int, kind: str) -> None:
    allocator = CachingAllocator(None)
    allocator.allocate(size)
    assert [(found["total_size"], found["segment_type"]) for found in allocator.segments()] == [(segment, kind)]
    assert allocator.reserved == segment


def test_a_small_segment_holds_4096_of_the_smallest_blocks() -> None:
    allocator = CachingAllocator(None)
    for _ in range(4096):
        allocator.allocate(512)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(1)
    assert allocator.reserved == 4 * MIB


def test_a_pool_uses_no_blocks_of_the_other() -> None:
    allocator = CachingAllocator(None)
    allocator.free(allocator.allocate(4 * MIB))
    allocator.allocate(MIB)
    assert sizes(allocator) == [20 * MIB, 2 * MIB]


def test_a_stream_uses_no_blocks_of_another() -> None:
    allocator = CachingAllocator(None)
    first = allocator.allocate(4 * MIB, stream=1)
    allocator.free(first)
    allocator.allocate(4 * MIB, stream=2)
    assert [segment["stream"] for segment in allocator.segments()] == [1, 2]
    assert allocator.allocate(4 * MIB, stream=1) == first


# Finding, splitting, joining


def test_the_smallest_block_that_is_large_enough_is_used() -> None:
    allocator = CachingAllocator(None)
    handles = [allocator.allocate(size * MIB) for size in (40, 14, 12, 30)]
    for handle in handles:
        allocator.free(handle)
    assert allocator.allocate(13 * MIB) == handles[1]
    assert allocator.allocate(13 * MIB) == handles[3]


@pytest.mark.parametrize("settings", [Settings(), EXPANDABLE])
def test_the_lowest_of_equal_blocks_is_used(settings: Settings) -> None:
    allocator = CachingAllocator(None, settings=settings)
    handles = [allocator.allocate(12 * MIB) for _ in range(7)][::2]  # those between keep them apart
    for handle in reversed(handles[:3]):
        allocator.free(handle)
    assert [allocator.allocate(12 * MIB) for _ in range(3)] == sorted(handles[:3])


@pytest.mark.parametrize(("size", "block"), [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512)])
def test_a_large_block_is_split_if_more_than_1_mib_is_left(size: int, block: int) -> None:
    allocator = CachingAllocator(None)
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(size)
    assert (allocator.requested, allocator.allocated, allocator.reserved) == (size, block, 20 * MIB)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_freed_neighbours_become_one_block(order: Sequence[int]) -> None:
    allocator = CachingAllocator(None)
    handles = [allocator.allocate(5 * MIB) for _ in range(3)]
    assert states(allocator) == [[("active_allocated", 5 * MIB)] * 3 + [("inactive", 5 * MIB)]]
    for index in order:
        allocator.free(handles[index])
    assert states(allocator) == [[("inactive", 20 * MIB)]]


def test_a_block_is_freed_once() -> None:
    allocator = CachingAllocator(None)
    handle = allocator.allocate(1)
    allocator.free(handle)
    with pytest.raises(KeyError):
        allocator.free(handle)


def test_freed_memory_stays_reserved_until_the_cache_is_emptied() -> None:
    allocator = CachingAllocator(None)
    kept, freed = allocator.allocate(5 * MIB), allocator.allocate(5 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.free(allocator.allocate(1))
    allocator.free(freed)
    assert (allocator.allocated, allocator.reserved) == (5 * MIB, 52 * MIB)
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB  # in use in part, so it stays whole
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_peaks_stay_until_they_are_reset() -> None:
    allocator = CachingAllocator(None)
    allocator.free(allocator.allocate(30 * MIB - 1))
    allocator.empty_cache()
    allocator.allocate(1)
    assert (allocator.peak_requested, allocator.peak_allocated) == (30 * MIB - 1, 30 * MIB)
    assert (allocator.peak_active, allocator.peak_reserved) == (30 * MIB, 30 * MIB)
    allocator.reset_peaks()
    assert (allocator.peak_requested, allocator.peak_allocated) == (1, 512)
    assert (allocator.peak_active, allocator.peak_reserved) == (512, 2 * MIB)


def test_segments_ascend_in_multiples_of_2_mib_and_fill_the_lowest_gap_that_is_large_enough() -> None:
    allocator = CachingAllocator(None)
    handles = [allocator.allocate(size * MIB) for size in (12, 30, 14, 20)]
    base = handles[0]
    assert base % (2 * MIB) == 0
    assert [handle - base for handle in handles] == [0, 12 * MIB, 42 * MIB, 56 * MIB]
    for handle in handles[:2]:
        allocator.free(handle)
    allocator.empty_cache()
    assert allocator.allocate(50 * MIB) == base + 76 * MIB
    assert allocator.allocate(40 * MIB) == base  # both gaps are one
    assert allocator.allocate(2 * MIB) == base + 126 * MIB  # 20 MiB do not fit into the 2 MiB that are left
    assert allocator.allocate(1) == base + 40 * MIB


# Refusals


def test_cached_segments_are_released_before_a_refusal() -> None:
    allocator = CachingAllocator(40 * MIB)
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(30 * MIB)
    assert sizes(allocator) == [30 * MIB]
    assert (allocator.alloc_retries, allocator.num_ooms) == (1, 0)


def test_a_segment_in_use_is_not_released_and_the_refusal_is_counted() -> None:
    allocator = CachingAllocator(40 * MIB)
    allocator.allocate(2 * MIB)
    allocator.free(allocator.allocate(5 * MIB))
    with pytest.raises(Refused) as refusal:
        allocator.allocate(30 * MIB - 1)
    assert (refusal.value.requested, refusal.value.free) == (30 * MIB, 20 * MIB)
    assert (refusal.value.allocated, refusal.value.reserved) == (2 * MIB, 20 * MIB)
    assert (allocator.alloc_retries, allocator.num_ooms) == (1, 1)


def test_the_capacity_can_be_used_to_its_last_byte() -> None:
    allocator = CachingAllocator(50 * MIB)
    allocator.allocate(50 * MIB)
    with pytest.raises(Refused):
        allocator.allocate(1)


def test_the_device_gives_at_least_2_mib() -> None:
    settings = Settings(large_segment_size=21 * MIB)
    CachingAllocator(22 * MIB, settings=settings).allocate(2 * MIB)
    with pytest.raises(Refused):
        CachingAllocator(21 * MIB, settings=settings).allocate(2 * MIB)


def test_the_limit_applies_to_reserved_bytes() -> None:
    allocator = CachingAllocator(None, limit=22 * MIB)
    allocator.allocate(2 * MIB)
    allocator.allocate(1)
    with pytest.raises(Refused, match=r"22\.00 MiB allowed; "):
        allocator.allocate(20 * MIB)
    assert (allocator.reserved, allocator.num_ooms) == (22 * MIB, 1)
    assert allocator.allocate(8 * MIB)


def test_a_refusal_has_the_message_of_pytorch() -> None:
    allocator = CachingAllocator(1000 * MIB, total=1536 * MIB, limit=900 * MIB, outside=400 * MIB)
    allocator.allocate(1000)
    allocator.allocate(798 * MIB)
    with pytest.raises(Refused) as refusal:
        allocator.allocate(101 * MIB)
    assert str(refusal.value) == (
        "CUDA out of memory. Tried to allocate 102.00 MiB. GPU 0 has a total capacity of 1.50 GiB of which 200.00 MiB "
        "is free. Including non-PyTorch memory, this process has 1.17 GiB memory in use. 900.00 MiB allowed; Of the "
        "allocated memory 798.00 MiB is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated."
    )


def test_without_a_limit_the_message_names_none() -> None:
    with pytest.raises(Refused, match=r"memory in use\. Of the allocated memory 0 bytes is"):
        CachingAllocator(0).allocate(1)


def test_under_a_limit_alone_the_message_counts_the_rest_of_the_card_as_free() -> None:
    allocator = CachingAllocator(None, total=GIB, limit=2 * MIB, outside=100 * MIB)
    allocator.allocate(1)
    with pytest.raises(Refused) as refusal:
        allocator.allocate(2 * MIB)
    assert refusal.value.free == 922 * MIB


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"capacity": 100 * MIB, "outside": 28 * MIB}, "a total capacity of 128.00 MiB of which 100.00 MiB is free."),
        ({"capacity": None, "limit": 30 * MIB, "outside": MIB}, "a total capacity of 31.00 MiB of which 30.00 MiB is"),
    ],
)
def test_the_total_defaults_to_capacity_or_limit_and_what_is_outside(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        CachingAllocator(**limits).allocate(102 * MIB)


def test_such_a_message_is_recognised_as_a_refusal_of_the_device() -> None:
    with pytest.raises(Refused) as refusal:
        CachingAllocator(0).allocate(3 * MIB)
    failure = Cause("torch.OutOfMemoryError", message=str(refusal.value))
    assert refusal_in([failure]) == Refusal("device", 20 * MIB, needs_bytes=MIB + 512)


@given(
    st.lists(st.one_of(st.integers(1, 30 * MIB), st.integers(-20, -1)), max_size=40),
    st.integers(20, 120),
    st.sampled_from([Settings(), EXPANDABLE, Settings.parse("roundup_power2_divisions:4")]),
)
@example([30 * MIB, -1, 40 * MIB, 23 * MIB // 2, 20 * MIB], 60, Settings())  # blocks of 11.5 MiB, or of 12
def test_a_refused_program_needs_no_more_than_it_takes_without_a_limit(
    events: Sequence[int], capacity: int, settings: Settings
) -> None:
    """Sizes to allocate, and negative numbers for which of the allocations that are held is freed."""

    def play(allocator: CachingAllocator) -> None:
        held: list[int] = []
        for event in events:
            if event > 0:
                held.append(allocator.allocate(event))
            elif held:
                allocator.free(held.pop(event % len(held)))

    unlimited = CachingAllocator(None, settings=settings)
    play(unlimited)
    try:
        play(CachingAllocator(capacity * MIB, settings=settings))
        needs = 0
    except Refused as refused:
        needs = refused.needs
    assert needs <= unlimited.peak_allocated


@given(st.integers(1, GIB))
@example(MIB + 1)
@example(GIB)
def test_the_message_names_the_bytes_requested_from_the_device(size: int) -> None:
    with pytest.raises(Refused) as refusal:
        CachingAllocator(0).allocate(size)
    assert requested_in(str(refusal.value)) == refusal.value.requested
    assert least_block_bytes(refusal.value.requested) <= refusal.value.needs == -(-size // 512) * 512


# Settings


def test_sizes_round_up_to_a_division_of_a_power_of_two() -> None:
    allocator = CachingAllocator(None, settings=Settings(roundup_power2_divisions=(4,) * 16))
    blocks = []
    for size in (1200, 2048, 2049, 5 * MIB, 5 * MIB + 1, 33 * MIB):
        before = allocator.allocated
        allocator.allocate(size)
        blocks.append(allocator.allocated - before)
    # steps of a quarter, but not below 512 bytes
    assert blocks == [1536, 2048, 2560, 5 * MIB, 6 * MIB, 40 * MIB]


def test_each_interval_has_its_own_divisions() -> None:
    allocator = CachingAllocator(None, settings=Settings.parse("roundup_power2_divisions:[32:2,64:8,>:4]"))
    blocks = []
    for size in (5 * MIB, 33 * MIB, 65 * MIB, 129 * MIB):
        before = allocator.allocated
        allocator.allocate(size)
        blocks.append(allocator.allocated - before)
    assert blocks == [6 * MIB, 48 * MIB, 72 * MIB, 160 * MIB]


def test_large_segments_have_the_configured_size() -> None:
    allocator = CachingAllocator(None, settings=Settings(large_segment_size=64 * MIB))
    allocator.allocate(9 * MIB)
    allocator.allocate(10 * MIB)
    assert sizes(allocator) == [64 * MIB]


def test_a_block_of_max_split_size_serves_no_smaller_request() -> None:
    allocator = CachingAllocator(None, settings=UNSPLIT)
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(12 * MIB)
    assert sizes(allocator) == [20 * MIB, 12 * MIB]


def test_a_request_of_max_split_size_gets_a_whole_block() -> None:
    allocator = CachingAllocator(None, settings=UNSPLIT)
    allocator.free(allocator.allocate(38 * MIB))
    allocator.allocate(20 * MIB)
    assert (allocator.allocated, allocator.reserved) == (38 * MIB, 38 * MIB)


def test_a_block_that_is_20_mib_too_large_is_not_used() -> None:
    allocator = CachingAllocator(None, settings=UNSPLIT)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(20 * MIB)
    assert sizes(allocator) == [40 * MIB, 20 * MIB]


def test_the_excess_that_is_too_large_can_be_configured() -> None:
    allocator = CachingAllocator(None, settings=Settings(max_split_size=20 * MIB, max_non_split_rounding_size=30 * MIB))
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(20 * MIB)
    assert allocator.allocated == 40 * MIB


def test_on_failure_only_one_oversize_block_that_is_large_enough_is_released() -> None:
    allocator = CachingAllocator(160 * MIB, settings=UNSPLIT)
    for handle in [allocator.allocate(size * MIB) for size in (60, 70, 12)]:
        allocator.free(handle)
    allocator.allocate(36 * MIB)
    assert sorted(sizes(allocator)) == [12 * MIB, 36 * MIB, 70 * MIB]
    assert allocator.alloc_retries == 0


def test_on_failure_oversize_blocks_are_released_from_the_largest_until_they_suffice() -> None:
    allocator = CachingAllocator(120 * MIB, settings=UNSPLIT)
    for handle in [allocator.allocate(size * MIB) for size in (24, 30, 40, 12)]:
        allocator.free(handle)
    allocator.allocate(64 * MIB)
    assert sorted(sizes(allocator)) == [12 * MIB, 24 * MIB, 64 * MIB]
    assert allocator.alloc_retries == 0


def test_all_oversize_blocks_are_released_if_they_do_not_suffice() -> None:
    allocator = CachingAllocator(50 * MIB, settings=UNSPLIT)
    for handle in [allocator.allocate(size * MIB) for size in (30, 12)]:
        allocator.free(handle)
    allocator.allocate(40 * MIB)  # 12 MiB are not oversize
    assert sizes(allocator) == [40 * MIB]
    assert allocator.alloc_retries == 1


def test_oversize_blocks_are_released_for_a_request_that_cannot_use_them() -> None:
    allocator = CachingAllocator(50 * MIB, settings=UNSPLIT)
    for handle in [allocator.allocate(size * MIB) for size in (20, 30)]:
        allocator.free(handle)
    allocator.allocate(12 * MIB)
    assert sizes(allocator) == [12 * MIB, 30 * MIB]
    assert allocator.alloc_retries == 0


def test_above_the_threshold_segments_older_than_the_mean_are_released() -> None:
    allocator = CachingAllocator(None, limit=100 * MIB, settings=Settings(garbage_collection_threshold=0.5))
    old, young, used = (allocator.allocate(size * MIB) for size in (30, 22, 12))
    allocator.free(old)
    allocator.free(used)
    assert allocator.allocate(12 * MIB) == used  # a search that makes the first one older
    allocator.free(young)
    allocator.allocate(32 * MIB)
    assert sorted(sizes(allocator)) == [12 * MIB, 22 * MIB, 32 * MIB]
    assert allocator.alloc_retries == 0


def test_garbage_is_collected_until_enough_is_released() -> None:
    allocator = CachingAllocator(None, limit=100 * MIB, settings=Settings(garbage_collection_threshold=0.15))
    old, young, used = (allocator.allocate(size * MIB) for size in (30, 22, 12))
    allocator.free(old)
    allocator.free(used)
    assert allocator.allocate(12 * MIB) == used
    allocator.free(young)
    allocator.allocate(32 * MIB)  # 15 MiB are the threshold, so the older of 30 MiB is not enough
    assert sorted(sizes(allocator)) == [12 * MIB, 32 * MIB]


@pytest.mark.parametrize(("limit", "threshold"), [(None, 0.1), (104 * MIB, 0.5)])
def test_nothing_is_collected_without_a_limit_or_at_the_threshold(limit: int | None, threshold: float) -> None:
    allocator = CachingAllocator(None, limit=limit, settings=Settings(garbage_collection_threshold=threshold))
    kept, freed = allocator.allocate(22 * MIB), allocator.allocate(30 * MIB)
    allocator.free(freed)
    allocator.allocate(32 * MIB)
    assert sorted(sizes(allocator)) == [22 * MIB, 30 * MIB, 32 * MIB]
    assert kept


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", Settings()),
        ("backend:native", Settings()),
        ("max_split_size_mb:128,expandable_segments:True,", Settings(True, 128 * MIB)),
        ("expandable_segments : False", Settings()),
        ("max_split_size_mb:30,large_segment_size_mb:30", Settings(False, 30 * MIB, large_segment_size=30 * MIB)),
        ("max_non_split_rounding_mb:64", Settings(max_non_split_rounding_size=64 * MIB)),
        ("garbage_collection_threshold:0.8", Settings(garbage_collection_threshold=0.8)),
        ("roundup_power2_divisions:4", Settings(roundup_power2_divisions=(4,) * 16)),
        # the first item also applies below it, > applies above the last, and nothing applies in between
        (
            "roundup_power2_divisions:[4:2,16:8,>:1],max_split_size_mb:20",
            Settings(False, 20 * MIB, None, (2, 2, 2, 0, 8) + (1,) * 11),
        ),
        ("roundup_power2_divisions:[1:2,131072:4]", Settings(roundup_power2_divisions=(2, *(0,) * 14, 4))),
        ("roundup_power2_divisions:[>:2]", Settings(roundup_power2_divisions=(0,) + (2,) * 15)),
    ],
)
def test_settings_are_parsed_as_by_pytorch(text: str, settings: Settings) -> None:
    assert Settings.parse(text) == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size_mb:19", r"max_split_size_mb .* at least 20, got '19'"),
        ("max_split_size_mb:29,large_segment_size_mb:30", r"max_split_size_mb .* at least 30, got '29'"),
        ("max_split_size_mb", r"max_split_size_mb must be a whole number"),
        ("large_segment_size_mb:10", r"large_segment_size_mb .* at least 11, got '10'"),
        ("max_non_split_rounding_mb:1.5", r"max_non_split_rounding_mb .* got '1.5'"),
        ("expandable_segments:true", r"expandable_segments must be True or False, got 'true'"),
        ("garbage_collection_threshold:1", r"above 0 and below 1, got '1'"),
        ("garbage_collection_threshold:0.0", r"above 0 and below 1, got '0.0'"),
        ("garbage_collection_threshold:most", r"above 0 and below 1, got 'most'"),
        ("roundup_power2_divisions:3", r"a power of two, .* got '3'"),
        ("roundup_power2_divisions:[3:4]", r"of powers of two, got '\[3:4\]'"),
        ("roundup_power2_divisions:[4:3]", r"of powers of two, got '\[4:3\]'"),
        ("roundup_power2_divisions:4:2", r"of powers of two, got '4:2'"),
        ("backend:cudaMallocAsync", r"backend:cudaMallocAsync is not simulated; supported: backend:native"),
        ("pinned_use_background_threads:True", r"pinned_use_background_threads:True is not simulated; supported: exp"),
        ("max_split_size:20", r"max_split_size:20 is not simulated; supported: expandable_segments, max_split_size_mb"),
        ("per_process_memory_fraction:0.5", r"per_process_memory_fraction:0.5 .* use a budget in bytes"),
    ],
)
def test_an_unsupported_setting_is_refused_with_the_supported_ones(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        Settings.parse(text)
    assert "\n" not in str(refusal.value)


# Expandable segments


def test_an_expandable_segment_grows_by_2_mib_for_small_and_by_20_mib_for_large() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    allocator.allocate(MIB)
    allocator.allocate(2 * MIB)
    assert sizes(allocator) == [2 * MIB, 20 * MIB]
    for _ in range(2):
        allocator.allocate(MIB)
    allocator.allocate(21 * MIB)
    assert sizes(allocator) == [4 * MIB, 40 * MIB]
    assert [segment["is_expandable"] for segment in allocator.segments()] == [True, True]


def test_an_expandable_segment_grows_by_the_bytes_that_its_free_end_lacks() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    first = allocator.allocate(5 * MIB)
    assert allocator.allocate(35 * MIB) == first + 5 * MIB
    assert (allocator.allocated, allocator.reserved) == (40 * MIB, 40 * MIB)


def test_in_an_expandable_segment_a_rest_of_512_bytes_is_split_off() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    allocator.allocate(20 * MIB - 512)
    assert states(allocator) == [[("active_allocated", 20 * MIB - 512), ("inactive", 512)]]


def test_in_an_expandable_segment_a_block_that_cannot_grow_is_used_before_one_that_can() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    inner = allocator.allocate(8 * MIB)
    allocator.allocate(5 * MIB)
    allocator.free(inner)  # 8 MiB, and the 7 MiB at the end fit 6 MiB better
    assert allocator.allocate(6 * MIB) == inner


def test_each_stream_has_its_own_expandable_segments() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    allocator.allocate(2 * MIB, stream=1)
    allocator.allocate(2 * MIB, stream=2)
    assert sizes(allocator) == [20 * MIB, 20 * MIB]


def test_the_free_pages_of_an_expandable_segment_are_released() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    handles = [allocator.allocate(size * MIB) for size in (5, 70, 5)]
    allocator.free(handles[1])
    allocator.empty_cache()
    assert states(allocator) == [
        [("active_allocated", 5 * MIB), ("inactive", 15 * MIB)],
        [("inactive", 15 * MIB), ("active_allocated", 5 * MIB)],
    ]
    assert allocator.reserved == 40 * MIB


def test_a_partly_free_page_of_an_expandable_segment_is_kept() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    handles = [allocator.allocate(size * MIB) for size in (5, 30, 5)]
    allocator.free(handles[1])
    before = states(allocator)
    allocator.empty_cache()  # 5 to 35 MiB are free, which are parts of two pages
    assert (
        states(allocator)
        == before
        == [[("active_allocated", 5 * MIB), ("inactive", 30 * MIB), ("active_allocated", 5 * MIB)]]
    )


def test_the_addresses_of_an_expandable_segment_are_released_with_its_last_page() -> None:
    allocator = CachingAllocator(GIB, settings=EXPANDABLE)
    first = allocator.allocate(5 * MIB, stream=1)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.allocate(5 * MIB, stream=2) == first


def test_an_expandable_segment_has_more_addresses_than_it_may_map() -> None:
    allocator = CachingAllocator(None, limit=62 * MIB, settings=EXPANDABLE)
    handles = [allocator.allocate(20 * MIB) for _ in range(3)]
    allocator.free(handles[0])
    allocator.empty_cache()
    assert allocator.allocate(21 * MIB) == handles[2] + 20 * MIB


def test_the_pages_of_an_expandable_segment_have_the_configured_size() -> None:
    allocator = CachingAllocator(None, settings=Settings(expandable_segments=True, large_segment_size=32 * MIB))
    allocator.allocate(33 * MIB)
    assert sizes(allocator) == [64 * MIB]


def test_in_an_expandable_segment_a_block_is_split_whatever_its_size() -> None:
    allocator = CachingAllocator(None, settings=Settings(expandable_segments=True, max_split_size=20 * MIB))
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(20 * MIB)
    assert states(allocator) == [[("active_allocated", 20 * MIB), ("inactive", 20 * MIB)]]


def test_a_hole_in_an_expandable_segment_is_filled_before_its_end() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    handles = [allocator.allocate(20 * MIB) for _ in range(3)]
    allocator.free(handles[1])
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    assert allocator.allocate(25 * MIB) == handles[2] + 20 * MIB
    assert allocator.allocate(12 * MIB) == handles[2] + 45 * MIB  # 15 MiB are mapped there
    assert allocator.allocate(15 * MIB) == handles[1]
    assert allocator.reserved == 100 * MIB


def test_an_expandable_segment_grows_over_holes_and_free_blocks_alike() -> None:
    allocator = CachingAllocator(None, settings=EXPANDABLE)
    handles = [allocator.allocate(size * MIB) for size in (20, 20, 20, 10, 10)]
    for index in (0, 2):
        allocator.free(handles[index])
    allocator.empty_cache()  # hole, used, hole, used
    for index in (1, 3):
        allocator.free(handles[index])  # hole, free, hole, free, used
    assert allocator.allocate(65 * MIB) == handles[0]
    assert allocator.reserved == 80 * MIB


def test_pages_are_released_for_another_stream() -> None:
    allocator = CachingAllocator(60 * MIB, settings=EXPANDABLE)
    allocator.free(allocator.allocate(40 * MIB, stream=1))
    allocator.allocate(60 * MIB, stream=2)
    assert [(segment["stream"], segment["total_size"]) for segment in allocator.segments()] == [(2, 60 * MIB)]
    assert allocator.alloc_retries == 1


def test_a_whole_page_counts_against_the_capacity() -> None:
    CachingAllocator(40 * MIB, settings=EXPANDABLE).allocate(21 * MIB)
    with pytest.raises(Refused):
        CachingAllocator(39 * MIB, settings=EXPANDABLE).allocate(21 * MIB)


@pytest.mark.parametrize(("limit", "fits"), [(50 * MIB, True), (50 * MIB - 1, False)])
def test_the_limit_counts_a_whole_segment_although_an_expandable_one_grows_by_less(limit: int, fits: bool) -> None:
    allocator = CachingAllocator(None, limit=limit, settings=EXPANDABLE)
    allocator.allocate(5 * MIB)
    if fits:
        allocator.allocate(30 * MIB)
        assert allocator.reserved == 40 * MIB
    else:
        with pytest.raises(Refused):
            allocator.allocate(30 * MIB)


def test_the_pages_of_an_expandable_segment_may_exceed_the_limit_as_in_pytorch() -> None:
    allocator = CachingAllocator(None, limit=62 * MIB, settings=EXPANDABLE)
    allocator.allocate(61 * MIB)
    assert allocator.reserved == 80 * MIB


def test_a_request_larger_than_any_expandable_segment_is_refused() -> None:
    allocator = CachingAllocator(100 * MIB, settings=EXPANDABLE)
    with pytest.raises(Refused):
        allocator.allocate(200 * MIB)
    assert allocator.segments() == []


# Histories, in the form of torch.cuda.memory._snapshot()["device_traces"][0]

S, L, M = FIRST_ADDRESS, FIRST_ADDRESS + 0x200000, FIRST_ADDRESS + 0x1600000


def entry(action: str, addr: int, size: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream}


def freed(addr: int, size: int) -> list[dict[str, Any]]:
    return [entry("free_requested", addr, size), entry("free_completed", addr, size)]


def replay(history: Iterable[dict[str, Any]], allocator: CachingAllocator) -> None:
    """Repeat the requests of the history, and compare addresses, segments and reserved bytes at each event.

    A history has the requests to the device before the allocation that they serve. Segments that are released without
    an allocation of one are torch.cuda.empty_cache(), which has no entry of its own.
    """
    segments: dict[int, int] = {}  # and mapped parts
    mapped: set[int] = set()
    released = taken = False

    for event in history:
        action, addr, size, stream = event["action"], event["addr"], event["size"], event["stream"]
        if action in ("segment_alloc", "segment_map"):
            segments[addr] = size
            mapped |= {addr} if action == "segment_map" else set()
            taken = True
            continue
        if action in ("segment_free", "segment_unmap"):
            assert segments.pop(addr) == size
            released = True
            continue
        if released and not taken and action != "oom":
            allocator.empty_cache()
        released = taken = False
        if action == "alloc":
            assert allocator.allocate(size, stream) == addr
        elif action == "free_requested":
            allocator.free(addr)
        elif action == "oom":
            with pytest.raises(Refused) as refusal:
                allocator.allocate(size, stream)
            assert refusal.value.free == addr
        found = {segment["address"]: segment["total_size"] for segment in allocator.segments()}
        assert found == joined(segments, mapped)
        assert allocator.reserved == sum(segments.values())


def joined(segments: dict[int, int], mapped: set[int]) -> dict[int, int]:
    """Segments by address, with adjacent mapped pages as one."""
    whole: dict[int, int] = {}
    last = 0
    for addr, size in sorted(segments.items()):
        if addr in mapped and last in mapped and last + whole[last] == addr:
            whole[last] += size
        else:
            last = addr
            whole[addr] = size
    return whole


PLAIN = [
    entry("segment_alloc", S, 2 * MIB),
    entry("alloc", S, 1000),
    entry("alloc", S + 1024, 512),
    entry("segment_alloc", L, 20 * MIB),
    entry("alloc", L, 3 * MIB),
    entry("alloc", L + 3 * MIB, 9 * MIB),
    *freed(L, 3 * MIB),
    entry("alloc", L + 12 * MIB, 4 * MIB),  # not into the 3 MiB
    entry("alloc", L, 2 * MIB - 100),
    entry("segment_alloc", M, 34 * MIB),
    entry("alloc", M, 33 * MIB),
    *freed(L + 3 * MIB, 9 * MIB),
    *freed(L, 2 * MIB - 100),  # 12 MiB in one
    entry("alloc", L, 11 * MIB),  # whole: 1 MiB is no block
    *freed(M, 33 * MIB),
    entry("segment_free", M, 34 * MIB),  # the card has 60 MiB
    entry("segment_alloc", M, 38 * MIB),
    entry("alloc", M, 38 * MIB),
    *freed(S, 1000),
    entry("oom", 0, 5 * MIB),
    *freed(L, 11 * MIB),
    *freed(L + 12 * MIB, 4 * MIB),
    *freed(M, 38 * MIB),
    entry("segment_free", L, 20 * MIB),
    entry("segment_free", M, 38 * MIB),
    entry("alloc", S, 700),
]

GROWING = [
    entry("segment_map", S, 20 * MIB),
    entry("alloc", S, 3 * MIB),
    entry("segment_map", S + 20 * MIB, 20 * MIB),
    entry("alloc", S + 3 * MIB, 33 * MIB),
    entry("segment_map", S + 40 * MIB, 20 * MIB),
    entry("alloc", S + 36 * MIB, 10 * MIB),
    *freed(S + 3 * MIB, 33 * MIB),
    entry("alloc", S + 3 * MIB, 17 * MIB),
    *freed(S + 36 * MIB, 10 * MIB),
    entry("segment_unmap", S + 20 * MIB, 20 * MIB),  # torch.cuda.empty_cache()
    entry("segment_unmap", S + 40 * MIB, 20 * MIB),
    entry("snapshot", 0, 0),
    entry("segment_map", S + 20 * MIB, 20 * MIB),
    entry("segment_map", S + 40 * MIB, 20 * MIB),
    entry("alloc", S + 20 * MIB, 40 * MIB),
    entry("oom", 0, 4 * MIB),
]


@pytest.mark.parametrize(
    ("history", "settings"), [(PLAIN, Settings()), (GROWING, EXPANDABLE)], ids=["plain", "growing"]
)
def test_a_history_by_the_rules_is_reproduced_event_by_event(history: list[dict[str, Any]], settings: Settings) -> None:
    replay(history, CachingAllocator(60 * MIB, settings=settings))


def test_reserved_equals_a_real_card_cycle_by_cycle() -> None:
    # github.com/pytorch/pytorch/pull/193400 (its table) and github.com/ROCm/legacy-rocm-build/issues/6603 (cycle 115):
    # PyTorch 2.12 on a card of 16 GiB, 64 MiB held, then cycles of 91, 45.5 and 2 MiB of which the last is kept.
    settings = Settings.parse("max_split_size_mb:128,expandable_segments:True")
    allocator = CachingAllocator(16_000 * MIB, settings=settings)  # max_reserved of that card at its first retry
    allocator.allocate(64 * MIB)
    shown = {}
    for cycle in range(116):
        freed = [allocator.allocate(91 * MIB), allocator.allocate(91 * MIB // 2)]
        allocator.allocate(2 * MIB)
        for handle in freed:
            allocator.free(handle)
        shown[cycle] = (allocator.allocated // MIB, allocator.reserved // MIB)
    assert [shown[cycle][0] for cycle in (0, 20, 40, 60, 80, 100, 115)] == [66, 106, 146, 186, 226, 266, 296]
    assert [shown[cycle][1] for cycle in (0, 20, 40, 60, 80, 100, 115)] == [220, 2980, 5760, 8520, 11300, 14060, 2680]
    assert (allocator.peak_reserved, allocator.alloc_retries, allocator.num_ooms) == (16_000 * MIB, 1, 0)


# Invariants of any sequence of actions

ACTIONS = st.one_of(
    st.tuples(
        st.just("allocate"),
        st.one_of(st.integers(1, 2 * MIB), st.integers(1, 64).map(lambda size: size * MIB), st.integers(1, 48 * MIB)),
        st.integers(0, 1),
    ),
    st.tuples(st.just("free"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
)
SETTINGS = st.sampled_from(
    [
        Settings(),
        Settings(roundup_power2_divisions=(8,) * 16),
        Settings(large_segment_size=32 * MIB),
        UNSPLIT,
        EXPANDABLE,
        Settings(expandable_segments=True, max_split_size=32 * MIB),
        Settings(garbage_collection_threshold=0.5),
    ]
)
LIMITS = st.sampled_from([None, 64 * MIB, 200 * MIB])


class Client:
    """An allocator with the sizes of its live allocations by handle."""

    def __init__(self, capacity: int | None, limit: int | None, settings: Settings) -> None:
        self.allocator = CachingAllocator(capacity, limit=limit, settings=settings)
        self.live: dict[int, int] = {}
        self.refused = 0

    def run(self, what: str, number: int, stream: int) -> None:
        if what == "allocate":
            try:
                handle = self.allocator.allocate(number, stream)
            except Refused:
                self.refused += 1
            else:
                assert handle not in self.live
                self.live[handle] = number
        elif what == "empty_cache":
            self.allocator.empty_cache()
        elif self.live:
            handle = list(self.live)[number % len(self.live)]
            del self.live[handle]
            self.allocator.free(handle)


@given(st.lists(ACTIONS, max_size=60), LIMITS, LIMITS, SETTINGS)
def test_blocks_fill_the_segments_and_counters_are_their_sums(
    actions: list[tuple[str, int, int]], capacity: int | None, limit: int | None, settings: Settings
) -> None:
    client = Client(capacity, limit, settings)
    allocator = client.allocator
    for action in actions:
        client.run(*action)
        segments = allocator.segments()
        end = 0
        live = {}
        for segment in segments:
            assert segment["address"] >= end  # no overlap
            end = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == end  # no gap
                assert block["size"] > 0
                assert block["size"] % 512 == 0
                end += block["size"]
                if block["state"] == "active_allocated":
                    live[block["address"]] = block["requested_size"]
            assert end == segment["address"] + segment["total_size"]
        assert live == client.live
        assert allocator.requested == sum(live.values()) == sum(segment["requested_size"] for segment in segments)
        assert allocator.allocated == sum(segment["allocated_size"] for segment in segments)
        assert allocator.reserved == sum(segment["total_size"] for segment in segments)
        assert allocator.requested <= allocator.allocated <= allocator.reserved
        assert capacity is None or allocator.reserved <= capacity
        page = 20 * MIB if settings.expandable_segments else 0  # bytes by which it may exceed the limit
        assert limit is None or allocator.reserved < limit + max(page, 1)
        assert allocator.peak_requested >= allocator.requested
        assert allocator.peak_allocated >= allocator.allocated
        assert allocator.peak_reserved >= allocator.reserved
        assert allocator.num_ooms == client.refused


@given(st.lists(ACTIONS, max_size=60), LIMITS, LIMITS, SETTINGS)
def test_free_neighbours_are_always_one_block(
    actions: list[tuple[str, int, int]], capacity: int | None, limit: int | None, settings: Settings
) -> None:
    client = Client(capacity, limit, settings)
    for action in actions:
        client.run(*action)
        for blocks in states(client.allocator):
            free = [state == "inactive" for state, _ in blocks]
            assert not any(left and right for left, right in pairwise(free))


@given(st.lists(ACTIONS, max_size=60), LIMITS, LIMITS, SETTINGS)
def test_freeing_all_and_emptying_the_cache_leaves_nothing(
    actions: list[tuple[str, int, int]], capacity: int | None, limit: int | None, settings: Settings
) -> None:
    client = Client(capacity, limit, settings)
    for action in actions:
        client.run(*action)
    for handle in client.live:
        client.allocator.free(handle)
    client.allocator.empty_cache()
    assert client.allocator.segments() == []
    assert (client.allocator.requested, client.allocator.allocated, client.allocator.reserved) == (0, 0, 0)


@given(st.lists(ACTIONS, max_size=60), SETTINGS, st.integers(1, 3))
def test_a_refusal_changes_no_block_in_use(actions: list[tuple[str, int, int]], settings: Settings, times: int) -> None:
    client = Client(200 * MIB, 180 * MIB, settings)
    allocator = client.allocator
    for action in actions:
        client.run(*action)
    reserved, allocated, peak = allocator.reserved, allocator.allocated, allocator.peak_allocated
    for _ in range(times):
        with pytest.raises(Refused) as refusal:
            allocator.allocate(201 * MIB)
    assert (refusal.value.allocated, refusal.value.reserved) == (allocator.allocated, allocator.reserved)
    assert (allocator.allocated, allocator.peak_allocated) == (allocated, peak)
    assert allocator.reserved <= reserved
    assert {block["address"]: block["requested_size"] for block in blocks_in_use(allocator)} == client.live


def blocks_in_use(allocator: CachingAllocator) -> list[dict[str, Any]]:
    blocks = [block for segment in allocator.segments() for block in segment["blocks"]]
    return [block for block in blocks if block["state"] == "active_allocated"]


@given(st.lists(ACTIONS, max_size=60), st.integers(1, 40 * MIB), st.integers(0, 1))
def test_the_smallest_and_lowest_block_that_is_large_enough_is_used(
    actions: list[tuple[str, int, int]], size: int, stream: int
) -> None:
    client = Client(None, None, Settings())
    for action in actions:
        client.run(*action)
    allocator = client.allocator
    rounded = (size + 511) // 512 * 512
    kind = "small" if rounded <= MIB else "large"
    fitting = [
        (block["size"], block["address"])
        for segment in allocator.segments()
        if (segment["segment_type"], segment["stream"]) == (kind, stream)
        for block in segment["blocks"]
        if block["state"] == "inactive" and block["size"] >= rounded
    ]
    reserved = allocator.reserved
    address = allocator.allocate(size, stream)
    if fitting:
        assert address == min(fitting)[1]
        assert allocator.reserved == reserved
    else:
        assert allocator.reserved > reserved

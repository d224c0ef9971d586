"""Programs made so that a wrong answer would be tempting: their peak is right, or they are refused by name.

Sizes are whole MiB, so that no rounding of the allocator is in the figures, and all were worked out by hand.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from runners.meters.torch_tensors import TensorTracker
from tests.programs import H100, HOST, MI300X, MIB, Calculated, calculated

Json = dict[str, Any]


def mib(count: float, device: Any = "cuda", **options: Any) -> torch.Tensor:
    return torch.empty(int(count * MIB), dtype=torch.uint8, device=device, **options)


def weight(count: int = 1) -> nn.Linear:
    """A layer of so many MiB, on the host."""
    return nn.Linear(512, 512 * count, bias=False)


def held() -> float:
    """MiB, as the program reads them."""
    return torch.cuda.memory_allocated() / MIB


def peak(program: Any, **options: Any) -> float:
    """MiB of a program that runs to its end."""
    found = calculated(program, **options)
    assert found.error is None, found.lines[-1]["traceback"] or found.error
    return found.peaks["requested"] / MIB


def refused(program: Any, **options: Any) -> str:
    """Why a program is unavailable."""
    error = calculated(program, **options).error or "it was answered"
    assert error.startswith("runners.phases.Unavailable: "), error
    return error.removeprefix("runners.phases.Unavailable: ")


def refusals(found: Calculated) -> int:
    return sum(line["counters"]["sim:card"]["refusals"] for line in found.lines if line["kind"] == "ended")


# --- where the work is ------------------------------------------------------------------------------------------------


def test_what_stays_on_the_host_takes_nothing_of_the_card() -> None:
    def program() -> None:
        big = mib(64, "cpu")
        big.cuda  # noqa: B018 (as a program that forgets the call)
        small = big[:MIB].to("cuda")
        (big.float() * 2).sum(), small.float()

    assert peak(program) == 1 + 4


def test_a_copy_on_the_card_that_nobody_keeps_counts_while_it_lives() -> None:
    def program() -> Json:
        model, x = weight(4), torch.ones(2, 512)
        model.weight.to("cuda")  # not in place: the model stays where it is
        return {"device": str(model(x).device), "held": held()}

    found = calculated(program)
    assert (found.returned, found.peaks["requested"]) == ({"device": "cpu", "held": 0.0}, 4 * MIB)


def test_a_program_that_hides_the_card_from_itself_places_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        mib(1, "cuda" if torch.cuda.is_available() else "cpu")

    assert "nothing was placed on cuda" in str(calculated(program).error)


def test_a_slice_moves_alone_and_a_moved_tensor_is_kept_by_its_slice() -> None:
    def moves_a_slice() -> None:
        part = mib(8, "cpu")[:MIB].cuda()
        assert part.untyped_storage().nbytes() == MIB

    def slices_on_the_card() -> float:
        part = mib(8, "cpu").cuda()[:MIB]
        before = held()
        part = part.clone()
        return {"before": before, "after": held()}  # type: ignore[return-value]

    assert peak(moves_a_slice) == 1
    assert calculated(slices_on_the_card).returned == {"before": 8.0, "after": 1.0}


def test_an_expanded_tensor_is_whole_once_it_is_moved() -> None:
    def program() -> Json:
        on_card = mib(1).expand(4, MIB)
        before = held()
        moved = mib(1, "cpu").expand(4, MIB).to("cuda")
        return {"expanded": before, "moved": held() - before, "alive": on_card.is_cuda and moved.is_cuda}

    assert calculated(program).returned == {"expanded": 1.0, "moved": 4.0, "alive": True}


def test_a_scalar_of_the_host_meets_a_tensor_of_the_card_and_a_vector_does_not() -> None:
    def program(size: tuple[int, ...]) -> None:
        torch.ones(4, device="cuda") * torch.ones(size)

    assert calculated(program, size=()).error is None
    assert "Expected all tensors to be on the same device" in str(calculated(program, size=(4,)).error)


@pytest.mark.parametrize(("into", "of"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_elements_are_not_put_into_a_tensor_of_another_device_and_slices_are_copied(into: str, of: str) -> None:
    def program(way: str) -> Json:
        x, values = torch.zeros(8, device=into), torch.ones(2, device=of)
        if way == "slice":
            x[2:4] = values
        else:
            x[torch.tensor([2, 3])] = values
        return {"device": x.device.type}

    assert "Expected all tensors to be on the same device" in str(calculated(program, way="elements").error)
    found = calculated(program, way="slice")
    assert (found.error, found.returned["device"]) == (None, into)


@pytest.mark.parametrize("blocks", [False, True])
def test_pinned_memory_is_the_hosts_and_a_copy_that_does_not_wait_takes_the_same(blocks: bool) -> None:
    def program() -> None:
        batches = [mib(2, "cpu").pin_memory(), mib(2, "cpu", pin_memory=True)]
        assert all(each.is_pinned() and not each.is_cuda for each in batches)
        on_card = [each.to("cuda", non_blocking=not blocks) for each in batches]
        assert not any(each.is_pinned() for each in on_card)

    assert peak(program) == 4


def test_meta_is_no_card() -> None:
    def program() -> Json:
        with torch.device("meta"):
            model = weight(16)
        mib(16, "meta"), mib(2).to("meta")
        before = held()
        model.to_empty(device="cuda")
        return {"before": before, "after": held(), "meta": mib(1, "meta").is_meta, "card": mib(1).is_meta}

    found = calculated(program)
    assert found.returned == {"before": 0.0, "after": 16.0, "meta": True, "card": False}
    assert found.peaks["requested"] == 17 * MIB


def test_tensors_of_meta_and_of_the_card_do_not_meet() -> None:
    def program() -> None:
        torch.ones(4, device="cuda") + torch.ones(4, device="meta")

    assert "at least two devices, cuda:0 and meta" in str(calculated(program).error)


def test_a_model_that_is_moved_to_meta_lets_go_of_the_card() -> None:
    def program() -> Json:
        model = weight(4).cuda()
        before = held()
        model.to("meta")
        return {"before": before, "after": held(), "meta": model.weight.is_meta}

    assert calculated(program).returned == {"before": 4.0, "after": 0.0, "meta": True}


def test_a_copy_on_meta_does_not_meet_its_tensor_on_the_card() -> None:
    def program() -> None:
        x = torch.ones(4, device="cuda")
        x.to("meta") + x

    assert "at least two devices, cuda:0 and meta" in str(calculated(program).error)


def test_tensors_of_a_fake_mode_are_of_any_device_and_take_nothing() -> None:
    def program() -> Json:
        from torch._subclasses.fake_tensor import FakeTensorMode

        mib(1)
        with FakeTensorMode():
            fake = torch.empty(64 * MIB, device="cuda") + 1
        again = fake * 2
        return {"device": str(again.device), "held": held()}

    found = calculated(program)
    assert (found.returned, found.peaks["requested"]) == ({"device": "cuda:0", "held": 0.0}, MIB)


@pytest.mark.parametrize("mask", [False, True])
def test_indices_of_the_host_are_copied_to_the_card_with_the_tensor_that_they_index(mask: bool) -> None:
    def program() -> None:
        x = mib(1)
        index = torch.ones(MIB, dtype=torch.bool) if mask else torch.zeros(MIB, dtype=torch.int64)
        assert x[index].numel() == MIB

    assert peak(program) == 1 + 8 + 1


def test_a_list_of_losses_becomes_a_tensor_of_the_host() -> None:
    def program() -> Json:
        x = torch.rand(MIB // 4, device="cuda")
        losses = torch.tensor([x.mean(), x.sum()])
        return {"device": str(losses.device), "count": len(losses), "mean": float(losses.mean()), "held": held()}

    found = calculated(program)
    assert found.returned == {"device": "cpu", "count": 2, "mean": 1.0, "held": 1.0}
    assert [line for line in found.lines if line["kind"] == "assumed"]


def test_channels_stay_last_through_a_convolution() -> None:
    def program(last: bool) -> Json:
        form = torch.channels_last if last else torch.contiguous_format
        model = nn.Conv2d(16, 16, 3, padding=1, bias=False).to("cuda", memory_format=form)
        made = model(torch.zeros(4, 16, 128, 128).to("cuda", memory_format=form))
        before = held()
        made.contiguous()
        copied = made.contiguous()
        return {
            "last": made.is_contiguous(memory_format=torch.channels_last),
            "copied": held() - before,
            "on": copied.is_cuda,
        }

    assert calculated(program, last=True).returned == {"last": True, "copied": 4.0, "on": True}
    assert calculated(program, last=False).returned == {"last": False, "copied": 0.0, "on": True}


def test_the_types_of_older_programs_make_tensors_on_the_card() -> None:
    def program() -> Json:
        import numpy

        kind: Any = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
        noise, ones = kind(numpy.zeros((256, 1024))), kind(256, 1024).fill_(1.0)
        return {"devices": f"{noise.device} {ones.device}", "held": held(), "is": isinstance(noise, kind)}

    assert calculated(program).returned == {"devices": "cuda:0 cuda:0", "held": 2.0, "is": True}


def test_the_default_device_and_device_contexts_decide_where_new_tensors_are() -> None:
    def program() -> Json:
        torch.set_default_device("cuda")
        try:
            first = torch.empty(MIB, dtype=torch.uint8)
            with torch.device("cpu"):
                second = torch.empty(MIB, dtype=torch.uint8)
                with torch.device("cuda"):
                    third = nn.Linear(512, 512, bias=False).weight
            fourth = torch.tensor([1.0])
        finally:
            torch.set_default_device(None)
        return {"devices": " ".join(each.device.type for each in (first, second, third, fourth, torch.ones(1)))}

    found = calculated(program)
    assert found.returned == {"devices": "cuda cpu cuda cuda cpu"}
    assert found.peaks["requested"] == 2 * MIB + 4


def test_a_loader_that_shuffles_under_a_default_device_fails_as_on_a_card() -> None:
    def program() -> None:
        torch.set_default_device("cuda")
        try:
            rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
            next(iter(torch.utils.data.DataLoader(rows, shuffle=True, generator=torch.Generator())))
        finally:
            torch.set_default_device(None)

    assert "Expected a 'cuda' device type for generator but found 'cpu'" in str(calculated(program).error)


def test_a_generator_draws_on_its_own_device_only() -> None:
    def program(of: str, on: str) -> Json:
        generator = torch.Generator(device=of).manual_seed(7)
        made = torch.randn(MIB // 4, generator=generator, device=on)
        nn.init.normal_(made, generator=generator)
        made.uniform_(generator=generator)
        return {"device": made.device.type, "seed": generator.initial_seed()}

    assert calculated(program, of="cuda", on="cuda").returned == {"device": "cuda", "seed": 7}
    assert "Expected a 'cuda' device type" in str(calculated(program, of="cpu", on="cuda").error)
    assert "Expected a 'cpu' device type" in str(calculated(program, of="cuda", on="cpu").error)


# --- whose memory it is -----------------------------------------------------------------------------------------------


def test_ties_survive_a_move_a_copy_and_a_pickle() -> None:
    def program() -> Json:
        model = nn.ModuleList([weight(2), weight(2)])
        model[1].weight = model[0].weight
        model.cuda()
        counted = [held()]
        twin = copy.deepcopy(model)
        counted.append(held())
        thawed = pickle.loads(pickle.dumps(model))
        counted.append(held())
        tied = all(each[0].weight is each[1].weight for each in (model, twin, thawed))
        return {"counted": str(counted), "tied": tied, "device": str(thawed[0].weight.device)}

    assert calculated(program).returned == {"counted": "[2.0, 4.0, 6.0]", "tied": True, "device": "cuda:0"}


def test_copies_of_views_share_one_storage_as_the_views_do() -> None:
    def program() -> Json:
        base = mib(4)
        parts = base.split(MIB)
        copied = copy.deepcopy(parts)
        shallow = copy.copy(base)
        shared = {each.untyped_storage().data_ptr() for each in copied}
        return {"held": held(), "storages": len(shared), "alias": shallow.data_ptr() == base.data_ptr()}

    assert calculated(program).returned == {"held": 8.0, "storages": 1, "alias": True}


def test_a_saved_state_is_loaded_where_it_is_asked_for() -> None:
    def program() -> Json:
        model, file = weight(2).cuda(), io.BytesIO()
        torch.save({"a": model.weight, "b": model.weight.detach()[:256]}, file)
        found = []
        for where in ("cuda", None, "cpu"):
            file.seek(0)
            before = held()
            loaded = torch.load(file, map_location=where)
            found.append((loaded["a"].device.type, held() - before))
            del loaded
        return {"found": str(found)}

    assert calculated(program).returned == {"found": "[('cuda', 2.0), ('cuda', 2.0), ('cpu', 0.0)]"}


def test_a_state_that_is_assigned_takes_the_place_of_the_old_one_and_a_copied_one_does_not() -> None:
    def program(assign: bool) -> Json:
        model = weight(2).cuda()
        state = {"weight": torch.empty(1024, 512, device="cuda")}
        model.load_state_dict(state, assign=assign)
        del state
        return {"held": held()}

    assert calculated(program, assign=True).returned == {"held": 2.0}
    assert calculated(program, assign=False).returned == {"held": 2.0}
    assert peak(program, assign=True) == peak(program, assign=False) == 4


def test_set_shares_a_storage_and_lets_go_of_its_own() -> None:
    def program() -> Json:
        one, other = mib(4), mib(1)
        other.set_(one.untyped_storage(), 0, (2 * MIB,), (1,))
        shared = held()
        del one
        return {"shared": shared, "kept": held()}

    assert calculated(program).returned == {"shared": 4.0, "kept": 4.0}


def test_resize_takes_the_new_before_it_frees_the_old_and_never_shrinks() -> None:
    def program() -> Json:
        x = mib(2)
        x.resize_(MIB)
        shrunk = held()
        x.resize_(3 * MIB)
        grown, storage = held(), x.untyped_storage()
        storage.resize_(0)
        freed = held()
        storage.resize_(3 * MIB)
        return {"held": str([shrunk, grown, freed, held()])}

    found = calculated(program)
    assert found.returned == {"held": "[2.0, 3.0, 0.0, 3.0]"}
    assert found.peaks["requested"] == 5 * MIB


def test_a_result_that_is_written_into_takes_nothing_unless_it_has_to_grow() -> None:
    def program() -> Json:
        a, b, out, small = (torch.empty(size, device="cuda") for size in (MIB // 4, MIB // 4, MIB // 4, 0))
        torch.add(a, b, out=out)
        a += b
        before = held()
        torch.add(a, b, out=small)
        return {"before": before, "after": held()}

    assert calculated(program).returned == {"before": 3.0, "after": 4.0}


def test_data_that_is_swapped_frees_what_was_there() -> None:
    def program() -> Json:
        layer = weight(4).cuda()
        parameter, found = layer.weight, [held()]
        for take in (torch.Tensor.half, torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.float):
            parameter.data = take(parameter.data)
            found.append(held())
        return {"held": str(found), "same": layer.weight is parameter, "leaf": parameter.is_leaf}

    found = calculated(program)
    assert found.returned == {"held": "[4.0, 2.0, 0.0, 2.0, 4.0]", "same": True, "leaf": True}
    assert found.peaks["requested"] == 6 * MIB


def test_parameters_that_become_views_of_one_buffer_let_go_of_their_own() -> None:
    def program() -> Json:
        model = nn.Sequential(weight(1), weight(1), weight(2)).cuda()
        flat = torch.cat([each.detach().flatten() for each in model.parameters()])
        both = held()
        offset = 0
        for each in model.parameters():
            each.data = flat[offset : offset + each.numel()].view_as(each)
            offset += each.numel()
        del flat
        return {"both": both, "flat": held()}

    assert calculated(program).returned == {"both": 8.0, "flat": 4.0}


def test_tensors_that_are_swapped_keep_their_memory_and_change_names() -> None:
    def program() -> Json:
        one, other = mib(1), mib(3)
        torch.utils.swap_tensors(one, other)
        sizes = one.numel() // MIB, other.numel() // MIB
        del one
        return {"sizes": str(sizes), "held": held()}

    assert calculated(program).returned == {"sizes": "(3, 1)", "held": 1.0}


def test_a_module_that_swaps_its_parameters_on_a_move_keeps_them() -> None:
    def program() -> Json:
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model = weight(2)
            parameter = model.weight
            model.cuda().half()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        return {"same": model.weight is parameter, "dtype": str(parameter.dtype), "held": held()}

    assert calculated(program).returned == {"same": True, "dtype": "torch.float16", "held": 1.0}


def test_weak_references_keep_nothing() -> None:
    def program() -> Json:
        x = mib(4)
        seen, cache = weakref.ref(x), weakref.WeakValueDictionary({"x": x})
        del x
        return {"alive": seen() is not None, "cached": len(cache), "held": held()}

    assert calculated(program).returned == {"alive": False, "cached": 0, "held": 0.0}


def test_a_cycle_of_objects_keeps_its_tensors_until_it_is_collected() -> None:
    def program() -> Json:
        class Node:
            pass

        gc.collect()
        gc.disable()
        try:
            node: Any = Node()
            node.itself, node.tensor = node, mib(4)
            del node
            before = held()
            gc.collect()
        finally:
            gc.enable()
        return {"before": before, "after": held()}

    assert calculated(program).returned == {"before": 4.0, "after": 0.0}


def test_an_exception_that_is_kept_keeps_the_tensors_of_its_frames() -> None:
    def program() -> Json:
        def step() -> None:
            local = mib(4)
            raise ValueError(local.shape)

        try:
            step()
        except ValueError as error:
            kept: Any = error
        before = held()
        kept = kept.with_traceback(None)
        return {"before": before, "after": held()}

    assert calculated(program).returned == {"before": 4.0, "after": 0.0}


def test_buffers_move_with_their_module_and_are_no_parameters() -> None:
    def program() -> Json:
        module = nn.Module()
        module.register_buffer("table", mib(2, "cpu"))
        module.register_buffer("cache", mib(1, "cpu"), persistent=False)
        module.plain = mib(8, "cpu")
        module.cuda()
        return {"held": held(), "plain": str(module.plain.device), "saved": len(module.state_dict())}

    assert calculated(program).returned == {"held": 3.0, "plain": "cpu", "saved": 1}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_tensors_have_the_bytes_of_their_indices_and_values() -> None:
    def program() -> Json:
        count = MIB // 4
        indices = torch.zeros(1, count, dtype=torch.int64)
        x = torch.sparse_coo_tensor(indices, torch.ones(count), (10 * count,)).cuda()
        return {"held": held(), "device": str(x.device)}

    assert calculated(program).returned == {"held": 3.0, "device": "cuda:0"}


def test_storages_that_a_program_makes_itself_count() -> None:
    def program() -> Json:
        storage = torch.UntypedStorage(2 * MIB, device="cuda")
        x = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
        return {"held": held(), "device": str(storage.device), "shared": x.data_ptr() == storage.data_ptr()}

    assert calculated(program).returned == {"held": 2.0, "device": "cuda:0", "shared": True}


def test_memory_that_belongs_to_no_tensor_counts() -> None:
    def program() -> Json:
        address = torch.cuda.caching_allocator_alloc(2 * MIB)
        before = held()
        torch.cuda.caching_allocator_delete(address)
        return {"before": before, "after": held()}

    assert calculated(program).returned == {"before": 2.0, "after": 0.0}


# --- addresses and other libraries ------------------------------------------------------------------------------------


def test_tensors_have_addresses_as_far_apart_as_they_are_large() -> None:
    def program() -> Json:
        x, y = mib(4), mib(4)
        ranges = sorted((each.data_ptr(), each.data_ptr() + each.numel()) for each in (x, y))
        (segment, *_) = torch.cuda.memory_snapshot()
        return {
            "apart": ranges[0][1] <= ranges[1][0],
            "aligned": all(start % 512 == 0 for start, _ in ranges),
            "in a segment": segment["address"] == ranges[0][0],
            "view": x[MIB:].data_ptr() - x.data_ptr() == MIB,
            "empty": torch.empty(0, device="cuda").data_ptr(),
        }

    found = calculated(program).returned
    assert found == {"apart": True, "aligned": True, "in a segment": True, "view": True, "empty": 0}


def test_no_memory_of_this_process_is_at_the_address_of_a_tensor_of_the_card() -> None:
    def program() -> Json:
        return {"address": mib(1).data_ptr()}

    assert calculated(program).returned["address"] > 2**48, "what reads it ends by a signal, as with a card's"


def test_numpy_sees_the_host_only() -> None:
    def program(read: str) -> None:
        x = mib(1)
        import numpy

        {"numpy": x.numpy, "array": lambda: numpy.asarray(x), "host": lambda: x.cpu().numpy()}[read]()

    assert calculated(program, read="host").peaks["requested"] == MIB
    for read in ("numpy", "array"):
        assert "can't convert cuda:0 device type tensor to numpy" in str(calculated(program, read=read).error)


@pytest.mark.parametrize("way", ["__dlpack__", "__cuda_array_interface__", "pickled for another process"])
def test_a_tensor_that_leaves_the_program_is_refused_by_name(way: str) -> None:
    def program() -> None:
        x = mib(1)
        if way == "__dlpack__":
            x.__dlpack__()
        elif way == "__cuda_array_interface__":
            x.__cuda_array_interface__  # noqa: B018
        else:
            ForkingPickler.dumps(x)

    assert refused(program).startswith("a tensor o")


def test_dlpack_within_the_program_shares_the_tensor() -> None:
    def program() -> Json:
        x = mib(4)
        y = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
        z = torch.from_dlpack(x)
        return {"held": held(), "device": str(y.device), "shared": x.data_ptr() == y.data_ptr() == z.data_ptr()}

    assert calculated(program).returned == {"held": 4.0, "device": "cuda:0", "shared": True}


@pytest.mark.parametrize("name", ["CUDAGraph", "MemPool", "graph_pool_handle"])
def test_memory_in_pools_of_its_own_is_refused_by_name(name: str) -> None:
    def program() -> None:
        mib(1)
        getattr(torch.cuda, name)()

    assert f"torch.cuda.{name} is not followed" in refused(program)


def test_settings_that_a_program_gives_its_allocator_before_it_uses_the_card_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(settings: str, late: bool) -> Json:
        if late:
            mib(1)
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
        kept = [mib(12), mib(12)]
        return {"reserved": torch.cuda.memory_reserved() // MIB, "kept": len(kept)}

    def reserved(settings: str, late: bool = False) -> tuple[int, int, bool]:
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
        found = calculated(program, settings=settings, late=late)
        assert found.error is None, found.error
        return found.returned["reserved"], found.peaks["reserved"] // MIB, bool(found.notes)

    assert reserved("expandable_segments:True") == (40, 40, True)
    assert reserved("roundup_power2_divisions:1") == (24, 24, True)
    assert reserved("expandable_segments:True", late=True) == (26, 26, False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    assert "the allocator's settings that the program sets" in refused(
        program, settings="backend:cudaMallocAsync", late=False
    )


def test_the_program_cannot_go_on_after_a_refusal_that_changes_its_memory() -> None:
    def program() -> None:
        mib(1)
        with contextlib.suppress(Exception):
            torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        mib(1)

    assert "the allocator's settings" in refused(program)


# --- what the program reads of its memory -----------------------------------------------------------------------------


def test_a_program_that_asserts_its_own_figures_passes() -> None:
    def program() -> None:
        base = torch.cuda.memory_allocated()
        x = torch.empty(1024, 1024, device="cuda")
        assert torch.cuda.memory_allocated() - base == x.numel() * x.element_size()
        torch.cuda.reset_peak_memory_stats()
        y = x @ x
        del y
        used = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        assert used == 4 * MIB, used
        assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == torch.cuda.memory_allocated()

    assert calculated(program).error is None


def test_what_a_program_resets_does_not_lower_its_peak() -> None:
    def program() -> Json:
        mib(8)
        torch.cuda.reset_peak_memory_stats()
        return {"own": torch.cuda.max_memory_allocated()}

    found = calculated(program)
    assert (found.returned, found.peaks["requested"]) == ({"own": 0}, 8 * MIB)


def test_the_cache_is_reserved_until_it_is_emptied() -> None:
    def program() -> Json:
        x, y = mib(32), mib(32)
        del x
        cached = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        emptied = torch.cuda.memory_reserved()
        del y
        torch.cuda.empty_cache()
        found = cached, emptied, torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
        return {"reserved": str([each // MIB for each in found])}

    found = calculated(program)
    assert (found.returned, found.peaks["reserved"]) == ({"reserved": "[64, 32, 0, 64]"}, 64 * MIB)


def test_a_share_of_the_card_refuses_beyond_it() -> None:
    def program() -> Json:
        torch.cuda.set_per_process_memory_fraction(0.25)
        x = mib(12)
        try:
            mib(8)
        except torch.OutOfMemoryError as error:
            return {"held": held(), "alive": x.is_cuda, "why": str(error).partition(".")[0]}
        return {}

    found = calculated(program, total=64 * MIB, card=H100.__class__(**{**_fields(H100), "context_bytes": 0}))
    assert found.returned == {"held": 12.0, "alive": True, "why": "CUDA out of memory"}
    assert (found.peaks["requested"], refusals(found)) == (12 * MIB, 1)


def _fields(card: Any) -> Json:
    return {name: getattr(card, name) for name in card.__dataclass_fields__}


@pytest.mark.parametrize("card", [H100, MI300X])
def test_a_batch_that_the_free_memory_decides_is_that_of_the_card(card: Any) -> None:
    def program() -> Json:
        free, total = torch.cuda.mem_get_info()
        batch = int(free * 0.5) // (64 * MIB)
        x = mib(64 * batch)
        return {"batch": batch, "total": total, "left": torch.cuda.mem_get_info()[0] - (free - x.numel())}

    found = calculated(program, card, total=4096 * MIB)
    assert found.returned == {"batch": 32, "total": 4096 * MIB + card.context_bytes, "left": 0}
    assert found.peaks["requested"] == 2048 * MIB


@pytest.mark.parametrize("where", ["one stream", "two streams", "two threads", "two threads in turn"])
def test_products_have_a_workspace_for_each_stream_and_each_thread(where: str) -> None:
    def program() -> Json:
        model, x = weight(1).cuda(), torch.ones(4, 512, device="cuda")
        gate = threading.Barrier(2 if where == "two threads" else 1)

        def work() -> None:
            gate.wait(5)
            with torch.no_grad():
                model(x)
            gate.wait(5)

        threads = [threading.Thread(target=work) for _ in range(2 if "threads" in where else 0)]
        for each in threads:
            each.start()
            if where == "two threads in turn":
                each.join()
        for each in threads:
            each.join()
        if not threads:
            work()
            with torch.cuda.stream(torch.cuda.Stream() if where == "two streams" else None):
                work()
        before = held()
        torch._C._cuda_clearCublasWorkspaces()
        return {"workspaces": (before - held()) / 32}

    assert calculated(program).returned == {"workspaces": 2.0 if where in ("two streams", "two threads") else 1.0}


def test_nested_tensors_have_the_bytes_of_their_parts() -> None:
    def program() -> Json:
        parts = [torch.zeros(256 * rows, 256) for rows in (1, 3)]
        nested = torch.nested.nested_tensor(parts, device="cuda", layout=torch.jagged)
        before = held() // 1
        doubled = nested * 2
        return {"before": before, "after": held() // 1, "device": str(doubled.device), "nested": doubled.is_nested}

    assert calculated(program).returned == {"before": 1.0, "after": 2.0, "device": "cuda:0", "nested": True}


def test_a_profiler_runs_and_takes_nothing() -> None:
    def program() -> Json:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
            mib(1)
            profiler.step()
        return {"events": len(profiler.key_averages()) > 0}

    found = calculated(program)
    assert (found.returned, found.peaks["requested"]) == ({"events": True}, MIB)


def test_a_side_stream_does_not_take_the_blocks_of_the_main_one() -> None:
    def program() -> Json:
        x = mib(32)
        del x
        with torch.cuda.stream(torch.cuda.Stream()):
            y = mib(32)
            y.record_stream(torch.cuda.default_stream())
        return {"reserved": torch.cuda.memory_reserved() // MIB, "held": held()}

    assert calculated(program).returned == {"reserved": 64, "held": 32.0}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_search_for_the_largest_batch_finds_it() -> None:
    def program() -> Json:
        low, high = 1, 128
        while high - low > 1:
            batch = (low + high) // 2
            try:
                mib(batch)
                low = batch
            except RuntimeError as error:
                high = batch if "out of memory" in str(error) else low
            torch.cuda.empty_cache()
        return {"largest": low}

    found = calculated(program, total=40 * MIB)
    assert (found.returned, found.peaks["requested"], refusals(found)) == ({"largest": 40}, 40 * MIB, 5)


def test_a_program_that_swallows_refusals_is_told_as_what_it_did() -> None:
    def program() -> Json:
        kept = []
        for _ in range(5):
            with contextlib.suppress(Exception):
                kept.append(mib(16))
        return {"kept": len(kept)}

    found = calculated(program, total=40 * MIB)
    assert (found.returned, found.peaks["requested"], refusals(found)) == ({"kept": 2}, 32 * MIB, 3)


def test_a_refusal_within_a_step_frees_what_the_step_held_when_the_program_goes_on_with_less() -> None:
    def program() -> Json:
        model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
        rows = 32 * 1024
        while True:
            try:
                model(torch.empty(rows, 1024, device="cuda")).sum().backward()
                return {"rows": rows}
            except torch.cuda.OutOfMemoryError:
                rows //= 2
            model.zero_grad()
            torch.cuda.empty_cache()

    found = calculated(program, total=256 * MIB)
    assert found.error is None
    assert found.returned["rows"] < 32 * 1024
    whole = calculated(program)
    assert whole.returned["rows"] == 32 * 1024


def test_the_largest_of_several_refusals_is_counted_and_the_last_with_what_was_held_then() -> None:
    def program() -> None:
        kept = mib(8)
        for size in (256, 64, 128):
            with contextlib.suppress(torch.OutOfMemoryError):
                mib(size)
        del kept

    found = calculated(program, total=40 * MIB)
    ends = [line["counters"]["sim:card"] for line in found.lines if line["kind"] == "ended"]
    (counters,) = [each for each in ends if each["refusals"]]
    assert (counters["refusals"], counters["refused_bytes"]) == (3, 256 * MIB)
    assert counters["refused"]["requested_bytes"] == 128 * MIB
    assert (counters["refused"]["held"]["allocated"], counters["end"]["allocated"]) == (8 * MIB, 0)


def test_an_absurd_request_is_refused_in_torchs_words() -> None:
    def program() -> None:
        torch.empty(2**50, device="cuda")

    assert str(calculated(program).error).startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_of_a_pool_that_allocate_count_together() -> None:
    def program() -> Json:
        with ThreadPoolExecutor(2) as pool:
            kept = list(pool.map(mib, [2, 3, 4]))
        return {"held": held(), "kept": len(kept)}

    assert calculated(program).returned == {"held": 9.0, "kept": 3}


def test_a_refusal_in_a_thread_is_not_lost() -> None:
    def program() -> Json:
        caught: list[str] = []

        def work() -> None:
            try:
                mib(64)
            except torch.OutOfMemoryError as error:
                caught.append(type(error).__name__)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return {"caught": " ".join(caught), "peak": mib(1).numel()}

    found = calculated(program, total=32 * MIB)
    assert (found.returned["caught"], refusals(found)) == ("OutOfMemoryError", 1)


# --- gradients and hooks ----------------------------------------------------------------------------------------------


def test_a_hook_that_steps_and_drops_each_gradient_keeps_one_at_a_time() -> None:
    def program(drops: bool) -> None:
        layers = [nn.Parameter(torch.zeros(MIB // 4, device="cuda")) for _ in range(8)]

        def drop(parameter: Any) -> None:
            parameter.grad = None

        for each in layers:
            if drops:
                each.register_post_accumulate_grad_hook(drop)
        sum((each * 2.0).sum() for each in layers).backward()  # type: ignore[union-attr]
        for each in layers:
            assert (each.grad is None) is drops

    assert peak(program, drops=False) > 16
    assert peak(program, drops=True) < peak(program, drops=False) - 5


def test_hooks_of_tensors_see_the_card_and_what_they_make_counts() -> None:
    def program() -> Json:
        x, kept = torch.zeros(MIB // 4, device="cuda", requires_grad=True), []
        y = x * 1.0
        y.register_hook(lambda gradient: kept.append((gradient.device.type, gradient.clone())))
        y.sum().backward()
        return {"device": kept[0][0], "held": held()}

    # x, y, x.grad and the clone; the gradient that was given to the hook is x.grad's
    assert calculated(program).returned["device"] == "cuda"
    assert calculated(program).returned["held"] == pytest.approx(4, abs=0.01)


@pytest.mark.parametrize("where", ["kept", "torch's", "own"])
def test_saved_tensors_that_are_packed_to_the_host_leave_the_card(where: str) -> None:
    def program() -> Json:
        hooks: Any = {
            "kept": contextlib.nullcontext,
            "torch's": torch.autograd.graph.save_on_cpu,
            "own": lambda: torch.autograd.graph.saved_tensors_hooks(
                lambda x: (x.device, x.cpu()), lambda packed: packed[1].to(packed[0])
            ),
        }[where]
        x = torch.zeros(MIB // 4, device="cuda", requires_grad=True)
        with hooks():
            y = x
            for _ in range(8):
                y = y.exp()  # keeps its result
        before = held()
        y.sum().backward()
        return {"before": before, "device": str(x.grad.device)}  # type: ignore[union-attr]

    found = calculated(program).returned
    assert found == {"before": 9.0 if where == "kept" else 2.0, "device": "cuda:0"}


def test_a_list_of_losses_keeps_their_graphs_and_a_list_of_numbers_does_not() -> None:
    def program(numbers: bool) -> Json:
        x = torch.zeros(MIB // 4, device="cuda", requires_grad=True)
        losses = []
        for _ in range(4):
            loss = x.exp().sum()  # the graph keeps the result of exp
            losses.append(loss.item() if numbers else loss)
            del loss
        return {"held": held() // 1}

    assert calculated(program, numbers=False).returned == {"held": 5.0}
    assert calculated(program, numbers=True).returned == {"held": 1.0}


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_zero_are_kept_and_those_of_none_are_not(to_none: bool) -> None:
    def program() -> Json:
        x = torch.zeros(MIB // 4, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=1.0)
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        return {"held": held() // 1}

    assert calculated(program).returned == {"held": 1.0 if to_none else 2.0}


def test_weight_norm_holds_two_parts_and_makes_the_weight_anew() -> None:
    def program() -> Json:
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(512, 1024, bias=False)).cuda()
        before = held()
        weights = layer.weight, layer.weight
        made = held() - before
        with nn.utils.parametrize.cached():
            cached = layer.weight, layer.weight
            assert cached[0] is cached[1]
        return {"before": before, "two weights": made // 1, "distinct": weights[0] is not weights[1]}

    found = calculated(program).returned
    norms = 1024 * 4 / MIB
    assert (found["before"], found["two weights"], found["distinct"]) == (2 + norms, 4.0, True)


# --- modes and classes of the program ---------------------------------------------------------------------------------


class CountsForItself(TorchDispatchMode):
    """A program's own count of storages on the card."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, int] = {}
        self.devices: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor):
                self.devices.add(str(leaf.device))
                if leaf.is_cuda:
                    self.seen[leaf.untyped_storage().data_ptr()] = leaf.untyped_storage().nbytes()
        return result


def test_a_dispatch_mode_of_the_program_counts_what_we_do() -> None:
    def program() -> Json:
        with CountsForItself() as mode:
            x = torch.empty(MIB // 4, device="cuda")
            kept = [x, x[:2], x + 1, (x * 2).view(2, -1)]
        return {"own": sum(mode.seen.values()) / MIB, "ours": held(), "kept": len(kept), "on": str(mode.devices)}

    assert calculated(program).returned == {"own": 3.0, "ours": 3.0, "kept": 4, "on": "{'cuda:0'}"}


def test_a_function_mode_of_the_program_sees_the_card() -> None:
    class Sees(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.seen.append(str(result.device))
            return result

    def program() -> Json:
        with Sees() as mode:
            mib(2).cpu()
        return {"seen": " ".join(mode.seen)}

    found = calculated(program)
    assert (found.returned, found.peaks["requested"]) == ({"seen": "cuda:0 cpu"}, 2 * MIB)


class Logged(torch.Tensor):
    """A class of tensors that passes everything on."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """A tensor made of another one, as quantised weights and distributed tensors are."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrap = lambda each: each.inner if isinstance(each, Wrapper) else each  # noqa: E731
        result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(lambda each: Wrapper(each) if isinstance(each, torch.Tensor) else each, result)


def test_classes_of_tensors_count_as_what_they_hold() -> None:
    def program(wraps: bool) -> Json:
        x = torch.empty(MIB // 4, device="cuda")
        x = Wrapper(x) if wraps else x.as_subclass(Logged)
        y = (x + 1) * 2
        return {"class": type(y).__name__, "device": str(y.device), "held": held()}

    assert calculated(program, wraps=False).returned == {"class": "Logged", "device": "cuda:0", "held": 2.0}
    assert calculated(program, wraps=True).returned == {"class": "Wrapper", "device": "cuda:0", "held": 2.0}


# --- numbers that decide ----------------------------------------------------------------------------------------------


def bounds(found: Calculated) -> list[tuple[str, str]]:
    lines = [line for line in found.lines if line["kind"] == "assumed"]
    return [(each["operator"], each["bound"]) for each in lines[-1]["bounds"]] if lines else []


def test_a_mask_selects_at_most_all_and_that_is_said() -> None:
    def program() -> Json:
        x = torch.randn(MIB // 4, device="cuda")
        picked = x[x > 0]
        return {"rows": int(picked.numel() == x.numel()), "held": held()}

    found = calculated(program)
    assert found.error is None
    assert bounds(found)
    assert found.returned["held"] == 2.0


def test_a_size_that_a_calculated_number_decides_is_refused_with_its_place() -> None:
    def program() -> None:
        count = torch.randint(1, 100, (), device="cuda").item()
        torch.empty(count * MIB, device="cuda")

    why = refused(program)
    assert "test_hostile_programs.py" in why


def test_a_loop_that_only_calculated_numbers_end_is_refused_with_its_place() -> None:
    def program() -> None:
        x = torch.rand((), device="cuda")
        while x.item() > 0.01:
            x = x * torch.rand((), device="cuda")

    assert "test_hostile_programs.py" in refused(program)


def test_a_time_that_was_not_measured_is_counted_as_assumed() -> None:
    def program() -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        mib(1)
        end.record()
        torch.cuda.synchronize()
        print(f"{start.elapsed_time(end):.1f} ms")

    (line, *_) = [line for line in calculated(program).lines if line["kind"] == "assumed"]
    assert [each["operator"] for each in line["places"]] == ["Event.elapsed_time"]


# --- what libraries and habits do -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of what the collector has of torch.distributed
def test_a_program_that_counts_the_tensors_of_the_collector_counts_what_we_do() -> None:
    def program() -> Json:
        before = {id(each) for each in gc.get_objects()}  # of other tests in this process
        model = nn.Sequential(weight(1), nn.ReLU(), weight(1)).cuda()
        rows = torch.ones(MIB // 4 // 512, 512, device="cuda")
        kept = model(rows)
        del kept
        gc.collect()
        found = {}
        for each in gc.get_objects():
            if id(each) not in before and isinstance(each, torch.Tensor) and each.is_cuda:
                found[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        torch._C._cuda_clearCublasWorkspaces()
        return {"own": sum(found.values()) / MIB, "ours": held()}

    assert calculated(program).returned == {"own": 3.0, "ours": 3.0}


def test_what_is_deleted_is_gone_but_for_the_workspace_of_the_products() -> None:
    def program() -> Json:
        model = weight(4).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(torch.ones(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        del model, optimizer
        gc.collect()
        left = held()
        torch._C._cuda_clearCublasWorkspaces()
        return {"workspaces": left > 0, "left": held()}

    assert calculated(program).returned == {"workspaces": True, "left": 0.0}


def test_an_optimizer_that_was_made_before_the_move_updates_the_parameters_on_the_card() -> None:
    def program() -> Json:
        model = weight(2)
        optimizer = torch.optim.Adam(model.parameters())
        model.cuda()
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
        (state,) = optimizer.state.values()
        return {"device": str(state["exp_avg"].device), "step": str(state["step"].device), "held": held()}

    # weight, gradient and two moments; the counter of a step that is not fused is on the host
    assert calculated(program).returned == {"device": "cuda:0", "step": "cpu", "held": 8.0}


def test_an_optimizer_on_the_host_keeps_its_state_there() -> None:
    def program() -> Json:
        model = weight(2).cuda()
        masters = [nn.Parameter(each.detach().cpu()) for each in model.parameters()]
        optimizer = torch.optim.Adam(masters)
        for master, each in zip(masters, model.parameters(), strict=True):
            each.grad = torch.zeros_like(each)
            master.grad = each.grad.cpu()
            each.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, each in zip(masters, model.parameters(), strict=True):
                each.copy_(master, non_blocking=True)
        return {"held": held(), "devices": str({each.device.type for each in masters})}

    found = calculated(program)
    assert found.returned == {"held": 2.0, "devices": "{'cpu'}"}
    assert found.peaks["requested"] == 4 * MIB


def test_layers_that_hooks_bring_to_the_card_and_back_are_there_one_at_a_time() -> None:
    def program() -> Json:
        model = nn.Sequential(weight(4), *(nn.Linear(2048, 2048, bias=False) for _ in range(3)))
        seen = []

        def before(layer: Any, args: Any) -> None:
            torch._C._cuda_clearCublasWorkspaces()
            layer.cuda()
            seen.append(held() // 1)

        def after(layer: Any, args: Any, out: Any) -> None:
            layer.cpu()

        for layer in model:
            layer.register_forward_pre_hook(before)
            layer.register_forward_hook(after)
        with torch.no_grad():
            model(torch.ones(1, 512, device="cuda"))
        return {"seen": str(seen)}

    assert calculated(program).returned == {"seen": "[4.0, 16.0, 16.0, 16.0]"}


def test_checkpointing_keeps_the_inputs_of_its_parts_only() -> None:
    def program(mode: str) -> Json:
        from torch.utils.checkpoint import checkpoint

        def block(x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = x.exp()
            return x

        x = torch.zeros(MIB // 4, device="cuda", requires_grad=True)
        y = x
        for _ in range(3):
            y = block(y) if mode == "none" else checkpoint(block, y, use_reentrant=mode == "reentrant")
        before = held()
        y.sum().backward()
        return {"before": before}

    assert calculated(program, mode="none").returned == {"before": 13.0}
    for mode in ("reentrant", "other"):
        assert calculated(program, mode=mode).returned == {"before": 4.0}


def test_a_second_derivative_keeps_the_graph_of_the_first() -> None:
    def program(create: bool) -> Json:
        x = torch.zeros(MIB // 4, device="cuda", requires_grad=True)
        (first,) = torch.autograd.grad(x.exp().sum(), x, create_graph=create)
        return {"held": held() // 1, "graph": first.requires_grad}

    assert calculated(program, create=False).returned == {"held": 2.0, "graph": False}
    # x, its exponential, the gradient, which is the product of the exponential and ones
    assert calculated(program, create=True).returned == {"held": 3.0, "graph": True}


def test_autocast_keeps_a_copy_of_each_weight_until_it_ends() -> None:
    def program() -> Json:
        model = weight(4).cuda()
        x = torch.ones(1, 512, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(x), model(x)
            torch._C._cuda_clearCublasWorkspaces()
            inside = held() // 1
        return {"inside": inside, "after": held() // 1}

    assert calculated(program).returned == {"inside": 6.0, "after": 4.0}


def test_a_functional_call_uses_the_parameters_that_it_is_given() -> None:
    def program() -> Json:
        model = weight(2)
        given = {"weight": torch.zeros(1024, 512, device="cuda")}
        out = torch.func.functional_call(model, given, (torch.ones(4, 512, device="cuda"),))
        return {"device": str(out.device), "model": str(model.weight.device)}

    found = calculated(program)
    assert found.returned == {"device": "cuda:0", "model": "cpu"}
    assert 2 * MIB < found.peaks["requested"] < 40 * MIB, "with the workspace"


def test_a_module_for_several_cards_runs_on_the_one_that_is_there() -> None:
    def program() -> Json:
        model = nn.DataParallel(weight(2)).cuda()
        out = model(torch.ones(4, 512))
        return {"device": str(out.device), "cards": torch.cuda.device_count(), "parallel": len(model.device_ids)}

    assert calculated(program).returned == {"device": "cuda:0", "cards": 1, "parallel": 1}


@pytest.mark.parametrize("device", ["cuda:1", 1, torch.device("cuda", 3)])
def test_a_second_card_is_not_there(device: Any) -> None:
    def program() -> None:
        mib(1)
        mib(1, device)

    assert "invalid device ordinal" in str(calculated(program).error)


def test_a_prefetcher_on_a_stream_of_its_own_has_blocks_of_its_own() -> None:
    def program() -> Json:
        stream = torch.cuda.Stream()
        batches = [mib(32, "cpu").pin_memory() for _ in range(3)]
        used = 0
        with torch.cuda.stream(stream):
            following = batches[0].cuda(non_blocking=True)
        for batch in [*batches[1:], None]:
            torch.cuda.current_stream().wait_stream(stream)
            current = following
            current.record_stream(torch.cuda.current_stream())
            if batch is not None:
                with torch.cuda.stream(stream):
                    following = batch.cuda(non_blocking=True)
            used += current.numel() // MIB
        return {"used": used, "reserved": torch.cuda.memory_reserved() // MIB}

    found = calculated(program)
    assert (found.returned, found.peaks["requested"]) == ({"used": 96, "reserved": 64}, 64 * MIB)


@pytest.mark.parametrize("way", ["fork", "queue", "worker"])
def test_a_process_of_the_program_does_not_share_the_card_in_silence(way: str) -> None:
    def program() -> Json:
        import multiprocessing
        import os

        mib(1)
        if way == "fork":
            child = os.fork()
            if child == 0:
                try:
                    mib(1)
                    os._exit(0)
                except Exception:
                    os._exit(7)
            return {"exit": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
        if way == "queue":
            queue: Any = multiprocessing.get_context("fork").SimpleQueue()
            queue.put(mib(1))
        else:
            rows = [torch.ones(2)] * 4
            loader = torch.utils.data.DataLoader(
                rows, num_workers=1, collate_fn=lambda batch: torch.stack(batch).cuda()
            )  # type: ignore[arg-type]
            list(loader)
        return {}

    found = calculated(program)
    if way == "fork":
        assert found.returned == {"exit": 7}, "CUDA cannot be initialised again in a process that was forked"
    elif way == "queue":
        assert "was sent to another process" in str(found.error)
    else:
        assert "Cannot re-initialize CUDA in forked subprocess" in str(found.error)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", ["trace", "script"])
def test_a_program_that_is_compiled_to_torchscript_counts_as_it_runs(way: str) -> None:
    def program() -> Json:
        model, x = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).cuda(), torch.ones(4, 512, device="cuda")
        made = torch.jit.trace(model, x) if way == "trace" else torch.jit.script(model)
        return {"device": str(made(x).device)}

    found = calculated(program)
    assert found.error is None or "Unavailable" in found.error, found.error
    if found.error is None:
        assert found.returned == {"device": "cuda:0"}


def test_a_clipped_norm_is_on_the_card_and_takes_no_copy_of_the_gradients() -> None:
    def program() -> Json:
        layers = [nn.Parameter(torch.zeros(MIB // 4, device="cuda")) for _ in range(4)]
        for each in layers:
            each.grad = torch.zeros_like(each)
        torch.cuda.reset_peak_memory_stats()
        norm = nn.utils.clip_grad_norm_(layers, 1.0)
        return {"device": str(norm.device), "more": torch.cuda.max_memory_allocated() / MIB - 8 < 0.1}

    assert calculated(program).returned == {"device": "cuda:0", "more": True}


def test_padded_sequences_are_packed_by_lengths_of_the_host() -> None:
    def program() -> Json:
        x, lengths = torch.zeros(4, 16, 256, device="cuda"), torch.tensor([16, 8, 4, 4])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return {"rows": len(packed.data), "device": str(packed.data.device), "batches": str(packed.batch_sizes.device)}

    assert calculated(program).returned == {"rows": 32, "device": "cuda:0", "batches": "cpu"}


def test_a_key_of_the_environment_that_is_set_too_late_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> Json:
        mib(1)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        return {"available": torch.cuda.is_available(), "device": str(mib(1).device)}

    assert calculated(program).returned == {"available": True, "device": "cuda:0"}


def test_a_card_that_is_hidden_and_used_all_the_same_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        mib(1)

    assert "No CUDA GPUs are available" in str(calculated(program).error)


def test_views_of_another_type_and_parts_of_complex_numbers_share_their_memory() -> None:
    def program() -> Json:
        x = torch.zeros(MIB // 8, dtype=torch.complex64, device="cuda")
        parts = torch.view_as_real(x), x.real, x.imag, x.view(torch.float32), x.conj(), x.unsqueeze(0).mT
        return {"held": held(), "one": len({each.untyped_storage().data_ptr() for each in parts})}

    assert calculated(program).returned == {"held": 1.0, "one": 1}


def test_a_cache_of_the_program_keeps_what_it_holds() -> None:
    def program() -> Json:
        from functools import lru_cache

        @lru_cache(2)
        def table(size: int) -> torch.Tensor:
            return mib(size)

        found = []
        for size in (1, 2, 2, 4):
            table(size)
            found.append(held())
        return {"held": str(found)}

    assert calculated(program).returned == {"held": "[1.0, 3.0, 3.0, 6.0]"}


def test_an_iterator_that_is_not_exhausted_keeps_its_local_tensors() -> None:
    def program() -> Json:
        def batches() -> Any:
            local = mib(2)
            for part in local.split(MIB):
                yield part.clone()

        iterator = batches()
        first = next(iterator)
        before = held()
        iterator.close()
        return {"before": before, "after": held(), "first": first.is_cuda}

    assert calculated(program).returned == {"before": 3.0, "after": 1.0, "first": True}


def test_a_tensor_with_a_finalizer_of_the_program_is_freed_as_any_other() -> None:
    def program() -> Json:
        x, seen = mib(2), []
        weakref.finalize(x, lambda: seen.append(held()))
        del x
        return {"in the finalizer": str(seen), "after": held()}

    found = calculated(program).returned
    assert found["after"] == 0.0


def test_every_class_of_torch_cuda_stays_one_that_a_library_can_name_in_an_annotation() -> None:
    classes = [name for name in dir(torch.cuda) if isinstance(getattr(torch.cuda, name), type)]

    def program() -> dict[str, int]:
        mib(1)
        return {"classes": sum(isinstance(getattr(torch.cuda, name), type) for name in classes)}

    assert "CUDAGraph" in classes
    assert calculated(program).returned == {"classes": len(classes)}


# --- the same program on this machine's cpu, counted, and on a calculated one -----------------------------------------


def _mlp(depth: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(depth)))


def _steps(model: nn.Module, optimizer: Any, rows: int = 64, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.ones(rows, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def trains() -> None:
    model = _mlp()
    _steps(model, torch.optim.AdamW(model.parameters()))


def averages_its_weights() -> None:
    model = _mlp()
    average, swa = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    _steps(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    swa.update_parameters(model)
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.1)


def steps_within_the_backward_pass() -> None:
    model = _mlp()
    optimizers = {each: torch.optim.SGD([each], 0.1) for each in model.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(torch.ones(64, 256)).square().mean().backward()


def checkpoints() -> None:
    from torch.utils.checkpoint import checkpoint_sequential

    model = _mlp(4)
    for reentrant in (False, True):
        x = torch.ones(512, 256, requires_grad=True)
        checkpoint_sequential(model, 2, x, use_reentrant=reentrant).sum().backward()


def normalises_its_weights() -> None:
    model = nn.Sequential(*(nn.utils.parametrizations.weight_norm(nn.Linear(256, 256)) for _ in range(3)))
    model.append(nn.utils.parametrizations.spectral_norm(nn.Linear(256, 256)))
    _steps(model, torch.optim.Adam(model.parameters()))


def packs_what_it_saves() -> None:
    model = _mlp()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (x.dtype, x.half()), lambda pair: pair[1].to(pair[0])):
        loss = model(torch.ones(512, 256)).sum()
    loss.backward()


def keeps_its_weights_in_one_buffer() -> None:
    model = _mlp()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    nn.utils.vector_to_parameters(flat, model.parameters())
    flat.grad = torch.zeros_like(flat)
    _steps(model, torch.optim.SGD(model.parameters(), 0.1))


def halves_its_weights_in_place() -> None:
    model = _mlp()
    for each in model.parameters():
        each.data = each.data.to(torch.bfloat16)
    model(torch.ones(64, 256, dtype=torch.bfloat16)).sum().backward()
    model.zero_grad()
    model.float()


def resizes_and_shares() -> None:
    x, y = torch.zeros(2**18), torch.zeros(2**16)
    x.resize_(2**10)
    y.set_(x.untyped_storage(), 0, (2**10,))
    torch.utils.swap_tensors(x, y)
    del x
    torch.add(torch.ones(2**18), 1.0, out=y.resize_(0))


def works_on_many_models_at_once() -> None:
    models = [nn.Linear(256, 256) for _ in range(4)]
    parameters, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]

    def loss(weights: Any, held: Any, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.func.functional_call(models[0], (weights, held), (x,))
        return made.square().mean()

    torch.func.vmap(torch.func.grad(loss), in_dims=(0, 0, None))(parameters, buffers, torch.ones(64, 256))


def looks_rows_up() -> None:
    table = nn.Embedding(4096, 64, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    for _ in range(2):
        table(torch.arange(128)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def has_a_class_of_tensors() -> None:
    x: Any = torch.ones(2**18).as_subclass(Logged)
    y = Wrapper(torch.ones(2**18))
    kept = [x + 1, (y * 2) + y, x.relu_().clone()]
    del kept[1]


def pickles_and_copies() -> None:
    model = nn.ModuleList([nn.Linear(256, 256, bias=False)] * 2 + [nn.Linear(256, 256)])
    kept = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model.state_dict()), copy.copy(model[0].weight)]
    kept.append([each.clone() for each in model.parameters()])
    del kept[0]


def differentiates_twice() -> None:
    x = torch.ones(2**16, requires_grad=True)
    (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
    first.sum().backward()
    torch.autograd.functional.jacobian(lambda each: each.sin(), torch.ones(256))


def has_channels_last() -> None:
    model: Any = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    model.to(memory_format=torch.channels_last)
    for _ in range(2):
        x = torch.ones(4, 8, 64, 64).contiguous(memory_format=torch.channels_last)
        model(x).flatten(1).sum().backward()


PAIRS = [
    trains,
    averages_its_weights,
    steps_within_the_backward_pass,
    checkpoints,
    normalises_its_weights,
    packs_what_it_saves,
    keeps_its_weights_in_one_buffer,
    halves_its_weights_in_place,
    resizes_and_shares,
    works_on_many_models_at_once,
    looks_rows_up,
    has_a_class_of_tensors,
    pickles_and_copies,
    differentiates_twice,
    has_channels_last,
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("program", PAIRS, ids=[each.__name__ for each in PAIRS])
def test_a_calculated_host_counts_what_this_one_does(program: Any) -> None:
    tracker = TensorTracker()
    gc.collect()
    with tracker.pushed():
        program()
    found = calculated(program, HOST)
    assert found.error is None, found.lines[-1]["traceback"]
    # A number in a tensor of its own (the steps of Adam) is counted here once an operator takes it.
    assert found.peaks["tensor"] == pytest.approx(tracker.peak, rel=0.0005)

"""A program finds the card that it asks for, although nothing of it is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.programs import H100, HOST, MI300X, MIB, calculated


def chooses_its_device(**_: Any) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    optimizer = torch.optim.AdamW(model.parameters())  # before the move, as some programs do
    model.to(device)
    for _ in range(2):
        loss = model(torch.randn(8, 512).to(device, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"device": str(loss.device), "is_cuda": loss.is_cuda, "peak": torch.cuda.max_memory_allocated()}


@pytest.mark.parametrize("card", [H100, MI300X])
def test_a_program_that_prints_its_own_peak_prints_the_calculated_one(card: Any) -> None:
    found = calculated(chooses_its_device, card)
    assert found.returned["device"] == "cuda:0"
    assert found.returned["is_cuda"] is True
    assert found.returned["peak"] == found.peaks["allocated"]


def test_on_a_calculated_host_the_program_stays_on_the_cpu() -> None:
    def program() -> dict[str, Any]:
        held = torch.zeros(2**20)
        return {"device": str(held.device), "cuda": torch.cuda.is_available()}

    found = calculated(program, HOST)
    assert found.returned == {"device": "cpu", "cuda": False}
    assert found.peaks == {"tensor": 4 * MIB}


def test_a_move_to_the_card_keeps_what_two_modules_share() -> None:
    def program(device: str) -> dict[str, Any]:
        model = nn.ModuleList([nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)])
        model[1].weight = model[0].weight
        weight = model[0].weight
        model.to(device)
        return {"same": model[0].weight is model[1].weight is weight, "bytes": torch.cuda.memory_allocated()}

    assert calculated(program).returned == {"same": True, "bytes": MIB}


def test_a_refusal_is_raised_where_the_program_allocates_so_that_it_can_go_on_with_less() -> None:
    def program(device: str) -> dict[str, Any]:
        batch, refused = 64, ""
        while True:
            try:
                held = torch.empty(batch, MIB, dtype=torch.uint8, device=device)
                return {"bytes": held.numel(), "refused": refused}
            except torch.cuda.OutOfMemoryError as error:
                batch, refused = batch // 2, str(error)

    found = calculated(program, total=40 * MIB)
    assert found.returned["bytes"] == 32 * MIB
    assert found.returned["refused"].startswith("CUDA out of memory. Tried to allocate 64.00 MiB.")
    assert found.peaks["allocated"] == 32 * MIB
    assert [line["counters"]["sim:card"]["refusals"] for line in found.lines if line["kind"] == "ended"] == [0, 1, 0]


def test_a_tensor_that_a_program_makes_on_meta_takes_no_memory() -> None:
    def program(device: str) -> dict[str, Any]:
        with torch.device("meta"):
            model = nn.Linear(1024, 1024, bias=False)
        is_meta, held = model.weight.is_meta, torch.cuda.memory_allocated()
        model.to_empty(device=device)
        return {"meta": is_meta, "before": held, "after": torch.cuda.memory_allocated()}

    assert calculated(program).returned == {"meta": True, "before": 0, "after": 4 * MIB}


def test_a_tensor_on_meta_cannot_be_moved_to_the_card_as_in_pytorch() -> None:
    def program(device: str) -> str:
        with torch.device("meta"):
            model = nn.Linear(4, 4, bias=False)
        torch.ones(1, device=device)
        with pytest.raises(NotImplementedError) as refused:
            model.to(device)
        return str(refused.value)

    assert calculated(program).returned == {"result": program("cpu")}  # the same sentence on a device with data


def test_tensors_of_two_devices_do_not_meet() -> None:
    def program(device: str) -> None:
        torch.ones(4, device=device) @ torch.ones(4)

    assert "Expected all tensors to be on the same device" in (calculated(program).error or "")


def test_a_program_that_stays_on_the_host_says_nothing_about_the_card() -> None:
    def program() -> None:
        torch.ones(4).sum()

    assert "nothing was placed on cuda" in (calculated(program).error or "")


def test_the_classes_of_torch_cuda_stay_classes_that_type_hints_name() -> None:
    """`torch.cuda.CUDAGraph | None` is evaluated where a function is defined, in libraries too."""
    classes = {name for name, each in vars(torch.cuda).items() if isinstance(each, type)}

    def program() -> list[str]:
        torch.ones(4, device="cuda")
        return [name for name in classes if not isinstance(getattr(torch.cuda, name), type)]

    assert {"CUDAGraph", "MemPool", "Stream"} <= classes
    assert calculated(program).returned == {"result": []}


def test_inference_mode_is_followed_as_a_context_and_in_each_form_of_a_decorator() -> None:
    def program() -> list[Any]:
        recorded = torch.inference_mode(False)(torch.is_grad_enabled)
        plain = torch.inference_mode(lambda: (torch.is_grad_enabled(), recorded()))
        with torch.inference_mode():
            inside = torch.ones(4, device="cuda", requires_grad=True) * 2
        return [recorded(), torch.inference_mode()(torch.is_grad_enabled)(), *plain(), inside.requires_grad]

    assert calculated(program).returned == {"result": [True, False, False, True, False]}


@pytest.mark.parametrize("card", [H100, HOST])
def test_a_constant_that_is_made_on_meta_is_there_and_takes_nothing(card: Any) -> None:
    """transformers asks torch.tensor([]) whether it builds a model on `meta`."""

    def program(**_: Any) -> list[str]:
        held = torch.ones(3, device="cuda" if torch.cuda.is_available() else "cpu")
        with torch.device("meta"):
            made = [torch.tensor([]), torch.tensor([2.0] * 1000), torch.as_tensor([1]), torch.get_default_device()]
        made += [torch.tensor([1, 2], device="meta").sum(), held]
        return sorted({str(getattr(each, "device", each)) for each in made[:-1]})

    found = calculated(program, card)
    assert found.returned == {"result": ["meta"]}
    assert max(found.peaks.get("tensor", 0), found.peaks.get("requested", 0)) <= 64


@pytest.mark.parametrize("workers", [0, 1])
def test_a_calculated_host_takes_the_batches_of_a_data_loaders_workers(workers: int) -> None:
    class Inherited(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.data, self.sizes = torch.randn(16, MIB // 4), torch.tensor([2, 3])
            self.weights = torch.randn(2)

        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Any:
            made = torch.zeros(int(self.sizes.max().item())) + (self.weights[0] > self.weights[1]).item()
            return self.data[index], index, made, self.data.mean().numpy()

    def program(workers: int, **_: Any) -> list[Any]:
        seen = []
        for batch, *rest in torch.utils.data.DataLoader(Inherited(), batch_size=4, num_workers=workers):
            seen.append([str(batch.device), list(batch.shape), *(list(each.shape) for each in rest)])
            assert rest[0].tolist()[0] == 4 * len(seen) - 4
            del batch, rest
        return seen[-1]

    found = calculated(program, HOST, workers=workers)
    assert found.returned == {"result": ["cpu", [4, MIB // 4], [4], [4, 3], [4]]}
    if workers:  # without, the next batch is made of parts while this one has no name
        assert (16 + 4) * MIB <= found.peaks["tensor"] < (16 + 4) * MIB + MIB


def test_tensors_of_legacy_constructors_and_of_generators_have_no_data_on_a_calculated_host() -> None:
    def program(**_: Any) -> list[int]:
        generator = torch.Generator().manual_seed(0)
        weight = nn.Parameter(torch.FloatTensor(512, 512))
        bias = nn.Parameter(torch.Tensor(512))
        drawn = torch.randn(64, 512, generator=generator) + torch.normal(0.0, 1.0, (64, 512), generator=generator)
        nn.init.normal_(weight, generator=generator)
        (drawn @ weight + bias).sum().backward()
        return [weight.grad.nbytes, bias.grad.nbytes, int(torch.LongTensor([3, 4])[1])]  # type: ignore[union-attr]

    assert calculated(program, HOST).returned == {"result": [MIB, 2048, 4]}


@pytest.mark.parametrize("card", [H100, HOST])
def test_a_slice_to_an_assumed_end_has_at_most_all_elements(card: Any) -> None:
    def program(**_: Any) -> list[Any]:
        numbers = torch.randn(4, 8, device="cuda" if torch.cuda.is_available() else "cpu")
        end = numbers.argmax()
        longest = (numbers > 0).sum(dim=1).max()
        slices = [numbers[:, :end], numbers[:, : end + 1], numbers[end.item() :], numbers[:, :longest], numbers[:2]]
        return [list(each.shape) for each in slices]

    found = calculated(program, card)
    assert found.returned == {"result": [[4, 8], [4, 8], [4, 8], [4, 8], [2, 8]]}
    bounds = [each["bound"] for line in found.lines if line["kind"] == "assumed" for each in line["bounds"]]
    assert set(bounds) == {"at most all"}


def test_two_parts_of_one_tensor_are_not_the_same_numbers() -> None:
    """A graph's edges are rows of one tensor: edges[0] != edges[1] drops none but those from a node to itself."""

    def program() -> list[int]:
        edges = torch.randint(4000, (2, 100_000), device="cuda")
        kept = edges[:, edges[0] != edges[1]]
        same = edges[:, edges[0] == edges[0]]
        return [kept.size(1), same.size(1)]

    assert calculated(program).returned == {"result": [100_000, 100_000]}


def test_data_of_a_calculated_host_meets_numbers_without_data() -> None:
    """Data that came from a file: what is chosen or written by a tensor without data is without, or is assumed."""

    def program(**_: Any) -> list[Any]:
        import numpy as np

        data = torch.from_numpy(np.arange(1000))
        order = torch.randperm(1000)
        chosen = data[order[:10]]
        mask = torch.zeros(1000, dtype=torch.uint8)
        mask[chosen] = 1
        data[order] = torch.randint(0, 1000, (1000,))
        data[data > 5000] = 0
        return [list(chosen.shape), list(mask[chosen].shape), list(data[data > 990].shape)]

    found = calculated(program, HOST)
    assert found.returned["result"][:2] == [[10], [10]]
    assert found.returned["result"][2] == [1000], "at most all"


@pytest.mark.parametrize("card", [H100, HOST])
def test_a_module_moves_to_the_device_that_a_keyword_an_index_or_a_tensor_names(card: Any) -> None:
    def program() -> list[str]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        like = torch.zeros(1, device=device)
        modules = [
            nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last).to(device=torch.device(device)),  # type: ignore[call-overload]
            nn.Conv2d(2, 2, 3).to(device=device, dtype=torch.float32),
            nn.Conv2d(2, 2, 3).to(like),
            nn.Conv2d(2, 2, 3).to(tensor=like),
        ]
        if device == "cuda":
            modules += [nn.Conv2d(2, 2, 3).to(0), nn.Conv2d(2, 2, 3).to(device=0)]
        given = torch.ones(1, 2, 4, 4).to(device)
        return sorted({str(module(given).device) for module in modules})

    assert calculated(program, card).returned == {"result": ["cpu" if card.is_host else "cuda:0"]}


def test_a_module_that_moves_to_meta_by_a_keyword_leaves_the_card() -> None:
    def program() -> list[Any]:
        module = nn.Linear(MIB // 4, 1, bias=False).to(device="cuda").to(device="meta")
        return [str(module.weight.device), torch.cuda.memory_allocated()]

    assert calculated(program).returned == {"result": ["meta", 0]}


def test_generators_take_numbers_of_a_shuffled_order_as_seeds() -> None:
    import random

    import numpy as np

    class Drawn(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            generator = torch.Generator().manual_seed(index)
            torch.manual_seed(index)
            assert all(isinstance(each, torch.Generator) for each in (generator, torch.default_generator))
            drawn = [np.random.default_rng(index).random(), random.Random(index).random()]
            drawn += [np.random.RandomState(index).rand(), np.random.Generator(np.random.MT19937(index)).random()]
            assert all(0 <= each < 1 for each in drawn)
            return torch.rand(MIB // 4, generator=generator)

    def program() -> list[Any]:
        (batch,) = torch.utils.data.DataLoader(Drawn(), batch_size=4, shuffle=True)
        return list(batch.shape)

    found = calculated(program, HOST)
    assert found.returned == {"result": [4, MIB // 4]}
    assert {"manual_seed", "numpy.random"} <= {place["operator"] for place in found.assumed["places"]}


def test_a_seed_that_is_assumed_draws_what_the_same_known_seed_draws() -> None:
    import numpy as np

    from runners.simulation.assumptions import Assumptions
    from runners.simulation.levels import Level

    seed = Assumptions().remembering(7, Level.ASSUMED)
    assert np.random.default_rng(seed).random() == np.random.default_rng(7).random()


def test_spectra_of_a_calculated_host_have_data_and_windows_without() -> None:
    import numpy as np

    def program() -> list[int]:
        sound = torch.from_numpy(np.random.default_rng(0).random(4000, dtype=np.float32))
        window = torch.hann_window(256)
        spectrum = torch.stft(sound, 256, 64, window=window, return_complex=True)
        assert sound.stft(256, 64, window=window, return_complex=True).shape == spectrum.shape
        return [*spectrum.shape, *torch.istft(spectrum, 256, 64, window=window).shape]

    assert calculated(program, HOST).returned == {"result": [129, 63, 3968]}


def test_one_position_of_data_meets_rows_without_data_on_a_calculated_host() -> None:
    import numpy as np

    def program() -> list[int]:
        position = torch.from_numpy(np.array(1))
        return list(torch.zeros(3).index_copy_(0, position, torch.randn(1)).shape)

    assert calculated(program, HOST).returned == {"result": [3]}


@pytest.mark.parametrize(
    ("work", "notes"),
    [
        (lambda x: torch.nn.functional.conv2d(x, x), ["workspaces of convolutions are not in the peak"]),
        (lambda x: torch.fft.rfft2(x), ["workspaces of Fourier transforms are not in the peak"]),
        (lambda x: x.relu(), []),
    ],
    ids=["convolution", "transform", "neither"],
)
def test_the_row_names_the_workspaces_that_no_rule_knows(work: Any, notes: list[str]) -> None:
    def program(device: str) -> None:
        work(torch.ones(1, 1, 8, 8, device=device))

    assert calculated(program).notes == notes
    assert calculated(program, HOST).notes == []

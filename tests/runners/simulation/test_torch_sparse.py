"""Sparse tensors take the bytes of their indices and values, compared with a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from runners.phases import Unavailable
from runners.simulation.kernels.torch_gpu_architecture import GpuArchitecture
from runners.simulation.torch_device_rules import CudaRules
from runners.simulation.torch_tracer import MetaTracer
from tests.tracing import Work, peak, real_peak

NODES, EDGES, FEATURES = 100, 400, 16

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (invariant|CSR|CSC)")


def graph(device: str) -> torch.Tensor:
    edges = torch.stack([torch.arange(EDGES) % NODES, torch.arange(EDGES) * 7 % NODES]).to(device)
    return torch.sparse_coo_tensor(edges, torch.ones(EDGES, device=device), (NODES, NODES))


def nodes(device: str) -> torch.Tensor:
    return torch.ones(NODES, FEATURES, device=device, requires_grad=True)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(list(parameters)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ids", ["known", "random"])
def test_a_sparse_embedding_takes_the_bytes_of_a_cpu(optimizer: str, ids: str) -> None:
    def work(device: str) -> None:
        embedding = nn.Embedding(1000, 32, sparse=True, padding_idx=0 if ids == "random" else None, device=device)
        made = OPTIMIZERS[optimizer](embedding.parameters())
        torch.manual_seed(0)
        given = torch.arange(64, device=device) if ids == "known" else torch.randint(0, 1000, (64,), device=device)
        for _ in range(2):
            embedding(given.view(8, 8)).sum().backward()
            made.step()
            made.zero_grad()

    # Padding is left out of the gradient on a CPU, and the traced number is that of all.
    assert real_peak(work) <= peak(work) * 1.0001 <= real_peak(work) * (1.005 if ids == "known" else 1.01)


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_places_that_meet_are_counted_once_where_they_are_known(is_contiguous: bool) -> None:
    """Two gradients of one sparse embedding, which are added, coalesced and taken as the places of the moments. The
    gradient of a sum is expanded, that of a square is not."""

    def work(device: str) -> None:
        embedding = nn.Embedding(1000, 64, sparse=True, device=device)
        optimizer = torch.optim.SparseAdam(list(embedding.parameters()))
        ids = torch.arange(4000, device=device)
        for _ in range(2):
            found = [embedding(ids % 50), embedding(ids[:2000] % 80)]
            sum(each.square().sum() if is_contiguous else each.sum() for each in found).backward()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()

    assert peak(work) == pytest.approx(real_peak(work), rel=0.001)


@pytest.mark.parametrize(
    ("mode", "sparse"), [("sum", False), ("sum", True), ("mean", False), ("mean", True), ("max", False)]
)
@pytest.mark.parametrize("padding", [None, 3])
def test_a_bag_of_embeddings_takes_the_bytes_of_a_cpu(mode: str, sparse: bool, padding: int | None) -> None:
    def work(device: str) -> None:
        bag = nn.EmbeddingBag(1000, 32, mode=mode, sparse=sparse, padding_idx=padding, device=device)
        for _ in range(2):
            bag(torch.arange(64, device=device), torch.arange(0, 64, 8, device=device)).sum().backward()

    assert peak(work) == pytest.approx(real_peak(work), rel=0.005)


OPERATORS: dict[str, Work] = {
    "product": lambda on: torch.sparse.mm(graph(on), nodes(on)).sum().backward(),
    "product, coalesced": lambda on: (graph(on).coalesce() @ nodes(on)).relu().sum().backward(),
    "product with gradients of both": lambda on: weighted(on).sum().backward(),
    "addmm": lambda on: torch.sparse.addmm(nodes(on), graph(on), nodes(on)),
    "transposed": lambda on: graph(on).t() @ nodes(on),
    "compressed rows": lambda on: graph(on).coalesce().to_sparse_csr() @ nodes(on).detach(),
    "dense": lambda on: graph(on).to_dense(),
    "of a dense tensor of whole numbers": lambda on: torch.eye(50, dtype=torch.int64, device=on).to_sparse(),
    "sum of two": lambda on: graph(on) + graph(on),
    "in place": lambda on: graph(on).add_(graph(on)),
    "added to a dense tensor": lambda on: torch.ones(NODES, NODES, device=on).add_(graph(on), alpha=0.5),
    "times a number": lambda on: graph(on) * 2,
    "sum of rows": lambda on: torch.sparse.sum(graph(on), 1).to_dense(),
    "softmax": lambda on: torch.sparse.softmax(graph(on).coalesce(), 1),
    "joined": lambda on: torch.cat([graph(on), graph(on)]),
    "values": lambda on: graph(on).coalesce().values().sum(),
}


def weighted(device: str) -> torch.Tensor:
    weights = torch.ones(EDGES, device=device, requires_grad=True)
    adjacency = torch.sparse_coo_tensor(graph(device)._indices(), weights, (NODES, NODES))
    return torch.sparse.mm(adjacency, nodes(device))


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_on_sparse_tensors_takes_the_bytes_of_a_cpu(name: str) -> None:
    assert peak(OPERATORS[name]) == pytest.approx(real_peak(OPERATORS[name]), rel=0.005)


def traced(work: Work) -> MetaTracer:
    tracer = MetaTracer(CudaRules(GpuArchitecture("nvidia", (9, 0))))
    with tracer.around_workload():
        work("meta")
    return tracer


def test_on_cuda_equal_places_are_added_up_and_counted_where_they_are_known() -> None:
    def known(device: str) -> int:
        count: int = graph(device).coalesce()._indices().size(1)
        return count

    tracer = MetaTracer(CudaRules(GpuArchitecture("nvidia", (9, 0))))
    with tracer.around_workload():
        assert known("meta") == NODES
    assert not tracer.bounds


def test_on_cuda_there_are_at_most_as_many_elements_and_the_peak_says_so() -> None:
    def work(device: str) -> None:
        ids = torch.randint(0, 10, (1, 64), device=device)
        torch.sparse_coo_tensor(ids, torch.ones(64, 8, device=device), (10, 8)).coalesce()

    tracer = traced(work)
    assert [(low, high) for _, low, high in tracer.bounds] == [(8, 8 * 64), (8 * 4, 8 * 4 * 64)]


def test_what_depends_on_how_many_numbers_are_not_zero_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"aten\._to_sparse\.default .* the number of its elements"):
        traced(lambda device: torch.rand(4, 4, device=device).to_sparse())
    with pytest.raises(Unavailable, match=r"aten\.mm\.default .* the number of its elements"):
        traced(lambda device: graph(device).coalesce() @ graph(device).coalesce())
    with pytest.raises(Unavailable, match=r"aten\.index_select\.default .* no rule"):
        traced(lambda device: graph(device).index_select(0, torch.arange(5, device=device)))


def test_a_copy_of_sparse_columns_is_unavailable_by_its_layout() -> None:
    def work(device: str) -> None:
        columns, rows, values = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2)
        parts = [each.to(device) for each in (columns, rows, values)]
        torch.sparse_csc_tensor(*parts, (2, 2), check_invariants=False).clone()

    with pytest.raises(Unavailable, match=r"no rule copies a tensor of the layout torch\.sparse_csc"):
        traced(work)


@pytest.mark.parametrize("name", ["masked_fill", "clamp", "sigmoid", "relu", "mul", "div", "isnan"])
@pytest.mark.parametrize("compressed", [False, True], ids=["coordinates", "rows"])
def test_a_pointwise_operator_is_answered_where_pytorch_computes_it_on_sparse_tensors(
    name: str, compressed: bool
) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"clamp": (0,), "mul": (2.0,), "div": (2.0,)}

    def work(device: str) -> None:
        each = graph(device).coalesce()
        each = each.to_sparse_csr() if compressed else each
        mask = (torch.ones(NODES, NODES, dtype=torch.bool, device=device), 0.0)
        getattr(each, name)(*(mask if name == "masked_fill" else arguments.get(name, ())))

    try:
        work("cpu")
    except (NotImplementedError, RuntimeError):
        with pytest.raises(Unavailable, match="no rule"):
            traced(work)
    else:
        traced(work)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda rows: rows + rows, "no rule gives the size of the sum of compressed sparse tensors"),
        (lambda rows: rows.transpose(0, 1), "no rule gives the layout of a transposed compressed sparse tensor"),
        (lambda rows: rows.to_sparse_coo(), "no rule converts torch.sparse_csr to torch.sparse_coo"),
        (lambda rows: graph("meta").to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)), "to torch.sparse_bsr"),
    ],
    ids=["sum", "transposed", "to coordinates", "to blocks"],
)
def test_what_no_rule_covers_is_unavailable_by_its_operator_also_if_the_program_goes_on(work: Any, why: str) -> None:
    def tried(device: str) -> None:
        with suppress(Exception):
            work(graph(device).coalesce().to_sparse_csr())
        torch.ones(2**20, device=device)

    with pytest.raises(Unavailable, match=rf"aten\.\w+\.\w+ cannot be traced without data: .*{re.escape(why)}"):
        traced(tried)

"""Operators on sparse tensors without data: how many elements their results have, and which storages.

PyTorch has few kernels for sparse tensors on `meta`, and some of those share storages that a device copies. A sparse
tensor's bytes are those of its indices and its values. Indices that are known stay known in what is made of them: a
result has them as `known_indices`. Where the number of elements depends on values it is computed from whole numbers
that are known; else it is at most that of all elements, if there is such a bound, and a result has the bytes that its
storages can have as `estimates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from runners.simulation.kernels.torch_sizes import Estimate

aten = torch.ops.aten

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
# Operators that PyTorch computes on `meta` as on a device: they take a sparse tensor apart or put one together.
ALIKE = {
    *("_indices", "_values", "indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices"),
    *("is_coalesced", "_nnz", "sparse_dim", "dense_dim", "_coalesced_", "detach", "alias"),
    *("_sparse_coo_tensor_with_dims_and_tensors", "_sparse_compressed_tensor_unsafe", "sparse_compressed_tensor"),
}
IN_DENSE = {"mm", "addmm", "_sparse_addmm", "mv", "addmv", "bmm", "sspaddmm"}  # products that are dense

ValueOf = Callable[[Tensor], Tensor | None]  # the whole numbers of a tensor without data, where they are known


class UnknownCount(Exception):
    """The number of a result's elements depends on numbers that are not computed."""


def is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is not torch.strided


def call(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], value_of: ValueOf, narrows: bool) -> Any:
    """The result of an operator that has or makes sparse tensors.

    `narrows`: coalescing leaves the storages of all elements, as on a CPU. Raises UnknownCount, and NotImplementedError
    for an operator that is not known.
    """
    name = operator._schema.name.removeprefix("aten::")
    if name in ALIKE:
        return operator(*args, **kwargs)
    if name == "_coalesce":
        return _coalesced(args[0], value_of, narrows)
    if name in ("_to_dense", "to_dense"):
        return args[0].new_empty(args[0].shape, layout=torch.strided, dtype=kwargs.get("dtype") or args[0].dtype)
    if name in IN_DENSE:
        return _product(name, args)
    if name in ("_to_sparse", "_to_sparse_csr"):
        return _to_sparse(name, args, kwargs, value_of, narrows)
    if name == "sparse_mask":
        return _same_places(_copy(args[1], dtype=args[0].dtype), args[1], value_of)
    if name in ("t", "transpose", "permute"):
        return _turned(name, args)
    if name in ("add", "add_", "sub", "sub_"):
        return _sum(args, value_of, narrows, in_place=name.endswith("_"))
    if name in ("clone", "_to_copy", "_sparse_softmax", "_sparse_log_softmax"):
        made = _copy(args[0], dtype=kwargs.get("dtype"), device=kwargs.get("device"))
        return _same_places(made, args[0], value_of)
    if name in ("zeros_like", "empty_like", "zero_"):
        return args[0].zero_() if name == "zero_" else _copy(args[0], count=0)
    if name == "cat":
        return _joined(args[0])
    if name == "_sparse_sum":
        return _sum_over(args[0], args[1])
    if torch.Tag.pointwise in operator.tags and _has_kernel(operator, next(filter(is_sparse, args), None)):
        first, *others = (each for each in args if is_sparse(each))
        if operator._schema.is_mutable:
            return args[0]
        return _copy(first) if others else _same_places(_copy(first), first, value_of)
    raise NotImplementedError("no rule gives the size of its result for a sparse tensor")


def _has_kernel(operator: Any, sparse: Tensor | None) -> bool:
    """Whether PyTorch computes a pointwise operator on such a tensor, by the kernels of the CPU.

    `mul.Scalar` and `div.Scalar` have none of their own there: they call the overload for two tensors.
    """
    if sparse is None:
        return False
    key = "SparseCsrCPU" if sparse.layout in COMPRESSED else "SparseCPU"
    packet = operator.overloadpacket
    overloads = [operator, *([packet.Tensor] if "Tensor" in packet.overloads() else [])]
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(each.name(), key) for each in overloads)


# --- tensors of coordinates ---


def _made(shape: Sequence[int], indices: Tensor, values: Tensor, coalesced: bool) -> Tensor:
    made: Tensor = aten._sparse_coo_tensor_with_dims_and_tensors(
        *(indices.size(0), values.dim() - 1, list(shape), indices, values),
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device, is_coalesced=coalesced,
    )  # fmt: skip
    return made


def _copy(
    tensor: Tensor, dtype: torch.dtype | None = None, count: int | None = None, device: torch.device | None = None
) -> Any:
    """A copy in new storages, with the same number of elements or with another."""
    if tensor.layout in COMPRESSED:
        return _compressed_copy(tensor, dtype, device)
    indices, values = tensor._indices(), tensor._values()
    count = indices.size(1) if count is None else count
    return _made(
        tensor.shape,
        indices.new_empty(indices.size(0), count, device=device),
        values.new_empty(count, *values.shape[1:], dtype=dtype or values.dtype, device=device),
        tensor.is_coalesced(),
    )


def _same_places(made: Any, source: Tensor, value_of: ValueOf) -> Any:
    """A copy of a sparse tensor, with the numbers of its indices where they are known."""
    if source.layout is torch.sparse_coo and (known := value_of(source._indices())) is not None:
        made.known_indices = known.clone()
    return made


def _coalesced(tensor: Tensor, value_of: ValueOf, narrows: bool) -> Tensor:
    """Elements of the same place added up. On a CPU the result is a part of storages for all."""
    indices, values = tensor._indices(), tensor._values()
    every = indices.size(1)
    known = value_of(indices)
    places = None if known is None else torch.unique(known, dim=1)
    count = every if places is None else places.size(1)
    if narrows:
        of_indices = indices.new_empty(indices.size(0), every).narrow(1, 0, count)
        of_values = torch.empty_like(values).narrow(0, 0, count)
    else:
        of_indices = indices.new_empty(indices.size(0), count)
        of_values = values.new_empty(count, *values.shape[1:])
    made: Any = _made(tensor.shape, of_indices, of_values, True)
    if places is not None:
        made.known_indices = places
    if narrows:
        return made  # type: ignore[no-any-return]
    if known is None and every:
        made.estimates = [Estimate(each.nbytes, each.nbytes // every, each.nbytes) for each in (of_indices, of_values)]
    return made  # type: ignore[no-any-return]


def _sum(args: Sequence[Any], value_of: ValueOf, narrows: bool, in_place: bool) -> Any:
    """The sum has the elements of both sparse tensors. With a dense tensor it is dense."""
    first, second = args[:2]
    if not is_sparse(first) or not is_sparse(second):
        dense = first if is_sparse(second) else second
        return dense if in_place else torch.empty_like(dense)
    if first.layout in COMPRESSED or second.layout in COMPRESSED:
        raise NotImplementedError("no rule gives the size of the sum of compressed sparse tensors")
    both: Any = _both(first, second, narrows, value_of)
    if not in_place:
        return both
    first.data = both  # the storages of the sum themselves, which a copy would narrow
    if (known := getattr(both, "known_indices", None)) is not None:
        first.known_indices = known
    return first


# aten/src/ATen/native/sparse/SparseTensorMath.cpp and cuda/SparseCUDATensorMath.cu
def _both(first: Tensor, second: Tensor, narrows: bool, value_of: ValueOf) -> Tensor:
    """A card joins the elements. A CPU merges those that meet, in storages for all, where the values are contiguous."""
    indices, values = first._indices(), first._values()
    narrows = narrows and values.is_contiguous() and second._values().is_contiguous()
    every = indices.size(1) + second._indices().size(1)
    of_indices = indices.new_empty(indices.size(0), every)
    of_values = values.new_empty(every, *values.shape[1:], dtype=torch.result_type(first, second))
    places = [value_of(each._indices()) for each in (first, second)]
    known = [each for each in places if each is not None]
    if len(known) < len(places):
        return _made(first.shape, of_indices, of_values, narrows and first.is_coalesced() and second.is_coalesced())
    if not narrows:
        joined: Any = _made(first.shape, of_indices, of_values, False)
        joined.known_indices = torch.cat(known, 1)
        return joined  # type: ignore[no-any-return]
    shape = first.shape[: indices.size(0)]
    ones = [
        torch.sparse_coo_tensor(place, torch.ones(place.size(1)), shape, is_coalesced=each.is_coalesced())
        for place, each in zip(known, (first, second), strict=True)
    ]
    merged = ones[0] + ones[1]
    count = merged._indices().size(1)
    made: Any = _made(first.shape, of_indices.narrow(1, 0, count), of_values.narrow(0, 0, count), merged.is_coalesced())
    made.known_indices = merged._indices()
    return made  # type: ignore[no-any-return]


def _sum_over(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    """aten/src/ATen/native/sparse/SparseTensorMath.cpp, _sparse_sum with dimensions: at most as many elements."""
    summed = {dim % tensor.dim() for dim in dims}
    indices, values = tensor._indices(), tensor._values()
    of_sparse = [dim for dim in range(indices.size(0)) if dim not in summed]
    shape = [size for dim, size in enumerate(tensor.shape) if dim not in summed]
    if not of_sparse:
        return values.new_empty(shape)
    of_values = values.new_empty(values.size(0), *shape[len(of_sparse) :])
    return _made(shape, indices.new_empty(len(of_sparse), indices.size(1)), of_values, True)


def _joined(tensors: Sequence[Tensor]) -> Any:
    return _copy(tensors[0], count=sum(each._indices().size(1) for each in tensors))


def _turned(name: str, args: Sequence[Any]) -> Tensor:
    tensor = args[0]
    if tensor.layout in COMPRESSED:
        raise NotImplementedError("no rule gives the layout of a transposed compressed sparse tensor")
    order = list(range(tensor.dim()))
    if name == "permute":
        order = [dim % tensor.dim() for dim in args[1]]
    else:
        one, other = (0, tensor.dim() - 1) if name == "t" else (dim % tensor.dim() for dim in args[1:3])
        order[one], order[other] = order[other], order[one]
    copy = _copy(tensor)
    return _made([tensor.size(dim) for dim in order], copy._indices(), copy._values(), False)


def _product(name: str, args: Sequence[Any]) -> Any:
    """The dense product of a sparse matrix."""
    left, right = args[1:3] if "add" in name else args[:2]
    if is_sparse(left) and is_sparse(right):
        raise UnknownCount
    dense = right if is_sparse(left) else left
    shape = (*left.shape[:-1], right.shape[-1]) if right.dim() > 1 else left.shape[:-1]
    return dense.new_empty(shape)


def _to_sparse(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], value_of: ValueOf, narrows: bool) -> Any:
    tensor = args[0]
    if name == "_to_sparse_csr" or kwargs.get("layout") is torch.sparse_csr:
        return _compressed(tensor, value_of, narrows)
    if kwargs.get("layout") not in (None, torch.sparse_coo) or tensor.layout in COMPRESSED:
        raise NotImplementedError(f"no rule converts {tensor.layout} to {kwargs.get('layout') or torch.sparse_coo}")
    dims = args[1] if len(args) > 1 and isinstance(args[1], int) else tensor.dim()
    count = _count(tensor, value_of, dims)
    indices = torch.empty(dims, count, dtype=torch.int64, device="meta")
    return _made(tensor.shape, indices, tensor.new_empty(count, *tensor.shape[dims:]), True)


# aten/src/ATen/native/TensorConversions.cpp, coo_to_sparse_csr
def _compressed(tensor: Tensor, value_of: ValueOf, narrows: bool) -> Any:
    """By rows. The columns and values of a coalesced tensor stay where they are."""
    of_rows = torch.empty(tensor.size(0) + 1, dtype=torch.int64, device="meta")
    if is_sparse(tensor):
        coalesced = tensor if tensor.is_coalesced() else _coalesced(tensor, value_of, narrows)
        of_columns, values = coalesced._indices()[1], coalesced._values()
    else:
        count = _count(tensor, value_of, 2)
        of_columns = torch.empty(count, dtype=torch.int64, device="meta")
        values = torch.empty(count, dtype=tensor.dtype, device="meta")
    return aten._sparse_compressed_tensor_unsafe(
        of_rows, of_columns, values, tensor.shape, dtype=tensor.dtype, layout=torch.sparse_csr, device="meta"
    )


def _count(tensor: Tensor, value_of: ValueOf, dims: int) -> int:
    """The number of elements in the first dimensions that are not all zero."""
    known = value_of(tensor)
    if known is None:
        raise UnknownCount
    return int(known.reshape(prod(known.shape[:dims]), -1).count_nonzero(1).count_nonzero())


def _compressed_copy(tensor: Tensor, dtype: torch.dtype | None, device: torch.device | None) -> Any:
    if tensor.layout is not torch.sparse_csr:
        raise NotImplementedError(f"no rule copies a tensor of the layout {tensor.layout}")
    parts = [torch.empty_like(each, device=device) for each in (tensor.crow_indices(), tensor.col_indices())]
    values = torch.empty_like(tensor.values(), dtype=dtype, device=device)
    return aten._sparse_compressed_tensor_unsafe(
        *parts, values, tensor.shape, dtype=values.dtype, layout=torch.sparse_csr, device=values.device
    )


def with_parts(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """A sparse tensor of what `make` makes of the indices and the values. Raises NotImplementedError for a layout."""
    if tensor.layout is torch.sparse_coo:
        return _made(tensor.shape, make(tensor._indices()), make(tensor._values()), tensor.is_coalesced())
    if tensor.layout is not torch.sparse_csr:
        raise NotImplementedError(f"no rule copies a tensor of the layout {tensor.layout}")
    parts = [make(each) for each in (tensor.crow_indices(), tensor.col_indices(), tensor.values())]
    made: Tensor = aten._sparse_compressed_tensor_unsafe(
        *parts, tensor.shape, dtype=parts[-1].dtype, layout=tensor.layout, device=parts[-1].device
    )
    return made


# --- gradients of embeddings ---


# aten/src/ATen/native/Embedding.cpp
def embedding_sparse_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """A row for each index. Those of the padding are left out: how many is not known, so it is at most all."""
    if padding_idx != -1:
        of_padding = indices != padding_idx
        indices, grad = indices.clone(), grad.clone()
        del of_padding
    return _made([num_weights, grad.size(-1)], indices.reshape(1, -1), grad.reshape(-1, grad.size(-1)), False)


# aten/src/ATen/native/EmbeddingBag.cpp
def embedding_bag_backward(grad: Tensor, indices: Tensor, *rest: Any) -> Tensor:
    """As of an embedding, with a sparse gradient: each row of the gradient for all indices of its bag."""
    num_weights, sparse = rest[4], rest[7]
    if not sparse:
        made: Tensor = aten._embedding_bag_backward.default(grad, indices, *rest)
        return made
    values = grad.new_empty(indices.numel(), grad.size(-1))
    return _made([num_weights, grad.size(-1)], indices.reshape(1, -1), values, False)


def any_sparse(args: Any, kwargs: Any) -> bool:
    return any(map(is_sparse, tree_iter((args, kwargs))))

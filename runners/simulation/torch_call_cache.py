"""Results of repeated operator calls, by the shapes of their arguments.

The layers of a decoder call the same operators on the same shapes. Computing the shapes of results takes most of the
time of a trace, since many operators are written in Python for `meta`: 11 s of 22 in a profile of a training step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_iter

aten = torch.ops.aten

IN_PLACE, NOTHING = "in place", "nothing"
# These change a tensor's own shape or storage, so they always run. Not all of them have the tag inplace_view.
RESHAPES = frozenset({aten.resize_, aten.resize_as_, aten.set_, aten.as_strided_, aten.detach_})


class CachedCall(NamedTuple):
    """A cached call for arguments of certain shapes. `made` has the shapes of the results; None for views."""

    made: Any
    uses_workspace: bool
    temporaries: tuple[int, ...]


def signature_of(func: Any, args: Any, kwargs: Any) -> Any:
    """The key that the shapes of the results depend on; None if an argument is a tensor with data, which may count."""
    try:
        return func, _described(args), _described(tuple(kwargs.items())) if kwargs else None
    except (ValueError, TypeError):
        return None


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_meta or value.is_complex() or value.layout is not torch.strided:
            raise ValueError
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (tuple, list)):
        return tuple([_described(each) for each in value])
    hash(value)
    return type(value), value  # 1, 1.0 and True are equal


def shapes_of(func: Any, args: Any, result: Any) -> Any:
    """The shapes of new tensors, nested as the operator returns them; None for anything else."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.is_view:
        return None
    if schema.is_mutable:
        if torch.Tag.inplace_view in func.tags or func.overloadpacket in RESHAPES:
            return None
        if result is None or (isinstance(result, tuple) and not result):
            return NOTHING
        return IN_PLACE if args and result is args[0] and isinstance(result, torch.Tensor) else None
    taken = {leaf.untyped_storage()._cdata for leaf in tree_iter(args) if isinstance(leaf, torch.Tensor)}
    try:
        return _new_shapes(result, taken)
    except ValueError:
        return None


def _new_shapes(result: Any, taken: set[int]) -> Any:
    if isinstance(result, torch.Tensor):
        if result.layout is not torch.strided:
            raise ValueError
        key = result.untyped_storage()._cdata
        if not result.is_meta or key in taken or result.storage_offset():
            raise ValueError
        taken.add(key)
        made = result.shape, result.stride(), result.dtype
        if recreate(made).untyped_storage().nbytes() != result.untyped_storage().nbytes():
            raise ValueError
        return made
    if isinstance(result, (tuple, list)):
        return [type(result), *(_new_shapes(each, taken) for each in result)]
    if result is not None:
        raise ValueError
    return None


def recreate(made: Any) -> Any:
    """New tensors without data of these shapes, nested in the same way."""
    if made is None:
        return None
    if isinstance(made, list):
        return made[0](map(recreate, made[1:]))
    shape, stride, dtype = made
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

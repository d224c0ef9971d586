"""Which file builds which model, by `model.library`. Imports no library itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.models import quantized_weights
from runners.phases import Phases
from runners.workloads import quality

if TYPE_CHECKING:
    from runners.models.torch_models import Network

Values = Mapping[str, Any]


# What reads the user's own files, by the name of the inputs.
OF_INPUTS = {
    "text": ("tokenizers", "transformers.models.auto.tokenization_auto"),
    "images": ("PIL.Image", "transformers.models.auto.image_processing_auto"),
}


def imports(values: Values) -> tuple[str, ...]:
    """The library modules that the model's code is in, and those that its inputs are made with."""
    return (*_of_model(values), *OF_INPUTS.get((values.get("inputs") or {}).get("name", ""), ()))


def _of_model(values: Values) -> tuple[str, ...]:
    """Each modelling module by its own name: `import transformers` is lazy, and would leave 94 MiB of imports to the
    first use of a class, after the process baseline.
    """
    model = values["model"]
    if model["library"] == "torch":
        return ("torch",)
    if "path" in model:  # its kind stands in the checkpoint, which prepare() reads
        return ("torch", "transformers.models.auto.modeling_auto")
    kind = model["model_type"].replace("-", "_")
    module = f"transformers.models.{kind}.modeling_{kind}"
    found = importlib.util.find_spec("transformers")
    for folder in (found and found.submodule_search_locations) or ():
        if not Path(folder, "models", kind, f"modeling_{kind}.py").exists():  # one of a family's, or a misspelt one
            return ("torch", "transformers.models.auto.modeling_auto")
    return ("torch", module)


def prepare(values: Values, device: str) -> None:
    """Fetch what has to be fetched, and refuse what cannot be built. Whether a device has the dtype, its meter says."""
    from runners.models import torch_models

    quality.prepare(values)
    torch_models.dtype_named(values["dtype"])
    quantized_weights.prepare(values, device)
    if values["model"]["library"] == "transformers":
        from runners.models import transformers_models

        transformers_models.prepare(values, device)
    else:
        torch_models.prepare(values)


def load(
    values: Values, device: str, phase: Phases, adapt: Callable[[Network], None] = lambda network: None
) -> Network:
    """The model on its device, built in the phase `model_load`: on the CPU in its own dtype, then moved.

    `adapt` changes the model where it stands, as part of the same phase: what is counted of it is what it became.
    """
    import torch

    from runners.models import torch_weights

    # TF32 and bfloat16 products would change what float32 means from one GPU to the next.
    torch.set_float32_matmul_precision("highest")
    with phase("model_load") as notes:
        network = _build(values, device)
        adapt(network)
        notes.metrics |= torch_weights.quantised(network.module)
    phase.model(**network.facts(), matmul_precision=torch.get_float32_matmul_precision())
    return network


def _build(values: Values, device: str) -> Network:
    if quantized_weights.asked(values) is None:
        return _build_as_it_is(values, device)
    network = _build_as_it_is(values, "cpu")
    quantized_weights.apply(network.module, values, device)
    network.module.to(device)
    network.device = device
    return network


def _build_as_it_is(values: Values, device: str) -> Network:
    from runners.models import torch_models

    with torch_models.made_on_host():
        if values["model"]["library"] == "torch":
            return torch_models.build(values, device)
        from runners.models import transformers_models

        return transformers_models.build(values, device)

"""Builds a point's model with the library that `model.library` names. Imports no library itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.models import quantized_weights
from runners.phases import Phases

if TYPE_CHECKING:
    from runners.models.torch_models import Network

Values = Mapping[str, Any]


# Modules that read the user's files, by the name of the inputs.
INPUT_MODULES = {
    "text": ("tokenizers", "transformers.models.auto.tokenization_auto"),
    "images": ("PIL.Image", "transformers.models.auto.image_processing_auto"),
}


def imports(values: Values) -> tuple[str, ...]:
    """Library modules to import before the baseline: the model's code, and the readers of its inputs."""
    return (*_of_model(values), *INPUT_MODULES.get((values.get("inputs") or {}).get("name", ""), ()))


def _of_model(values: Values) -> tuple[str, ...]:
    """The modelling module by its full name: `import transformers` is lazy and would leave 94 MiB of imports to the
    first use of a class, after the process baseline.
    """
    model = values["model"]
    if model["library"] == "torch":
        return ("torch",)
    if "path" in model:  # prepare() reads the model type from the checkpoint
        return ("torch", "transformers.models.auto.modeling_auto")
    kind = model["model_type"].replace("-", "_")
    module = f"transformers.models.{kind}.modeling_{kind}"
    found = importlib.util.find_spec("transformers")
    for folder in (found and found.submodule_search_locations) or ():
        if not Path(
            folder, "models", kind, f"modeling_{kind}.py"
        ).exists():  # the type is in another module, or misspelt
            return ("torch", "transformers.models.auto.modeling_auto")
    return ("torch", module)


def prepare(values: Values, device: str) -> None:
    """Fetch the checkpoint and check that the model can be built. Raises ValueError or Unavailable.

    The device's meter checks whether the device supports the dtype.
    """
    from runners.models import torch_models

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
    """Build the model on the CPU in its dtype and move it to `device`, in the phase `model_load`.

    `adapt` changes the model in the same phase; the recorded parameter counts include its changes.
    """
    import torch

    from runners.models import torch_weights

    # TF32 and bfloat16 products would make float32 results differ between GPUs.
    torch.set_float32_matmul_precision("highest")
    with phase("model_load") as notes:
        network = _build(values, device)
        adapt(network)
        notes.metrics |= torch_weights.quantised(network.module)
    phase.model(**network.facts(), matmul_precision=torch.get_float32_matmul_precision())
    return network


def _build(values: Values, device: str) -> Network:
    from runners.models import torch_models

    with torch_models.made_on_host():
        if quantized_weights.requested_scheme(values) is None:
            return _build_unquantised(values, device)
        network = _build_unquantised(values, torch_models.first_device(device))
        quantized_weights.apply(network.module, values, device)
        network.module.to(device)
    network.device = device
    return network


def _build_unquantised(values: Values, device: str) -> Network:
    if values["model"]["library"] == "torch":
        from runners.models import torch_models

        return torch_models.build(values, device)
    from runners.models import transformers_models

    return transformers_models.build(values, device)

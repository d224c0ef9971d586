"""A key other than batch and context: the side of an image. Any parameter of the function can be swept.

python -m sweeper workload=custom workload.target=image_side:run workload.params.side=32,64 batch=2

The frontier can be searched along it; `objective=workload.params.side^2*batch` defines the largest point.
"""

import torch
from torch import nn


def run(*, batch, side, dtype, device, phase, channels=16):
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    with phase("model_load"):
        model = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1, **kind),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1, **kind),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * channels, 10, **kind),
        )
    images = torch.randn(batch, 3, side, side, **kind)
    with phase("forward") as notes:
        notes.shapes["images"] = list(images.shape)
        loss = model(images).logsumexp(-1).mean()
    with phase("backward"):
        loss.backward()
    return {"loss": loss.item()}

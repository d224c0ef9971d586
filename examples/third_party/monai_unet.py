"""MONAI's U-Net on a volume: forward and backward pass. Memory grows with the third power of the side.

python -m sweeper workload=custom workload.target=monai_unet:run batch=1 workload.params.side=32,64
"""

import torch
from monai.networks.nets import UNet


def run(*, batch, side, dtype, device, phase):
    with phase("model_load"):
        model = UNet(
            spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1
        ).to(device, getattr(torch, dtype))
    volume = torch.randn(batch, 1, side, side, side, device=device, dtype=getattr(torch, dtype))
    with phase("forward"):
        loss = model(volume).square().mean()
    with phase("backward"):
        loss.backward()
    return {"loss": loss.item(), "parameters": sum(each.numel() for each in model.parameters())}

"""The U-Net of a diffusion model: forward and backward pass by the side of its latent image.

python -m sweeper workload=custom workload.target=diffusers_unet:run batch=1 workload.params.side=16,32
"""

import torch
from diffusers import UNet2DConditionModel


def run(*, batch, side, dtype, device, phase):
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    with phase("model_load"):
        model = UNet2DConditionModel(
            sample_size=side,
            block_out_channels=(32, 64),
            layers_per_block=1,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=64,
            attention_head_dim=8,
            norm_num_groups=8,
        ).to(**kind)
    latents, text = torch.randn(batch, 4, side, side, **kind), torch.randn(batch, 16, 64, **kind)
    with phase("forward"):
        loss = model(latents, 10, text).sample.square().mean()
    with phase("backward"):
        loss.backward()
    return {"loss": loss.item(), "parameters": sum(each.numel() for each in model.parameters())}

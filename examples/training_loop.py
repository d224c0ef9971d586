"""A training loop with phases:

python -m sweeper workload=custom workload.target=training_loop:run workload.params.width=64 batch=2,8 context=32
"""

import torch
from torch import nn


def run(*, batch, context, dtype, device, seed, phase, width=256, steps=2):
    torch.manual_seed(seed)
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    with phase("model_load"):
        model = nn.TransformerEncoderLayer(width, nhead=4, batch_first=True, **kind)
        optimizer = torch.optim.AdamW(model.parameters())
    with phase("inputs"):
        inputs = torch.randn(batch, context, width, **kind)

    losses = []
    for step in range(steps):  # two: the optimizer's state exists from the second step on
        with phase("forward", step) as notes:
            notes.shapes["inputs"] = list(inputs.shape)
            loss = model(inputs).square().mean()
        with phase("backward", step):
            loss.backward()
        with phase("update", step):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}

"""A decoder of x-transformers: forward and backward pass.

python -m sweeper workload=custom workload.target=x_transformers_decoder:run batch=2 context=64,256
"""

import torch
from x_transformers import Decoder, TransformerWrapper


def run(*, batch, context, dtype, device, phase, width=128, depth=2):
    with phase("model_load"):
        layers = Decoder(dim=width, depth=depth, heads=4, rotary_pos_emb=True)
        model = TransformerWrapper(num_tokens=1000, max_seq_len=context, attn_layers=layers)
        model = model.to(device, getattr(torch, dtype))
    tokens = torch.randint(1000, (batch, context), device=device)
    with phase("forward"):
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    with phase("backward"):
        loss.backward()
    return {"loss": loss.item(), "parameters": sum(each.numel() for each in model.parameters())}

"""A graph convolution of torch-geometric: forward and backward pass by the nodes of a random graph.

python -m sweeper workload=custom workload.target=torch_geometric_gcn:run workload.params.nodes=2000,8000
"""

import torch
from torch_geometric.nn import GCN


def run(*, nodes, dtype, device, seed, phase, neighbours=8, width=32):
    torch.manual_seed(seed)
    with phase("model_load"):
        model = GCN(width, width, num_layers=2).to(device, getattr(torch, dtype))
    edges = torch.randint(nodes, (2, nodes * neighbours), device=device)
    features = torch.randn(nodes, width, device=device, dtype=getattr(torch, dtype))
    with phase("forward") as notes:
        notes.shapes["edges"] = list(edges.shape)
        loss = model(features, edges).square().mean()
    with phase("backward"):
        loss.backward()
    return {"loss": loss.item(), "parameters": sum(each.numel() for each in model.parameters())}

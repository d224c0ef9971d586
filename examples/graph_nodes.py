"""Keys other than batch and context: the nodes of a graph and their number of neighbours.

python -m sweeper workload=custom workload.target=graph_nodes:run workload.params.nodes=1000,4000

Two layers of a graph convolution, on a random graph whose adjacency is a sparse tensor.
"""

import torch
from torch import nn


def run(*, nodes, dtype, device, seed, phase, neighbours=8, width=32):
    torch.manual_seed(seed)
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    with phase("graph") as notes:
        edges = torch.randint(nodes, (2, nodes * neighbours), device=device)
        notes.shapes["edges"] = list(edges.shape)
        weights = torch.full((edges.shape[1],), 1 / neighbours, **kind)
        adjacency = torch.sparse_coo_tensor(edges, weights, (nodes, nodes)).coalesce()
        features = torch.randn(nodes, width, **kind)
    layers = [nn.Linear(width, width, **kind) for _ in range(2)]
    with phase("forward"):
        hidden = features
        for layer in layers:
            hidden = torch.relu(torch.sparse.mm(adjacency, layer(hidden)))
        loss = hidden.square().mean()
    with phase("backward"):
        loss.backward()
    return {"loss": loss.item(), "edges": adjacency._nnz()}

"""Graph classification with PyTorch Geometric: a GIN with batch norm, mini-batches of graphs, add pooling."""

import torch
import torch.nn.functional as F
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool


class GIN(torch.nn.Module):
    def __init__(self, in_channels, dim, out_channels, num_layers=4):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for _ in range(num_layers):
            mlp = Sequential(Linear(in_channels, dim), BatchNorm1d(dim), ReLU(), Linear(dim, dim), ReLU())
            self.convs.append(GINConv(mlp, train_eps=False))
            in_channels = dim
        self.lin1 = Linear(dim, dim)
        self.lin2 = Linear(dim, out_channels)

    def forward(self, x, edge_index, batch):
        for conv in self.convs:
            x = conv(x, edge_index)
        x = global_add_pool(x, batch)
        x = self.lin1(x).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.lin2(x)


def molecules(count):
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for i in range(count):
        nodes = int(torch.randint(20, 60, (1,), generator=generator))
        edges = torch.randint(nodes, (2, 4 * nodes), generator=generator)
        graphs.append(Data(x=torch.randn(nodes, 32, generator=generator), edge_index=edges, y=torch.tensor([i % 2])))
    return graphs


def main(epochs=2):
    torch.manual_seed(12345)
    dataset = molecules(300)
    train_loader = DataLoader(dataset[:240], batch_size=120, shuffle=True)
    test_loader = DataLoader(dataset[240:], batch_size=60)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = GIN(32, 256, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train():
        model.train()
        total_loss = 0
        for data in train_loader:
            data = data.to(device)
            optimizer.zero_grad()
            out = model(data.x, data.edge_index, data.batch)
            loss = F.cross_entropy(out, data.y)
            loss.backward()
            optimizer.step()
            total_loss += float(loss) * data.num_graphs
        return total_loss / len(train_loader.dataset)

    @torch.no_grad()
    def test(loader):
        model.eval()
        total_correct = 0
        for data in loader:
            data = data.to(device)
            out = model(data.x, data.edge_index, data.batch)
            pred = out.argmax(dim=-1)
            total_correct += int((pred == data.y).sum())
        return total_correct / len(loader.dataset)

    for epoch in range(1, epochs + 1):
        loss = train()
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {test(train_loader):.4f}, Test: {test(test_loader):.4f}")


if __name__ == "__main__":
    main()

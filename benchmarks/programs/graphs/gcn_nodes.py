"""Node classification with PyTorch Geometric's introduction: a two-layer GCN, train and test masks."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import NormalizeFeatures, RandomNodeSplit


class GCN(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


def papers(nodes=4000, features=500, classes=7):
    torch.manual_seed(0)
    edge_index = torch.randint(nodes, (2, 8 * nodes))
    data = Data(x=torch.rand(nodes, features), edge_index=edge_index, y=torch.randint(classes, (nodes,)))
    data = RandomNodeSplit(num_val=500, num_test=1000)(data)
    return NormalizeFeatures()(data)


def main(epochs=5):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = papers()
    print(data)
    print(f"Training node label rate: {int(data.train_mask.sum()) / data.num_nodes:.2f}")
    model = GCN(data.num_features, 256, 7).to(device)
    data = data.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def train():
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        return float(loss)

    @torch.no_grad()
    def test():
        model.eval()
        pred = model(data.x, data.edge_index).argmax(dim=-1)
        accs = []
        for mask in [data.train_mask, data.val_mask, data.test_mask]:
            accs.append(int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()))
        return accs

    best_val_acc = test_acc = 0
    for epoch in range(1, epochs + 1):
        loss = train()
        train_acc, val_acc, tmp_test_acc = test()
        if val_acc > best_val_acc:
            best_val_acc = val_acc
            test_acc = tmp_test_acc
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")


if __name__ == "__main__":
    main()

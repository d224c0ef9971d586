"""Link prediction with PyTorch Geometric: a GAT encoder, RandomLinkSplit, negative sampling in every step."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GATConv
from torch_geometric.transforms import Compose, NormalizeFeatures, RandomLinkSplit, ToDevice
from torch_geometric.utils import negative_sampling


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GATConv(in_channels, hidden_channels, heads=4, dropout=0.2)
        self.conv2 = GATConv(4 * hidden_channels, out_channels, heads=1, concat=False)

    def encode(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)

    def decode(self, z, edge_label_index):
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)

    def decode_all(self, z):
        prob_adj = z @ z.t()
        return (prob_adj > 0).nonzero(as_tuple=False).t()


def main(epochs=3):
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    nodes = 2000
    source = torch.randint(nodes, (2, 6000))
    edge_index = torch.cat([source, source.flip(0)], dim=1)
    transform = Compose(
        [
            NormalizeFeatures(),
            ToDevice(device),
            RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True, add_negative_train_samples=False),
        ]
    )
    train_data, val_data, test_data = transform(Data(x=torch.rand(nodes, 200), edge_index=edge_index))
    model = Net(200, 64, 64).to(device)
    optimizer = torch.optim.Adam(params=model.parameters(), lr=0.01)
    criterion = torch.nn.BCEWithLogitsLoss()

    def train():
        model.train()
        optimizer.zero_grad()
        z = model.encode(train_data.x, train_data.edge_index)
        neg_edge_index = negative_sampling(
            edge_index=train_data.edge_index,
            num_nodes=train_data.num_nodes,
            num_neg_samples=train_data.edge_label_index.size(1),
            method="sparse",
        )
        edge_label_index = torch.cat([train_data.edge_label_index, neg_edge_index], dim=-1)
        edge_label = torch.cat([train_data.edge_label, train_data.edge_label.new_zeros(neg_edge_index.size(1))], dim=0)
        out = model.decode(z, edge_label_index).view(-1)
        loss = criterion(out, edge_label)
        loss.backward()
        optimizer.step()
        return loss

    @torch.no_grad()
    def test(data):
        model.eval()
        z = model.encode(data.x, data.edge_index)
        out = model.decode(z, data.edge_label_index).view(-1).sigmoid()
        labels = data.edge_label.cpu().numpy()
        return float(((out.cpu().numpy() > 0.5) == labels).mean())

    best_val = final_test = 0
    for epoch in range(1, epochs + 1):
        loss = train()
        val_acc, test_acc = test(val_data), test(test_data)
        if val_acc > best_val:
            best_val = val_acc
            final_test = test_acc
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
    print(f"Final Test: {final_test:.4f}")


if __name__ == "__main__":
    main()

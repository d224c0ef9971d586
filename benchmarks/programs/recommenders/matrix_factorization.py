"""Matrix factorization of ratings: sparse embeddings with SparseAdam, biases with Adam, RMSE on a test set."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class MatrixFactorization(nn.Module):
    def __init__(self, n_users, n_items, n_factors=128):
        super().__init__()
        self.user_factors = nn.Embedding(n_users, n_factors, sparse=True)
        self.item_factors = nn.Embedding(n_items, n_factors, sparse=True)
        self.user_biases = nn.Embedding(n_users, 1)
        self.item_biases = nn.Embedding(n_items, 1)
        self.offset = nn.Parameter(torch.zeros(1))
        nn.init.normal_(self.user_factors.weight, std=0.01)
        nn.init.normal_(self.item_factors.weight, std=0.01)

    def forward(self, user, item):
        product = (self.user_factors(user) * self.item_factors(item)).sum(dim=1)
        return product + self.user_biases(user).squeeze() + self.item_biases(item).squeeze() + self.offset


def run(batch_size=8192, device=None, epochs=2, n_users=60000, n_items=20000):
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    users, items = torch.randint(n_users, (4 * batch_size,)), torch.randint(n_items, (4 * batch_size,))
    ratings = torch.randint(1, 6, (4 * batch_size,)).float()
    train = TensorDataset(users[: 3 * batch_size], items[: 3 * batch_size], ratings[: 3 * batch_size])
    test = TensorDataset(users[3 * batch_size :], items[3 * batch_size :], ratings[3 * batch_size :])
    train_loader = DataLoader(train, batch_size=batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=batch_size)

    model = MatrixFactorization(n_users, n_items).to(device)
    sparse = [model.user_factors.weight, model.item_factors.weight]
    dense = [p for p in model.parameters() if all(p is not s for s in sparse)]
    optimizers = [torch.optim.SparseAdam(sparse, lr=0.01), torch.optim.Adam(dense, lr=0.01)]
    loss_func = nn.MSELoss()
    for epoch in range(epochs):
        model.train()
        running = 0.0
        for user, item, rating in tqdm(train_loader, desc=f"epoch {epoch}", leave=False):
            for optimizer in optimizers:
                optimizer.zero_grad()
            prediction = model(user.to(device), item.to(device))
            loss = loss_func(prediction, rating.to(device))
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            running += loss.item()
        model.eval()
        with torch.no_grad():
            squared = sum(
                (model(user.to(device), item.to(device)) - rating.to(device)).square().sum().item()
                for user, item, rating in test_loader
            )
        print(f"epoch {epoch}: loss {running / len(train_loader):.4f} rmse {(squared / len(test)) ** 0.5:.4f}")
    top = model.item_factors.weight.detach() @ model.user_factors.weight[0].detach()
    return {"recommended": torch.topk(top, 5).indices.tolist()}


if __name__ == "__main__":
    print(run())

"""Forecasting a time series with an LSTM over sliding windows, early stopping and the best weights kept."""

import copy

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class LSTMForecaster(nn.Module):
    def __init__(self, n_features, hidden_dim=200, num_layers=2, horizon=12, dropout=0.2):
        super().__init__()
        self.hidden_dim, self.num_layers = hidden_dim, num_layers
        self.lstm = nn.LSTM(n_features, hidden_dim, num_layers, batch_first=True, dropout=dropout)
        self.fc = nn.Linear(hidden_dim, horizon)

    def forward(self, x):
        h0 = torch.zeros(self.num_layers, x.size(0), self.hidden_dim).to(x.device)
        c0 = torch.zeros(self.num_layers, x.size(0), self.hidden_dim).to(x.device)
        out, (hn, cn) = self.lstm(x, (h0.detach(), c0.detach()))
        return self.fc(out[:, -1, :])


def create_sequences(data, lookback, horizon):
    xs, ys = [], []
    for i in range(len(data) - lookback - horizon):
        xs.append(data[i : i + lookback])
        ys.append(data[i + lookback : i + lookback + horizon, 0])
    return np.array(xs, dtype=np.float32), np.array(ys, dtype=np.float32)


def run(batch_size=64, device=None, epochs=3, patience=2):
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    t = np.linspace(0, 40, 520)
    series = np.stack([np.sin(t), np.cos(3 * t), np.random.default_rng(0).normal(size=len(t))], axis=1)
    X, Y = create_sequences((series - series.mean(0)) / series.std(0), lookback=96, horizon=12)
    split = int(0.7 * len(X))
    train = TensorDataset(torch.tensor(X[:split]), torch.tensor(Y[:split]))
    valid = TensorDataset(torch.tensor(X[split:]), torch.tensor(Y[split:]))
    train_loader = DataLoader(train, batch_size=batch_size, shuffle=True)
    valid_loader = DataLoader(valid, batch_size=batch_size)
    model = LSTMForecaster(n_features=3).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    loss_fn = nn.MSELoss()
    best_loss, best_weights, waited = float("inf"), None, 0
    for epoch in range(epochs):
        model.train()
        train_losses = []
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            train_losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            valid_loss = np.mean([loss_fn(model(x.to(device)), y.to(device)).item() for x, y in valid_loader])
        scheduler.step(valid_loss)
        print(f"epoch {epoch}: train {np.mean(train_losses):.4f} valid {valid_loss:.4f}")
        if valid_loss < best_loss:
            best_loss, best_weights, waited = valid_loss, copy.deepcopy(model.state_dict()), 0
        else:
            waited += 1
            if waited >= patience:
                break
    model.load_state_dict(best_weights)
    with torch.no_grad():
        forecast = model(torch.tensor(X[-1:]).to(device)).cpu().numpy()
    rmse = float(np.sqrt(((forecast - Y[-1:]) ** 2).mean()))
    return {"rmse": rmse}


if __name__ == "__main__":
    print(run())

"""A deep learning recommendation model: sparse embedding bags, a dense tower and their interactions."""

import numpy as np
import torch
import torch.nn as nn


class DLRM(nn.Module):
    def __init__(self, m_spa, ln_emb, ln_bot, ln_top):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, m_spa, mode="sum", sparse=True) for n in ln_emb)
        self.bot_l = self.create_mlp(ln_bot, sigmoid_layer=-1)
        self.top_l = self.create_mlp(ln_top, sigmoid_layer=len(ln_top) - 2)

    def create_mlp(self, ln, sigmoid_layer):
        layers = nn.ModuleList()
        for i in range(len(ln) - 1):
            n, m = ln[i], ln[i + 1]
            LL = nn.Linear(int(n), int(m), bias=True)
            W = np.random.normal(0.0, np.sqrt(2 / (m + n)), size=(m, n)).astype(np.float32)
            LL.weight.data = torch.tensor(W, requires_grad=True)
            layers.append(LL)
            layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        return nn.Sequential(*layers)

    def interact_features(self, x, ly):
        (batch_size, d) = x.shape
        T = torch.cat([x, *ly], dim=1).view((batch_size, -1, d))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        _, ni, nj = Z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        Zflat = Z[:, li, lj]
        return torch.cat([x, Zflat], dim=1)

    def forward(self, dense_x, lS_o, lS_i):
        x = self.bot_l(dense_x)
        ly = [self.emb_l[k](lS_i[k], lS_o[k]) for k in range(len(self.emb_l))]
        return self.top_l(self.interact_features(x, ly))


def random_batch(n, m_den, ln_emb, num_indices_per_lookup=4):
    X = torch.rand(n, m_den)
    lS_o = [torch.arange(0, n * num_indices_per_lookup, num_indices_per_lookup) for _ in ln_emb]
    lS_i = [torch.randint(size, (n * num_indices_per_lookup,)) for size in ln_emb]
    T = torch.round(torch.rand(n, 1))
    return X, lS_o, lS_i, T


def main(batch_size=2048, steps=4):
    np.random.seed(123)
    torch.manual_seed(123)
    use_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")
    print("Using {}...".format("1 GPU(s)" if use_gpu else "CPU"))

    ln_emb = [100000, 50000, 20000, 1000, 100]
    m_spa = 64
    num_fea = len(ln_emb) + 1
    ln_top = [m_spa + num_fea * (num_fea - 1) // 2, 256, 64, 1]
    dlrm = DLRM(m_spa, ln_emb, [13, 512, 256, m_spa], ln_top)
    if use_gpu:
        dlrm = dlrm.to(device)
    loss_fn = nn.BCELoss(reduction="mean")
    optimizer = torch.optim.SGD(dlrm.parameters(), lr=0.1)

    total_loss = total_samp = 0
    for j in range(steps):
        X, lS_o, lS_i, T = random_batch(batch_size, 13, ln_emb)
        lS_i = [S_i.to(device) for S_i in lS_i]
        lS_o = [S_o.to(device) for S_o in lS_o]
        Z = dlrm(X.to(device), lS_o, lS_i)
        E = loss_fn(Z, T.to(device))
        L = E.detach().cpu().numpy()
        optimizer.zero_grad()
        E.backward()
        optimizer.step()
        total_loss += L * batch_size
        total_samp += batch_size
        print(f"Finished training it {j + 1}/{steps}, loss {total_loss / total_samp:.6f}")

    with torch.no_grad():
        X, lS_o, lS_i, T = random_batch(batch_size, 13, ln_emb)
        Z_test = dlrm(X.to(device), [o.to(device) for o in lS_o], [i.to(device) for i in lS_i])
        S_test = Z_test.detach().cpu().numpy()
        A_test = np.sum((np.round(S_test, 0) == T.numpy()).astype(np.uint8))
        print(f"accuracy {A_test / batch_size * 100:3.3f} %")


if __name__ == "__main__":
    main()

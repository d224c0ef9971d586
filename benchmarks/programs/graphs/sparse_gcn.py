"""A graph convolutional network in plain PyTorch: a normalised adjacency as a sparse tensor, and torch.spmm."""

import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.modules.module import Module
from torch.nn.parameter import Parameter


class GraphConvolution(Module):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(torch.FloatTensor(in_features, out_features))
        if bias:
            self.bias = Parameter(torch.FloatTensor(out_features))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / math.sqrt(self.weight.size(1))
        self.weight.data.uniform_(-stdv, stdv)
        if self.bias is not None:
            self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        output = torch.spmm(adj, support)
        return output + self.bias if self.bias is not None else output


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, adj)
        return F.log_softmax(x, dim=1)


def accuracy(output, labels):
    preds = output.max(1)[1].type_as(labels)
    correct = preds.eq(labels).double()
    return correct.sum() / len(labels)


def load_data(nodes=3000, nfeat=1000, classes=7, edges=12000):
    rng = np.random.default_rng(42)
    rows = np.concatenate([rng.integers(nodes, size=edges), np.arange(nodes)])
    cols = np.concatenate([rng.integers(nodes, size=edges), np.arange(nodes)])
    degree = np.bincount(rows, minlength=nodes)
    indices = torch.from_numpy(np.vstack((rows, cols)).astype(np.int64))
    values = torch.from_numpy((1.0 / degree[rows]).astype(np.float32))
    adj = torch.sparse_coo_tensor(indices, values, torch.Size((nodes, nodes))).coalesce()
    features = torch.FloatTensor(rng.random((nodes, nfeat)).astype(np.float32))
    labels = torch.LongTensor(rng.integers(classes, size=nodes))
    return adj, features, labels, torch.arange(140), torch.arange(200, 500), torch.arange(500, 1500)


def main(epochs=4):
    torch.manual_seed(42)
    adj, features, labels, idx_train, idx_val, idx_test = load_data()
    model = GCN(nfeat=features.shape[1], nhid=512, nclass=labels.max().item() + 1, dropout=0.5)
    optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    if torch.cuda.is_available():
        model.cuda()
        features = features.cuda()
        adj = adj.cuda()
        labels = labels.cuda()
        idx_train = idx_train.cuda()
        idx_val = idx_val.cuda()
        idx_test = idx_test.cuda()
    for epoch in range(epochs):
        t = time.time()
        model.train()
        optimizer.zero_grad()
        output = model(features, adj)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        acc_train = accuracy(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        model.eval()
        output = model(features, adj)
        loss_val = F.nll_loss(output[idx_val], labels[idx_val])
        acc_val = accuracy(output[idx_val], labels[idx_val])
        print(
            f"Epoch: {epoch + 1:04d} loss_train: {loss_train.item():.4f} acc_train: {acc_train.item():.4f} "
            f"loss_val: {loss_val.item():.4f} acc_val: {acc_val.item():.4f} time: {time.time() - t:.4f}s"
        )
    model.eval()
    output = model(features, adj)
    print(f"Test set results: accuracy= {accuracy(output[idx_test], labels[idx_test]).item():.4f}")


if __name__ == "__main__":
    main()

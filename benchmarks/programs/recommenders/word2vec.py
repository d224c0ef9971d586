"""Skip-gram with negative sampling: sparse embeddings, a linear decay of the learning rate, nearest neighbours."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn import init
from torch.utils.data import DataLoader, Dataset


class Word2vecDataset(Dataset):
    def __init__(self, words, length, negatives=5):
        rng = np.random.default_rng(0)
        self.u = rng.integers(words, size=length)
        self.v = rng.integers(words, size=length)
        self.neg = rng.integers(words, size=(length, negatives))

    def __len__(self):
        return len(self.u)

    def __getitem__(self, idx):
        return self.u[idx], self.v[idx], self.neg[idx]

    @staticmethod
    def collate(batches):
        all_u, all_v, all_neg_v = zip(*batches)
        return (
            torch.LongTensor(np.array(all_u)),
            torch.LongTensor(np.array(all_v)),
            torch.LongTensor(np.array(all_neg_v)),
        )


class SkipGramModel(nn.Module):
    def __init__(self, emb_size, emb_dimension):
        super().__init__()
        self.u_embeddings = nn.Embedding(emb_size, emb_dimension, sparse=True)
        self.v_embeddings = nn.Embedding(emb_size, emb_dimension, sparse=True)
        initrange = 1.0 / emb_dimension
        init.uniform_(self.u_embeddings.weight.data, -initrange, initrange)
        init.constant_(self.v_embeddings.weight.data, 0)

    def forward(self, pos_u, pos_v, neg_v):
        emb_u = self.u_embeddings(pos_u)
        emb_v = self.v_embeddings(pos_v)
        emb_neg_v = self.v_embeddings(neg_v)
        score = torch.sum(torch.mul(emb_u, emb_v), dim=1)
        score = torch.clamp(score, max=10, min=-10)
        score = -F.logsigmoid(score)
        neg_score = torch.bmm(emb_neg_v, emb_u.unsqueeze(2)).squeeze()
        neg_score = torch.clamp(neg_score, max=10, min=-10)
        neg_score = -torch.sum(F.logsigmoid(-neg_score), dim=1)
        return torch.mean(score + neg_score)


def main(words=40000, emb_dimension=100, batch_size=4096, iterations=1, initial_lr=0.001):
    torch.manual_seed(0)
    dataset = Word2vecDataset(words, 4 * batch_size)
    dataloader = DataLoader(dataset, batch_size=batch_size, shuffle=False, num_workers=0, collate_fn=dataset.collate)
    skip_gram_model = SkipGramModel(words, emb_dimension)
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    if use_cuda:
        skip_gram_model.cuda()
    for iteration in range(iterations):
        print("Iteration: " + str(iteration + 1))
        optimizer = optim.SparseAdam(list(skip_gram_model.parameters()), lr=initial_lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(dataloader))
        running_loss = 0.0
        for i, sample_batched in enumerate(dataloader):
            pos_u = sample_batched[0].to(device)
            pos_v = sample_batched[1].to(device)
            neg_v = sample_batched[2].to(device)
            optimizer.zero_grad()
            loss = skip_gram_model.forward(pos_u, pos_v, neg_v)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running_loss = running_loss * 0.9 + loss.item() * 0.1
            if i > 0 and i % 2 == 0:
                print(" Loss: " + str(running_loss))
    embeddings = skip_gram_model.u_embeddings.weight.data
    normed = F.normalize(embeddings, dim=1)
    nearest = torch.topk(normed @ normed[7], 5)
    print(list(zip(nearest.indices.tolist(), [round(value, 3) for value in nearest.values.tolist()])))


if __name__ == "__main__":
    main()

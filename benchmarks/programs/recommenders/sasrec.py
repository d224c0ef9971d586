"""Self-attentive sequential recommendation: padded histories, sampled negatives, NDCG and hits of an evaluation."""

import math

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class PointWiseFeedForward(torch.nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.conv1 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = torch.nn.Dropout(p=dropout_rate)
        self.relu = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = torch.nn.Dropout(p=dropout_rate)

    def forward(self, inputs):
        outputs = self.dropout2(self.conv2(self.relu(self.dropout1(self.conv1(inputs.transpose(-1, -2))))))
        return outputs.transpose(-1, -2) + inputs


class SASRec(torch.nn.Module):
    def __init__(self, item_num, hidden_units, maxlen, num_blocks, num_heads, dropout_rate, device):
        super().__init__()
        self.dev = device
        self.item_emb = torch.nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = torch.nn.Embedding(maxlen + 1, hidden_units, padding_idx=0)
        self.emb_dropout = torch.nn.Dropout(p=dropout_rate)
        self.attention_layernorms = torch.nn.ModuleList()
        self.attention_layers = torch.nn.ModuleList()
        self.forward_layernorms = torch.nn.ModuleList()
        self.forward_layers = torch.nn.ModuleList()
        self.last_layernorm = torch.nn.LayerNorm(hidden_units, eps=1e-8)
        for _ in range(num_blocks):
            self.attention_layernorms.append(torch.nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(torch.nn.MultiheadAttention(hidden_units, num_heads, dropout_rate))
            self.forward_layernorms.append(torch.nn.LayerNorm(hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(hidden_units, dropout_rate))

    def log2feats(self, log_seqs):
        seqs = self.item_emb(torch.LongTensor(log_seqs).to(self.dev))
        seqs *= self.item_emb.embedding_dim**0.5
        poss = np.tile(np.arange(1, log_seqs.shape[1] + 1), [log_seqs.shape[0], 1])
        poss *= log_seqs != 0
        seqs += self.pos_emb(torch.LongTensor(poss).to(self.dev))
        seqs = self.emb_dropout(seqs)
        tl = seqs.shape[1]
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=self.dev))
        for i in range(len(self.attention_layers)):
            seqs = torch.transpose(seqs, 0, 1)
            x = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](x, x, x, attn_mask=attention_mask)
            seqs = seqs + mha_outputs
            seqs = torch.transpose(seqs, 0, 1)
            seqs = seqs + self.forward_layers[i](self.forward_layernorms[i](seqs))
        return self.last_layernorm(seqs)

    def forward(self, log_seqs, pos_seqs, neg_seqs):
        log_feats = self.log2feats(log_seqs)
        pos_embs = self.item_emb(torch.LongTensor(pos_seqs).to(self.dev))
        neg_embs = self.item_emb(torch.LongTensor(neg_seqs).to(self.dev))
        return (log_feats * pos_embs).sum(dim=-1), (log_feats * neg_embs).sum(dim=-1)

    def predict(self, log_seqs, item_indices):
        final_feat = self.log2feats(log_seqs)[:, -1, :]
        item_embs = self.item_emb(torch.LongTensor(item_indices).to(self.dev))
        return item_embs.matmul(final_feat.unsqueeze(-1)).squeeze(-1)


class Histories(Dataset):
    def __init__(self, users, items, maxlen):
        self.users, self.items, self.maxlen = users, items, maxlen

    def __len__(self):
        return self.users

    def __getitem__(self, user):
        rng = np.random.default_rng(user)
        length = rng.integers(5, self.maxlen)
        seq, pos, neg = (np.zeros(self.maxlen, dtype=np.int64) for _ in range(3))
        history = rng.integers(1, self.items + 1, length + 1)
        seq[-length:], pos[-length:], neg[-length:] = history[:-1], history[1:], rng.integers(1, self.items + 1, length)
        return user, seq, pos, neg


def main(batch_size=64, maxlen=100, itemnum=20000, num_epochs=1):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Histories(3 * batch_size, itemnum, maxlen), batch_size=batch_size, shuffle=True)
    model = SASRec(itemnum, 64, maxlen, num_blocks=2, num_heads=1, dropout_rate=0.2, device=device).to(device)
    for _, param in model.named_parameters():
        if param.dim() > 1:
            torch.nn.init.xavier_normal_(param.data)
    model.pos_emb.weight.data[0, :] = 0
    model.item_emb.weight.data[0, :] = 0
    model.train()
    bce_criterion = torch.nn.BCEWithLogitsLoss()
    adam_optimizer = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98))
    for epoch in range(1, num_epochs + 1):
        for step, (_, seq, pos, neg) in enumerate(loader):
            seq, pos, neg = seq.numpy(), pos.numpy(), neg.numpy()
            pos_logits, neg_logits = model(seq, pos, neg)
            pos_labels = torch.ones(pos_logits.shape, device=device)
            neg_labels = torch.zeros(neg_logits.shape, device=device)
            adam_optimizer.zero_grad()
            indices = np.where(pos != 0)
            loss = bce_criterion(pos_logits[indices], pos_labels[indices])
            loss += bce_criterion(neg_logits[indices], neg_labels[indices])
            loss.backward()
            adam_optimizer.step()
            print(f"loss in epoch {epoch} iteration {step}: {loss.item()}")
        model.eval()
        ndcg = hits = 0.0
        with torch.no_grad():
            for user in range(5):
                _, seq, pos, _ = loader.dataset[user]
                candidates = [pos[-1], *np.random.default_rng(user).integers(1, itemnum + 1, 100)]
                predictions = -model.predict(seq[None, :], np.array(candidates))
                rank = predictions[0].argsort().argsort()[0].item()
                if rank < 10:
                    ndcg += 1 / math.log2(rank + 2)
                    hits += 1
        model.train()
        print(f"epoch:{epoch}, valid (NDCG@10: {ndcg / 5:.4f}, HR@10: {hits / 5:.4f})")
    if device == "cuda":
        print(f"peak memory: {torch.cuda.max_memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()

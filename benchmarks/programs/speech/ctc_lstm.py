"""Speech recognition with convolutions, a bidirectional LSTM and CTC, on made spectrograms, with a greedy decoder."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

ALPHABET = "_ abcdefghijklmnopqrstuvwxyz'"


class Utterances(Dataset):
    def __init__(self, length, n_mels=80):
        self.length, self.n_mels = length, n_mels

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = random.Random(index)
        frames = rng.randint(180, 240)
        spectrogram = torch.randn(frames, self.n_mels)
        text = torch.tensor([rng.randrange(1, len(ALPHABET)) for _ in range(rng.randint(15, 30))])
        return spectrogram, text


def collate(batch):
    batch = sorted(batch, key=lambda pair: len(pair[0]), reverse=True)
    spectrograms = pad_sequence([pair[0] for pair in batch], batch_first=True).unsqueeze(1).transpose(2, 3)
    labels = pad_sequence([pair[1] for pair in batch], batch_first=True)
    input_lengths = [len(pair[0]) // 2 for pair in batch]
    label_lengths = [len(pair[1]) for pair in batch]
    return spectrograms, labels, input_lengths, label_lengths


class SpeechRecognitionModel(nn.Module):
    def __init__(self, n_mels=80, hidden=256, layers=3, n_class=len(ALPHABET), dropout=0.1):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(32, 32, 3, padding=1), nn.GELU()
        )
        self.fc = nn.Linear(32 * n_mels // 2, hidden)
        self.rnn = nn.LSTM(hidden, hidden, num_layers=layers, batch_first=True, bidirectional=True, dropout=dropout)
        self.classifier = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, n_class)
        )

    def forward(self, x, lengths):
        x = self.conv(x)
        batch, channels, feature, time = x.shape
        x = x.reshape(batch, channels * feature, time).transpose(1, 2)
        x = self.fc(x)
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        output, _ = self.rnn(packed)
        output, _ = pad_packed_sequence(output, batch_first=True)
        return self.classifier(output)


def greedy_decode(output, lengths):
    decodes = []
    for args, length in zip(torch.argmax(output, dim=2), lengths):
        decode = []
        for j, index in enumerate(args[:length]):
            if index != 0:
                if j != 0 and index == args[j - 1]:
                    continue
                decode.append(index.item())
        decodes.append("".join(ALPHABET[i] for i in decode))
    return decodes


def main(epochs=1, batch_size=8):
    torch.manual_seed(7)
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    loader = DataLoader(Utterances(3 * batch_size), batch_size=batch_size, shuffle=True, collate_fn=collate)
    model = SpeechRecognitionModel().to(device)
    print("Num Model Parameters", sum(param.nelement() for param in model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    criterion = nn.CTCLoss(blank=0, zero_infinity=True).to(device)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5e-4, steps_per_epoch=len(loader), epochs=epochs, anneal_strategy="linear"
    )
    for epoch in range(epochs):
        model.train()
        for batch_idx, (spectrograms, labels, input_lengths, label_lengths) in enumerate(loader):
            spectrograms, labels = spectrograms.to(device), labels.to(device)
            optimizer.zero_grad()
            output = model(spectrograms, input_lengths)
            output = F.log_softmax(output, dim=2).transpose(0, 1)
            loss = criterion(output, labels, input_lengths, label_lengths)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            print(f"Train Epoch: {epoch} [{batch_idx}/{len(loader)}]\tLoss: {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            spectrograms, labels, input_lengths, label_lengths = next(iter(loader))
            output = F.log_softmax(model(spectrograms.to(device), input_lengths), dim=2)
            print(greedy_decode(output.cpu(), input_lengths)[0][:40])


if __name__ == "__main__":
    main()

"""A V-Net from scratch for volumes: residual stages, PReLU, a soft Dice loss written out, and per-volume evaluation."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def stage(channels, convolutions):
    layers = []
    for _ in range(convolutions):
        layers += [nn.Conv3d(channels, channels, 5, padding=2), nn.InstanceNorm3d(channels), nn.PReLU(channels)]
    return nn.Sequential(*layers)


class VNet(nn.Module):
    def __init__(self, classes=2, base=8):
        super().__init__()
        self.first = nn.Conv3d(1, base, 5, padding=2)
        self.stages = nn.ModuleList([stage(base, 1), stage(2 * base, 2), stage(4 * base, 2)])
        self.downs = nn.ModuleList([nn.Conv3d(base * 2**i, base * 2 ** (i + 1), 2, stride=2) for i in range(2)])
        self.ups = nn.ModuleList([nn.ConvTranspose3d(base * 2 ** (i + 1), base * 2**i, 2, stride=2) for i in range(2)])
        self.merges = nn.ModuleList([stage(base * 2**i, 1) for i in range(2)])
        self.dropout = nn.Dropout3d(0.2)
        self.head = nn.Conv3d(base, classes, 1)

    def forward(self, x):
        x = self.first(x)
        skips = []
        for i, block in enumerate(self.stages):
            x = block(x) + x
            if i < len(self.downs):
                skips.append(x)
                x = F.relu(self.downs[i](x), inplace=True)
        x = self.dropout(x)
        for i in reversed(range(len(self.ups))):
            x = self.ups[i](x) + skips[i]
            x = self.merges[i](x) + x
        return self.head(x)


class DiceLoss(nn.Module):
    def forward(self, logits, target):
        probabilities = logits.softmax(dim=1)
        onehot = F.one_hot(target, logits.shape[1]).movedim(-1, 1).to(probabilities.dtype)
        dims = (0, 2, 3, 4)
        intersection = (probabilities * onehot).sum(dims)
        cardinality = (probabilities + onehot).sum(dims)
        return 1 - (2 * intersection / (cardinality + 1e-6)).mean()


def run(batch_size=1, device=None, side=48, steps=3):
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    model = VNet().to(device)
    criterion = DiceLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=1e-5)
    best_dice = 0.0
    for step in range(steps):
        model.train()
        volume = torch.randn(batch_size, 1, side, side, side, device=device)
        label = (volume.squeeze(1) > 0.5).long()
        optimizer.zero_grad()
        loss = criterion(model(volume), label)
        if torch.isnan(loss):
            raise RuntimeError("the loss is not a number")
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            predicted = model(volume).argmax(dim=1)
            overlap = ((predicted == 1) & (label == 1)).sum()
            dice = 2 * overlap / ((predicted == 1).sum() + (label == 1).sum()).clamp(min=1)
        if dice > best_dice:
            best_dice = dice.item()
        print(f"step {step}: loss {loss.item():.4f} dice {float(dice):.4f} best {best_dice:.4f}")
    return {"dice": best_dice}


if __name__ == "__main__":
    print(run())

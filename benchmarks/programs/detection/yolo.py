"""A YOLO from scratch: boolean masks choose the cells with objects, and evaluation decodes boxes and suppresses them."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
S, C, SIDE = 13, 5, 208
ANCHORS = torch.tensor([[0.28, 0.22], [0.38, 0.48], [0.9, 0.78]])


def iou_width_height(boxes1, boxes2):
    intersection = torch.min(boxes1[..., 0], boxes2[..., 0]) * torch.min(boxes1[..., 1], boxes2[..., 1])
    union = boxes1[..., 0] * boxes1[..., 1] + boxes2[..., 0] * boxes2[..., 1] - intersection
    return intersection / union


def intersection_over_union(boxes_preds, boxes_labels):
    box1_1, box1_2 = boxes_preds[..., :2] - boxes_preds[..., 2:4] / 2, boxes_preds[..., :2] + boxes_preds[..., 2:4] / 2
    box2_1 = boxes_labels[..., :2] - boxes_labels[..., 2:4] / 2
    box2_2 = boxes_labels[..., :2] + boxes_labels[..., 2:4] / 2
    sides = (torch.min(box1_2, box2_2) - torch.max(box1_1, box2_1)).clamp(0)
    intersection = sides[..., 0:1] * sides[..., 1:2]
    area1 = abs(boxes_preds[..., 2:3] * boxes_preds[..., 3:4])
    area2 = abs(boxes_labels[..., 2:3] * boxes_labels[..., 3:4])
    return intersection / (area1 + area2 - intersection + 1e-6)


class Boxes(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, SIDE, SIDE, generator=generator)
        target = torch.zeros(len(ANCHORS), S, S, 6)
        for _ in range(4):
            x, y, w, h = (torch.rand(4, generator=generator) * 0.5 + 0.2).tolist()
            anchor = iou_width_height(torch.tensor([w, h]), ANCHORS).argmax().item()
            i, j = int(S * y), int(S * x)
            target[anchor, i, j, 0] = 1
            target[anchor, i, j, 1:5] = torch.tensor([S * x - j, S * y - i, w * S, h * S])
            target[anchor, i, j, 5] = int(torch.randint(C, (1,), generator=generator))
        return image, target


class CNNBlock(nn.Module):
    def __init__(self, in_channels, out_channels, **kwargs):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, bias=False, **kwargs)
        self.bn = nn.BatchNorm2d(out_channels)
        self.leaky = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.leaky(self.bn(self.conv(x)))


class ResidualBlock(nn.Module):
    def __init__(self, channels, num_repeats=1):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                CNNBlock(channels, channels // 2, kernel_size=1),
                CNNBlock(channels // 2, channels, kernel_size=3, padding=1),
            )
            for _ in range(num_repeats)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class YOLO(nn.Module):
    def __init__(self, num_classes=C):
        super().__init__()
        self.num_classes = num_classes
        layers, channels = [CNNBlock(3, 16, kernel_size=3, padding=1)], 16
        for repeats in (1, 1, 2, 2):
            layers += [
                CNNBlock(channels, 2 * channels, kernel_size=3, stride=2, padding=1),
                ResidualBlock(2 * channels, repeats),
            ]
            channels *= 2
        self.layers = nn.Sequential(*layers)
        self.pred = nn.Sequential(
            CNNBlock(channels, 2 * channels, kernel_size=3, padding=1),
            nn.Conv2d(2 * channels, (num_classes + 5) * 3, kernel_size=1),
        )

    def forward(self, x):
        x = self.pred(self.layers(x))
        return x.reshape(x.shape[0], 3, self.num_classes + 5, x.shape[2], x.shape[3]).permute(0, 1, 3, 4, 2)


class YoloLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss()
        self.bce = nn.BCEWithLogitsLoss()
        self.entropy = nn.CrossEntropyLoss()
        self.sigmoid = nn.Sigmoid()

    def forward(self, predictions, target, anchors):
        obj = target[..., 0] == 1
        noobj = target[..., 0] == 0
        no_object_loss = self.bce(predictions[..., 0:1][noobj], target[..., 0:1][noobj])
        anchors = anchors.reshape(1, 3, 1, 1, 2)
        box_preds = torch.cat([self.sigmoid(predictions[..., 1:3]), torch.exp(predictions[..., 3:5]) * anchors], dim=-1)
        ious = intersection_over_union(box_preds[obj], target[..., 1:5][obj]).detach()
        object_loss = self.mse(self.sigmoid(predictions[..., 0:1][obj]), ious * target[..., 0:1][obj])
        predictions[..., 1:3] = self.sigmoid(predictions[..., 1:3])
        target[..., 3:5] = torch.log(1e-16 + target[..., 3:5] / anchors)
        box_loss = self.mse(predictions[..., 1:5][obj], target[..., 1:5][obj])
        class_loss = self.entropy(predictions[..., 5:][obj], target[..., 5][obj].long())
        return 10 * box_loss + object_loss + 10 * no_object_loss + class_loss


def cells_to_bboxes(predictions, anchors):
    batch_size = predictions.shape[0]
    anchors = anchors.reshape(1, 3, 1, 1, 2)
    box_predictions = predictions[..., 1:5].clone()
    box_predictions[..., 0:2] = torch.sigmoid(box_predictions[..., 0:2])
    box_predictions[..., 2:] = torch.exp(box_predictions[..., 2:]) * anchors
    scores = torch.sigmoid(predictions[..., 0:1])
    best_class = torch.argmax(predictions[..., 5:], dim=-1).unsqueeze(-1)
    cell_indices = torch.arange(S).repeat(batch_size, 3, S, 1).unsqueeze(-1).to(predictions.device)
    x = 1 / S * (box_predictions[..., 0:1] + cell_indices)
    y = 1 / S * (box_predictions[..., 1:2] + cell_indices.permute(0, 1, 3, 2, 4))
    w_h = 1 / S * box_predictions[..., 2:4]
    return torch.cat((best_class, scores, x, y, w_h), dim=-1).reshape(batch_size, 3 * S * S, 6).tolist()


def non_max_suppression(bboxes, iou_threshold, threshold):
    bboxes = sorted([box for box in bboxes if box[1] > threshold], key=lambda x: x[1], reverse=True)[:50]
    bboxes_after_nms = []
    while bboxes:
        chosen_box = bboxes.pop(0)
        bboxes = [
            box
            for box in bboxes
            if box[0] != chosen_box[0]
            or intersection_over_union(torch.tensor(chosen_box[2:]), torch.tensor(box[2:])) < iou_threshold
        ]
        bboxes_after_nms.append(chosen_box)
    return bboxes_after_nms


def main(epochs=2):
    torch.manual_seed(0)
    model = YOLO().to(DEVICE)
    optimizer = optim.Adam(model.parameters(), lr=1e-5, weight_decay=1e-4)
    loss_fn = YoloLoss()
    scaler = torch.amp.GradScaler(enabled=DEVICE == "cuda")
    train_loader = DataLoader(Boxes(16), batch_size=8, num_workers=1, pin_memory=True, shuffle=True, drop_last=True)
    scaled_anchors = (ANCHORS * S).to(DEVICE)
    for epoch in range(epochs):
        loop = tqdm(train_loader, leave=True)
        losses = []
        for x, y in loop:
            x, y = x.to(DEVICE), y.to(DEVICE)
            with torch.amp.autocast(DEVICE, enabled=DEVICE == "cuda"):
                loss = loss_fn(model(x).float(), y, scaled_anchors)
            losses.append(loss.item())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            loop.set_postfix(loss=sum(losses) / len(losses))

    model.eval()
    x, y = next(iter(train_loader))
    with torch.no_grad():
        out = model(x.to(DEVICE))
        kept = [non_max_suppression(boxes, 0.45, 0.5) for boxes in cells_to_bboxes(out, scaled_anchors)]
        obj = y[..., 0] == 1
        correct = torch.sum(torch.argmax(out[..., 5:].cpu()[obj], dim=-1) == y[..., 5][obj])
    print(f"boxes: {sum(map(len, kept))}, class accuracy {correct / (obj.sum() + 1e-16) * 100:.1f} %")


if __name__ == "__main__":
    main()

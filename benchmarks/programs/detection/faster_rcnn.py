"""Fine-tuning torchvision's Faster R-CNN, with the loops of its reference scripts, and evaluation with NMS."""

import math
import sys

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.ops import box_iou, nms


class Shapes(Dataset):
    """Rectangles on noise, with their boxes."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 240, 320, generator=generator)
        count = 2 + index % 3
        corners = torch.randint(0, 120, (count, 2), generator=generator)
        sizes = torch.randint(30, 100, (count, 2), generator=generator)
        boxes = torch.cat([corners, corners + sizes], dim=1).float()
        for x1, y1, x2, y2 in boxes.long().tolist():
            image[:, y1:y2, x1:x2] = 1.0
        labels = torch.randint(1, 3, (count,), generator=generator)
        return image, {"boxes": boxes, "labels": labels, "image_id": index}


def collate_fn(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, data_loader, device, epoch):
    model.train()
    lr_scheduler = None
    if epoch == 0:
        warmup_iters = min(1000, len(data_loader) - 1)
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=warmup_iters)
    for images, targets in data_loader:
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            print({k: v.item() for k, v in loss_dict.items()})
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
        print(f"Epoch [{epoch}] loss: {loss_value:.4f}  lr: {optimizer.param_groups[0]['lr']:.6f}")


@torch.inference_mode()
def evaluate(model, data_loader, device):
    cpu_device = torch.device("cpu")
    model.eval()
    found = total = 0
    for images, targets in data_loader:
        images = [img.to(device) for img in images]
        outputs = [{k: v.to(cpu_device) for k, v in t.items()} for t in model(images)]
        for output, target in zip(outputs, targets):
            keep = nms(output["boxes"], output["scores"], 0.3)
            boxes = output["boxes"][keep]
            total += len(target["boxes"])
            if len(boxes):
                found += (box_iou(target["boxes"], boxes).max(dim=1).values > 0.5).sum().item()
    print(f"recall at IoU 0.5: {found / total:.3f}")


def main(num_epochs=1):
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(1)
    data_loader = DataLoader(Shapes(4), batch_size=2, shuffle=True, num_workers=1, collate_fn=collate_fn)
    data_loader_test = DataLoader(Shapes(2), batch_size=1, shuffle=False, num_workers=1, collate_fn=collate_fn)

    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None)
    in_features = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(in_features, 3)
    model.to(device)

    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    for epoch in range(num_epochs):
        train_one_epoch(model, optimizer, data_loader, device, epoch)
        lr_scheduler.step()
        evaluate(model, data_loader_test, device)
    print("That's it!")


if __name__ == "__main__":
    main()

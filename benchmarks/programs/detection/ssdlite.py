"""Training torchvision's SSDLite with mixed precision, and inference whose boxes are drawn."""

import torch
from torch.utils.data import DataLoader
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.utils import draw_bounding_boxes


def make_sample(index):
    generator = torch.Generator().manual_seed(index)
    image = torch.rand(3, 320, 320, generator=generator)
    top_left = torch.randint(0, 160, (3, 2), generator=generator).float()
    boxes = torch.cat([top_left, top_left + 40 + 60 * torch.rand(3, 2, generator=generator)], dim=1)
    return image, {"boxes": boxes, "labels": torch.tensor([1, 2, 1])}


def run(batch_size=4, device=None):
    device = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    data = [make_sample(i) for i in range(2 * batch_size)]
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, collate_fn=lambda samples: tuple(zip(*samples)))
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=4e-5, nesterov=True)
    scaler = torch.amp.GradScaler("cuda") if device.type == "cuda" else None
    model.train()
    for step, (images, targets) in enumerate(loader):
        images = [image.to(device) for image in images]
        targets = [{key: value.to(device) for key, value in target.items()} for target in targets]
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            losses = model(images, targets)
            loss = sum(losses.values())
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        print(f"step {step}: " + ", ".join(f"{name} {value.item():.3f}" for name, value in losses.items()))
    model.eval()
    with torch.inference_mode():
        image = data[0][0]
        prediction = model([image.to(device)])[0]
    chosen = prediction["scores"] > 0.3
    boxes = prediction["boxes"][chosen].cpu()
    picture = draw_bounding_boxes((255 * image).to(torch.uint8), boxes) if len(boxes) else image
    return {"boxes": len(boxes), "mean": picture.float().mean().item()}


if __name__ == "__main__":
    print(run())

"""torchvision's reference for segmentation: a DeepLab with an auxiliary loss, and a confusion matrix by bincount."""

import torch
import torch.utils.data
import torchvision
from torch import nn


class ConfusionMatrix:
    def __init__(self, num_classes):
        self.num_classes = num_classes
        self.mat = None

    def update(self, a, b):
        n = self.num_classes
        if self.mat is None:
            self.mat = torch.zeros((n, n), dtype=torch.int64, device=a.device)
        with torch.inference_mode():
            k = (a >= 0) & (a < n)
            inds = n * a[k].to(torch.int64) + b[k]
            self.mat += torch.bincount(inds, minlength=n**2).reshape(n, n)

    def compute(self):
        h = self.mat.float()
        acc_global = torch.diag(h).sum() / h.sum()
        acc = torch.diag(h) / h.sum(1)
        iu = torch.diag(h) / (h.sum(1) + h.sum(0) - torch.diag(h))
        return acc_global, acc, iu

    def __str__(self):
        acc_global, acc, iu = self.compute()
        return "global correct: {:.1f}\naverage row correct: {}\nIoU: {}\nmean IoU: {:.1f}".format(
            acc_global.item() * 100,
            [f"{i:.1f}" for i in (acc * 100).tolist()],
            [f"{i:.1f}" for i in (iu * 100).tolist()],
            iu.mean().item() * 100,
        )


def criterion(inputs, target):
    losses = {}
    for name, x in inputs.items():
        losses[name] = nn.functional.cross_entropy(x, target, ignore_index=255)
    if len(losses) == 1:
        return losses["out"]
    return losses["out"] + 0.5 * losses["aux"]


def collate_fn(batch):
    images, targets = list(zip(*batch))
    max_size = tuple(max(s) for s in zip(*[img.shape for img in images]))
    batched_imgs = images[0].new(*(len(images), *max_size)).fill_(0)
    batched_targets = targets[0].new(*(len(targets), *max_size[1:])).fill_(255)
    for img, pad_img in zip(images, batched_imgs):
        pad_img[..., : img.shape[-2], : img.shape[-1]].copy_(img)
    for img, pad_img in zip(targets, batched_targets):
        pad_img[..., : img.shape[-2], : img.shape[-1]].copy_(img)
    return batched_imgs, batched_targets


def evaluate(model, data_loader, device, num_classes):
    model.eval()
    confmat = ConfusionMatrix(num_classes)
    num_processed_samples = 0
    with torch.inference_mode():
        for image, target in data_loader:
            image, target = image.to(device), target.to(device)
            output = model(image)["out"]
            confmat.update(target.flatten(), output.argmax(1).flatten())
            num_processed_samples += image.shape[0]
    return confmat


def train_one_epoch(model, optimizer, data_loader, lr_scheduler, device, epoch, scaler=None):
    model.train()
    for image, target in data_loader:
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        lr_scheduler.step()
        print(f"Epoch: [{epoch}] loss: {loss.item():.4f} lr: {optimizer.param_groups[0]['lr']:.5f}")


def main(epochs=1, batch_size=4, num_classes=21):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    sizes = [(160, 192), (176, 160), (160, 160), (192, 176)] * 2
    dataset = [(torch.randn(3, h, w), torch.randint(0, num_classes, (h, w))) for h, w in sizes]
    data_loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch_size, num_workers=1, collate_fn=collate_fn, drop_last=True
    )
    data_loader_test = torch.utils.data.DataLoader(dataset[:2], batch_size=1, num_workers=1, collate_fn=collate_fn)
    model = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=num_classes, aux_loss=True
    )
    model.to(device)
    params_to_optimize = [
        {"params": [p for p in model.backbone.parameters() if p.requires_grad]},
        {"params": [p for p in model.classifier.parameters() if p.requires_grad]},
        {"params": [p for p in model.aux_classifier.parameters() if p.requires_grad], "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(params_to_optimize, lr=0.01, momentum=0.9, weight_decay=1e-4)
    iters_per_epoch = len(data_loader)
    main_lr_scheduler = torch.optim.lr_scheduler.PolynomialLR(
        optimizer, total_iters=iters_per_epoch * epochs, power=0.9
    )
    for epoch in range(epochs):
        train_one_epoch(model, optimizer, data_loader, main_lr_scheduler, device, epoch)
        confmat = evaluate(model, data_loader_test, device, num_classes=num_classes)
        print(confmat)


if __name__ == "__main__":
    main()

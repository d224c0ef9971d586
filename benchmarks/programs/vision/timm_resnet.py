"""Training a timm ResNet with timm's own loss, Mixup, optimizer, scheduler, scaler and EMA, as its train.py does."""

import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy
from torch.utils.data import DataLoader, Dataset


class FakePictures(Dataset):
    def __init__(self, length, side=96, classes=100):
        self.length, self.side, self.classes = length, side, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        picture = torch.randn(3, self.side, self.side, generator=generator)
        return picture, int(torch.randint(self.classes, (1,), generator=generator))


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, device, amp_autocast, loss_scaler, mixup_fn, model_ema):
    second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
    batch_time_m = AverageMeter()
    losses_m = AverageMeter()
    model.train()
    end = time.time()
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(device, non_blocking=True), target.to(device, non_blocking=True)
        input, target = mixup_fn(input, target)
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        losses_m.update(loss.item(), input.size(0))
        optimizer.zero_grad()
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(), create_graph=second_order)
        else:
            loss.backward(create_graph=second_order)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model_ema.update(model, step=batch_idx)
        if device.type == "cuda":
            torch.cuda.synchronize()
        batch_time_m.update(time.time() - end)
        lr = sum(group["lr"] for group in optimizer.param_groups) / len(optimizer.param_groups)
        print(
            f"Train: {epoch} [{batch_idx:>4d}/{len(loader)}]  Loss: {losses_m.val:#.3g} ({losses_m.avg:#.3g})  "
            f"Time: {batch_time_m.val:.3f}s  LR: {lr:.3e}"
        )
        end = time.time()
    return OrderedDict([("loss", losses_m.avg)])


@torch.no_grad()
def validate(model, loader, loss_fn, device, amp_autocast):
    losses_m, top1_m, top5_m = AverageMeter(), AverageMeter(), AverageMeter()
    model.eval()
    for input, target in loader:
        input, target = input.to(device), target.to(device)
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses_m.update(loss.item(), input.size(0))
        top1_m.update(acc1.item(), output.size(0))
        top5_m.update(acc5.item(), output.size(0))
    print(f"Test: Loss: {losses_m.avg:.3f}  Acc@1: {top1_m.avg:.3f}  Acc@5: {top5_m.avg:.3f}")
    return OrderedDict([("loss", losses_m.avg), ("top1", top1_m.avg), ("top5", top5_m.avg)])


def main(batch_size=16, epochs=2):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(42)
    model = timm.create_model("resnet18", pretrained=False, num_classes=100, drop_path_rate=0.05)
    model.to(device)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    use_amp = device.type == "cuda"
    amp_autocast = partial(torch.autocast, device_type=device.type, dtype=torch.float16) if use_amp else suppress
    loss_scaler = NativeScaler(device=device.type) if use_amp else None
    model_ema = ModelEmaV3(model, decay=0.999)
    scheduler = CosineLRScheduler(optimizer, t_initial=epochs, warmup_t=1, warmup_lr_init=1e-5)

    mixup_fn = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=100)
    loader_train = DataLoader(FakePictures(2 * batch_size), batch_size, shuffle=True, drop_last=True, num_workers=2)
    loader_eval = DataLoader(FakePictures(2 * batch_size), 2 * batch_size, num_workers=2)

    best_metric = None
    for epoch in range(epochs):
        train_metrics = train_one_epoch(
            epoch,
            model,
            loader_train,
            optimizer,
            SoftTargetCrossEntropy().to(device),
            device,
            amp_autocast,
            loss_scaler,
            mixup_fn,
            model_ema,
        )
        eval_metrics = validate(model_ema, loader_eval, torch.nn.CrossEntropyLoss().to(device), device, amp_autocast)
        if best_metric is None or eval_metrics["top1"] > best_metric:
            best_metric = eval_metrics["top1"]
        scheduler.step(epoch + 1, eval_metrics["top1"])
    print(f"*** Best metric: {best_metric}")
    return train_metrics


if __name__ == "__main__":
    main()

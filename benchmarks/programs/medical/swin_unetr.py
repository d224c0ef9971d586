"""3-D segmentation with MONAI's Swin UNETR: mixed precision, gradient scaling, checkpointed blocks, class Dice."""

import torch
from monai.data import DataLoader, Dataset, decollate_batch
from monai.inferers import SlidingWindowInferer
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import SwinUNETR
from monai.transforms import Activations, AsDiscrete, Compose, NormalizeIntensityd, RandFlipd, RandScaleIntensityd
from tqdm import tqdm


def cases(count, side=64, classes=3):
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "image": torch.rand(2, side, side, side, generator=generator),
            "label": torch.randint(classes, (1, side, side, side), generator=generator),
        }
        for _ in range(count)
    ]


def main(max_iterations=1):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    transforms = Compose(
        [
            NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True),
            RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=1),
            RandScaleIntensityd(keys="image", factors=0.1, prob=1.0),
        ]
    )
    train_loader = DataLoader(Dataset(cases(max_iterations), transforms), batch_size=1, shuffle=True)
    val_loader = DataLoader(Dataset(cases(1), NormalizeIntensityd(keys="image")), batch_size=1)
    model = SwinUNETR(in_channels=2, out_channels=3, feature_size=12, use_checkpoint=True, drop_rate=0.0).to(device)
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5)
    amp = device.type == "cuda"
    scaler = torch.amp.GradScaler(device.type, enabled=amp)

    model.train()
    epoch_iterator = tqdm(train_loader, desc="Training (X / X Steps) (loss=X.X)", dynamic_ncols=True)
    for step, batch in enumerate(epoch_iterator):
        x, y = batch["image"].to(device), batch["label"].to(device)
        with torch.autocast(device.type, enabled=amp):
            logit_map = model(x)
            loss = loss_function(logit_map, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 12.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        epoch_iterator.set_description(f"Training ({step} / {max_iterations} Steps) (loss={loss.item():2.5f})")

    model.eval()
    inferer = SlidingWindowInferer(roi_size=(64, 64, 64), sw_batch_size=1, overlap=0.5)
    post_pred = Compose([Activations(softmax=True), AsDiscrete(argmax=True, to_onehot=3)])
    post_label = AsDiscrete(to_onehot=3)
    dice_metric = DiceMetric(include_background=True, reduction="mean_batch", get_not_nans=False)
    with torch.no_grad():
        for batch in val_loader:
            val_inputs, val_labels = batch["image"].to(device), batch["label"].to(device)
            with torch.autocast(device.type, enabled=amp):
                val_outputs = inferer(val_inputs, model)
            outputs = [post_pred(each) for each in decollate_batch(val_outputs)]
            dice_metric(y_pred=outputs, y=[post_label(each) for each in decollate_batch(val_labels)])
    print("dice by class", [round(value.item(), 3) for value in dice_metric.aggregate()])
    if device.type == "cuda":
        print(f"peak memory: {torch.cuda.max_memory_allocated() / 1024**2:.2f} MiB")


if __name__ == "__main__":
    main()

"""3-D segmentation with MONAI's tutorial: Dice loss, sliding-window inference and the mean Dice of decollated batches."""

import tempfile
from pathlib import Path

import torch
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.layers import Norm
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscrete,
    Compose,
    EnsureTyped,
    RandCropByPosNegLabeld,
    RandFlipd,
    ScaleIntensityd,
)
from monai.utils import set_determinism


def volumes(count, side=80):
    generator = torch.Generator().manual_seed(count)
    for _ in range(count):
        image = torch.rand(1, side, side, side, generator=generator)
        label = (image > 0.7).float()
        yield {"image": image.numpy(), "label": label.numpy()}


def main(max_epochs=2):
    set_determinism(seed=0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    train_transforms = Compose(
        [
            ScaleIntensityd(keys=["image"]),
            RandCropByPosNegLabeld(
                keys=["image", "label"],
                label_key="label",
                spatial_size=(48, 48, 48),
                pos=1,
                neg=1,
                num_samples=2,
                image_key="image",
                image_threshold=0,
            ),
            RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
            EnsureTyped(keys=["image", "label"]),
        ]
    )
    val_transforms = Compose([ScaleIntensityd(keys=["image"]), EnsureTyped(keys=["image", "label"])])
    train_ds = CacheDataset(data=list(volumes(4)), transform=train_transforms, cache_rate=1.0, num_workers=2)
    train_loader = DataLoader(train_ds, batch_size=2, shuffle=True, num_workers=2)
    val_ds = CacheDataset(data=list(volumes(1)), transform=val_transforms, cache_rate=1.0, num_workers=2)
    val_loader = DataLoader(val_ds, batch_size=1, num_workers=2)

    model = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        channels=(16, 32, 64, 128, 256),
        strides=(2, 2, 2, 2),
        num_res_units=2,
        norm=Norm.BATCH,
    ).to(device)
    loss_function = DiceLoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    dice_metric = DiceMetric(include_background=False, reduction="mean")
    post_pred = Compose([AsDiscrete(argmax=True, to_onehot=2)])
    post_label = Compose([AsDiscrete(to_onehot=2)])

    val_interval = 2
    best_metric = -1
    with tempfile.TemporaryDirectory() as root_dir:
        for epoch in range(max_epochs):
            print(f"epoch {epoch + 1}/{max_epochs}")
            model.train()
            epoch_loss = 0
            step = 0
            for batch_data in train_loader:
                step += 1
                inputs, labels = batch_data["image"].to(device), batch_data["label"].to(device)
                optimizer.zero_grad()
                outputs = model(inputs)
                loss = loss_function(outputs, labels)
                loss.backward()
                optimizer.step()
                epoch_loss += loss.item()
                print(f"{step}/{len(train_ds) // train_loader.batch_size}, train_loss: {loss.item():.4f}")
            epoch_loss /= step
            print(f"epoch {epoch + 1} average loss: {epoch_loss:.4f}")

            if (epoch + 1) % val_interval == 0:
                model.eval()
                with torch.no_grad():
                    for val_data in val_loader:
                        val_inputs, val_labels = val_data["image"].to(device), val_data["label"].to(device)
                        val_outputs = sliding_window_inference(val_inputs, (64, 64, 64), 2, model)
                        val_outputs = [post_pred(i) for i in decollate_batch(val_outputs)]
                        val_labels = [post_label(i) for i in decollate_batch(val_labels)]
                        dice_metric(y_pred=val_outputs, y=val_labels)
                    metric = dice_metric.aggregate().item()
                    dice_metric.reset()
                    if metric > best_metric:
                        best_metric = metric
                        torch.save(model.state_dict(), Path(root_dir) / "best_metric_model.pth")
                        print("saved new best metric model")
                    print(f"current epoch: {epoch + 1} current mean dice: {metric:.4f} best: {best_metric:.4f}")


if __name__ == "__main__":
    main()

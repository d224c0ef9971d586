"""3-D classification with MONAI's DenseNet, as in its tutorial: accuracy over the epoch, ROC AUC, the best model kept."""

import tempfile
from pathlib import Path

import torch
from monai.data import DataLoader, Dataset, decollate_batch
from monai.metrics import ROCAUCMetric
from monai.networks.nets import DenseNet
from monai.transforms import Activations, AsDiscrete, Compose, RandRotate90, ScaleIntensity


class Scans(Dataset):
    def __init__(self, count, transform, side=48):
        generator = torch.Generator().manual_seed(count)
        self.scans = [torch.rand(1, side, side, side, generator=generator) for _ in range(count)]
        self.transform = transform

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, index):
        return self.transform(self.scans[index]), torch.tensor(index % 2)


def main(max_epochs=2):
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pin_memory = torch.cuda.is_available()
    train_transforms = Compose([ScaleIntensity(), RandRotate90()])
    train_loader = DataLoader(Scans(4, train_transforms), batch_size=2, shuffle=True, pin_memory=pin_memory)
    val_loader = DataLoader(Scans(2, ScaleIntensity()), batch_size=2, pin_memory=pin_memory)
    model = DenseNet(
        spatial_dims=3, in_channels=1, out_channels=2, init_features=32, growth_rate=16, block_config=(4, 6, 8)
    ).to(device)
    loss_function = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    auc_metric = ROCAUCMetric()
    post_pred, post_label = Compose([Activations(softmax=True)]), Compose([AsDiscrete(to_onehot=2)])
    best_metric, best_metric_epoch = -1, -1
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(max_epochs):
            model.train()
            epoch_loss = 0
            for inputs, labels in train_loader:
                inputs, labels = inputs.to(device), labels.to(device)
                optimizer.zero_grad()
                outputs = model(inputs)
                loss = loss_function(outputs, labels)
                loss.backward()
                optimizer.step()
                epoch_loss += loss.item()
            print(f"epoch {epoch + 1} average loss: {epoch_loss / len(train_loader):.4f}")
            model.eval()
            with torch.no_grad():
                y_pred = torch.tensor([], dtype=torch.float32, device=device)
                y = torch.tensor([], dtype=torch.long, device=device)
                for val_images, val_labels in val_loader:
                    y_pred = torch.cat([y_pred, model(val_images.to(device))], dim=0)
                    y = torch.cat([y, val_labels.to(device)], dim=0)
                acc_value = torch.eq(y_pred.argmax(dim=1), y)
                acc_metric = acc_value.sum().item() / len(acc_value)
                y_onehot = [post_label(i) for i in decollate_batch(y, detach=False)]
                y_pred_act = [post_pred(i) for i in decollate_batch(y_pred)]
                auc_metric(y_pred_act, y_onehot)
                auc_result = auc_metric.aggregate()
                auc_metric.reset()
                if auc_result > best_metric:
                    best_metric, best_metric_epoch = auc_result, epoch + 1
                    torch.save(model.state_dict(), Path(folder) / "best_metric_model.pth")
                print(f"current accuracy: {acc_metric:.4f} AUC: {auc_result:.4f} best: {best_metric:.4f}")
    print(f"train completed, best_metric: {best_metric:.4f} at epoch: {best_metric_epoch}")


if __name__ == "__main__":
    main()

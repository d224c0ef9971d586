"""Fine-tuning a timm vision transformer with gradient accumulation, bfloat16 autocast and early stopping."""

import tempfile
from pathlib import Path

import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset, random_split
from tqdm import tqdm


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience = patience
        self.counter = 0
        self.best_score = None
        self.early_stop = False

    def __call__(self, val_loss):
        score = -val_loss
        if self.best_score is None or score > self.best_score:
            self.best_score = score
            self.counter = 0
            return True
        self.counter += 1
        print(f"EarlyStopping counter: {self.counter} out of {self.patience}")
        if self.counter >= self.patience:
            self.early_stop = True
        return False


def run(batch_size=8, device=None, epochs=2, accumulation_steps=2):
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=20, img_size=160)
    assert resample_abs_pos_embed(model.pos_embed.detach(), (10, 10)).shape[1] == 101
    model = model.to(device)

    dataset = TensorDataset(torch.randn(5 * batch_size, 3, 160, 160), torch.randint(0, 20, (5 * batch_size,)))
    train_set, val_set = random_split(dataset, [4 * batch_size, batch_size], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, pin_memory=True)
    val_loader = DataLoader(val_set, batch_size=batch_size)

    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
    stopper = EarlyStopping(patience=2)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "best.pt"
        for epoch in range(epochs):
            model.train()
            train_loss = 0.0
            progress = tqdm(train_loader, desc=f"Epoch {epoch + 1}/{epochs}")
            for step, (images, labels) in enumerate(progress):
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                with torch.autocast(device_type=torch.device(device).type, dtype=torch.bfloat16):
                    loss = criterion(model(images), labels) / accumulation_steps
                loss.backward()
                if (step + 1) % accumulation_steps == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                train_loss += loss.item() * accumulation_steps
                progress.set_postfix(loss=f"{train_loss / (step + 1):.4f}")
            scheduler.step()

            model.eval()
            val_loss, correct = 0.0, 0
            with torch.inference_mode():
                for images, labels in val_loader:
                    images, labels = images.to(device), labels.to(device)
                    outputs = model(images)
                    val_loss += criterion(outputs, labels).item()
                    correct += outputs.argmax(dim=1).eq(labels).sum().item()
            print(f"val_loss {val_loss:.4f}  val_acc {correct / len(val_set):.3f}")
            if stopper(val_loss):
                torch.save({"epoch": epoch, "model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint)
            if stopper.early_stop:
                print("Early stopping")
                break
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
    return {"val_loss": val_loss}


if __name__ == "__main__":
    run()

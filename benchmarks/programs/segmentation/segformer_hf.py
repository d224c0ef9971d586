"""Fine-tuning a SegFormer of transformers in a native loop, with the pixel accuracy of the valid pixels."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import SegformerConfig, SegformerForSemanticSegmentation


class Scenes(Dataset):
    def __init__(self, length, side=160, labels=20):
        self.length, self.side, self.labels = length, side, labels

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        labels = torch.randint(0, self.labels, (self.side, self.side), generator=generator)
        labels[:8] = 255
        return {"pixel_values": torch.randn(3, self.side, self.side, generator=generator), "labels": labels}


def main(epochs=1):
    torch.manual_seed(0)
    train_dataloader = DataLoader(Scenes(8), batch_size=4, shuffle=True)
    valid_dataloader = DataLoader(Scenes(4), batch_size=4)
    config = SegformerConfig(num_labels=20, hidden_sizes=[32, 64, 160, 256], depths=[2, 2, 2, 2])
    model = SegformerForSemanticSegmentation(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.00006)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)

    for epoch in range(1, epochs + 1):
        print("Epoch:", epoch)
        pbar = tqdm(train_dataloader)
        accuracies = []
        losses = []
        model.train()
        for batch in pbar:
            pixel_values = batch["pixel_values"].to(device)
            labels = batch["labels"].to(device)
            optimizer.zero_grad()
            outputs = model(pixel_values=pixel_values, labels=labels)
            upsampled_logits = nn.functional.interpolate(
                outputs.logits, size=labels.shape[-2:], mode="bilinear", align_corners=False
            )
            predicted = upsampled_logits.argmax(dim=1)
            mask = labels != 255
            pred_labels = predicted[mask].detach().cpu().numpy()
            true_labels = labels[mask].detach().cpu().numpy()
            accuracy = (pred_labels == true_labels).mean()
            loss = outputs.loss
            accuracies.append(accuracy)
            losses.append(loss.item())
            pbar.set_postfix({"Pixel accuracy": sum(accuracies) / len(accuracies), "Loss": sum(losses) / len(losses)})
            loss.backward()
            optimizer.step()
        model.eval()
        val_losses = []
        with torch.no_grad():
            for batch in valid_dataloader:
                outputs = model(pixel_values=batch["pixel_values"].to(device), labels=batch["labels"].to(device))
                val_losses.append(outputs.loss.item())
        print(f"Train Loss: {sum(losses) / len(losses)}  Val Loss: {sum(val_losses) / len(val_losses)}")
    if device.type == "cuda":
        print(f"Peak memory: {torch.cuda.max_memory_allocated(device) / 1024**2:.2f} MiB")


if __name__ == "__main__":
    main()

"""Sequence-to-sequence fine-tuning of a small T5 in a loop, with Adafactor, padded labels and beam search."""

import torch
from torch.utils.data import DataLoader
from transformers import Adafactor, T5Config, T5ForConditionalGeneration


def collate(pairs):
    sources = torch.nn.utils.rnn.pad_sequence([source for source, _ in pairs], batch_first=True)
    targets = torch.nn.utils.rnn.pad_sequence([target for _, target in pairs], batch_first=True)
    return sources, (sources != 0).long(), targets


def train(epoch, model, device, loader, optimizer):
    model.train()
    for step, (source_ids, source_mask, y) in enumerate(loader):
        y = y.to(device, dtype=torch.long)
        y_ids = y[:, :-1].contiguous()
        lm_labels = y[:, 1:].clone().detach()
        lm_labels[y[:, 1:] == 0] = -100
        ids = source_ids.to(device, dtype=torch.long)
        mask = source_mask.to(device, dtype=torch.long)
        outputs = model(input_ids=ids, attention_mask=mask, decoder_input_ids=y_ids, labels=lm_labels)
        loss = outputs[0]
        if step % 2 == 0:
            print(f"Epoch: {epoch}, Loss: {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(model, device, loader):
    model.eval()
    predictions = []
    with torch.no_grad():
        for source_ids, source_mask, _ in loader:
            generated_ids = model.generate(
                input_ids=source_ids.to(device),
                attention_mask=source_mask.to(device),
                max_length=12,
                num_beams=2,
                repetition_penalty=2.5,
                length_penalty=1.0,
                early_stopping=True,
            )
            predictions.extend([" ".join(map(str, g.tolist())) for g in generated_ids])
    return predictions


def main(batch_size=8, epochs=1):
    torch.manual_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = T5Config(
        vocab_size=6000, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).to(device)
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (
            torch.randint(2, 6000, (80 + n % 40,), generator=generator),
            torch.randint(2, 6000, (20 + n % 10,), generator=generator),
        )
        for n in range(28)
    ]
    training_loader = DataLoader(pairs[:24], batch_size=batch_size, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(pairs[24:], batch_size=4, collate_fn=collate)
    optimizer = Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
    for epoch in range(epochs):
        train(epoch, model, device, training_loader, optimizer)
    predictions = validate(model, device, val_loader)
    print(len(predictions), predictions[0][:40])


if __name__ == "__main__":
    main()

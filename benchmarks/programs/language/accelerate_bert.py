"""Sentence-pair classification with accelerate in a native loop, as transformers' run_glue_no_trainer does."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from tqdm.auto import tqdm
from transformers import BertConfig, BertForSequenceClassification, get_scheduler


def collate(examples):
    longest = max(len(tokens) for tokens, _ in examples)
    input_ids = torch.zeros(len(examples), longest, dtype=torch.long)
    attention_mask = torch.zeros(len(examples), longest, dtype=torch.long)
    for i, (tokens, _) in enumerate(examples):
        input_ids[i, : len(tokens)] = tokens
        attention_mask[i, : len(tokens)] = 1
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "labels": torch.tensor([label for _, label in examples]),
    }


def sentences(count, words, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(40, 100, (count,), generator=generator).tolist()
    return [(torch.randint(1, words, (length,), generator=generator), length % 3) for length in lengths]


def training_function(batch_size=16, num_epochs=1, gradient_accumulation_steps=2):
    accelerator = Accelerator(gradient_accumulation_steps=gradient_accumulation_steps)
    set_seed(42)
    config = BertConfig(
        vocab_size=8000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    train_dataloader = DataLoader(sentences(64, 8000, 0), shuffle=True, collate_fn=collate, batch_size=batch_size)
    eval_dataloader = DataLoader(sentences(32, 8000, 1), collate_fn=collate, batch_size=batch_size)
    no_decay = ["bias", "LayerNorm.weight"]
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
            {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
        ],
        lr=5e-5,
    )
    steps = num_epochs * len(train_dataloader) // gradient_accumulation_steps
    lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=steps)
    metric = MulticlassAccuracy(num_classes=3, average="micro")
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    metric = metric.to(accelerator.device)
    progress_bar = tqdm(range(steps), disable=not accelerator.is_local_main_process)
    for epoch in range(num_epochs):
        model.train()
        total_loss = 0
        for batch in train_dataloader:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    progress_bar.update(1)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        model.eval()
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions = outputs.logits.argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
            metric.update(predictions, references)
        accelerator.print(f"epoch {epoch}: accuracy {metric.compute().item():.4f}")
        accelerator.print(f"train loss {total_loss.item() / len(train_dataloader):.4f}")
    if torch.cuda.is_available():
        accelerator.print(f"max memory allocated: {torch.cuda.max_memory_allocated() / 2**20:.2f} MiB")
    accelerator.end_training()


if __name__ == "__main__":
    training_function()

"""Causal language modelling with transformers' Trainer: datasets, a collator, evaluation, checkpoints and generation."""

import math
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

TEXT = [f"the quick brown fox number {n} jumps over the lazy dog and runs away from {n + 1} wolves" for n in range(400)]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>", "<eos>"]))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>", bos_token="<eos>"
    )


def main():
    tokenizer = make_tokenizer()
    raw = Dataset.from_dict({"text": TEXT}).train_test_split(test_size=0.1, seed=0)
    block_size = 128

    def tokenize(examples):
        return tokenizer(examples["text"])

    def group_texts(examples):
        concatenated = {k: sum(examples[k], []) for k in ("input_ids", "attention_mask")}
        total_length = len(concatenated["input_ids"]) // block_size * block_size
        result = {
            k: [t[i : i + block_size] for i in range(0, total_length, block_size)] for k, t in concatenated.items()
        }
        result["labels"] = result["input_ids"].copy()
        return result

    tokenized = raw.map(tokenize, batched=True, remove_columns=["text"])
    lm_datasets = tokenized.map(group_texts, batched=True, remove_columns=tokenized["train"].column_names)

    config = GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=256, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        training_args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            max_steps=4,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=1,
            learning_rate=2e-5,
            weight_decay=0.01,
            warmup_steps=1,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
            load_best_model_at_end=True,
            bf16=torch.cuda.is_available(),
            dataloader_num_workers=2,
            report_to=[],
        )
        trainer = Trainer(
            model=model,
            args=training_args,
            train_dataset=lm_datasets["train"],
            eval_dataset=lm_datasets["test"],
            data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=False),
        )
        trainer.train()
        eval_results = trainer.evaluate()
        print(f"Perplexity: {math.exp(min(eval_results['eval_loss'], 20)):.2f}")
        inputs = tokenizer("the quick brown", return_tensors="pt", return_token_type_ids=False).to(trainer.model.device)
        output = trainer.model.generate(**inputs, max_new_tokens=8, do_sample=False)
        print(tokenizer.decode(output[0]))


if __name__ == "__main__":
    main()

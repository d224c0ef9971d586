"""Preference optimization with TRL's DPOTrainer: a policy and its reference, on pairs of chosen and rejected answers."""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import DPOConfig, DPOTrainer


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=3000, special_tokens=["<unk>", "</s>", "<pad>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="<pad>")


def main():
    torch.manual_seed(0)
    pairs = [
        {
            "prompt": f"Question {n}: which of {n} and {n + 1} is larger, and by how much?",
            "chosen": f" {n + 1} is larger than {n}, by exactly one." * 4,
            "rejected": f" I would say that {n} is the larger one of the two numbers." * 4,
        }
        for n in range(32)
    ]
    tokenizer = make_tokenizer([text for pair in pairs for text in pair.values()])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    ref_model = Qwen2ForCausalLM(config)
    ref_model.load_state_dict(model.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        training_args = DPOConfig(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=1,
            gradient_checkpointing=False,
            max_length=256,
            max_steps=2,
            logging_steps=1,
            save_strategy="no",
            bf16=torch.cuda.is_available(),
            report_to=[],
        )
        trainer = DPOTrainer(
            model=model,
            ref_model=ref_model,
            args=training_args,
            train_dataset=Dataset.from_list(pairs),
            processing_class=tokenizer,
        )
        result = trainer.train()
    print(result.metrics)


if __name__ == "__main__":
    main()

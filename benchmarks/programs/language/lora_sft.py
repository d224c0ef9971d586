"""Supervised fine-tuning of a small Llama with TRL's SFTTrainer and a LoRA adapter of peft."""

import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = ["<unk>", "</s>", "<pad>", "<|user|>", "<|assistant|>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4000, special_tokens=special))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="<pad>", bos_token="</s>"
    )
    fast.chat_template = TEMPLATE
    return fast


def main():
    questions = [f"What is {n} plus {n + 3}? Explain it in several words, please." for n in range(64)]
    answers = [f"The sum of {n} and {n + 3} is {2 * n + 3}, because adding is counting on." * 3 for n in range(64)]
    dataset = Dataset.from_list(
        [
            {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
            for q, a in zip(questions, answers)
        ]
    )
    tokenizer = make_tokenizer(questions + answers)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=512,
            intermediate_size=1376,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=512,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    peft_config = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    with tempfile.TemporaryDirectory() as folder:
        training_args = SFTConfig(
            output_dir=folder,
            max_length=256,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            gradient_checkpointing=True,
            learning_rate=2e-4,
            max_steps=2,
            logging_steps=1,
            save_strategy="no",
            bf16=torch.cuda.is_available(),
            report_to=[],
        )
        trainer = SFTTrainer(
            model=model, args=training_args, train_dataset=dataset, processing_class=tokenizer, peft_config=peft_config
        )
        trainer.model.print_trainable_parameters()
        result = trainer.train()
        trainer.save_model(folder)
    print(result.metrics)


if __name__ == "__main__":
    main()

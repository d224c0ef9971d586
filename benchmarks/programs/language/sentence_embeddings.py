"""Training a sentence transformer with its trainer: in-batch negatives, an evaluator, and encoding of a corpus."""

import tempfile

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

ANIMALS = ["cat", "dog", "horse", "fox", "wolf", "bear", "hare", "deer"]
TEXTS = [f"the {a} number {n} sleeps near the {b} in the garden" for n in range(8) for a in ANIMALS for b in ANIMALS]


def save_small_bert(folder):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    ).save_pretrained(folder)
    BertModel(
        BertConfig(vocab_size=8000, hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536)
    ).save_pretrained(folder)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_small_bert(folder)
        model = SentenceTransformer(folder)
        train_dataset = Dataset.from_dict({"anchor": TEXTS[:128], "positive": TEXTS[1:129]})
        loss = MultipleNegativesRankingLoss(model)
        args = SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=32,
            learning_rate=2e-5,
            warmup_steps=1,
            fp16=torch.cuda.is_available(),
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        )
        evaluator = EmbeddingSimilarityEvaluator(TEXTS[:16], TEXTS[16:32], [i / 16 for i in range(16)], name="dev")
        trainer = SentenceTransformerTrainer(
            model=model, args=args, train_dataset=train_dataset, loss=loss, evaluator=evaluator
        )
        trainer.train()
        embeddings = model.encode(TEXTS[:64], batch_size=32, convert_to_tensor=True, normalize_embeddings=True)
        similarities = model.similarity(embeddings, embeddings)
        print(similarities.shape, float(similarities.mean()))


if __name__ == "__main__":
    main()

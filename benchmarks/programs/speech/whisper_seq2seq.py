"""Fine-tuning a small Whisper with Seq2SeqTrainer: labels shifted by the model, generation in the evaluation."""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

VOCABULARY, START, END = 2000, 1, 2


@dataclass
class DataCollatorSpeechSeq2SeqWithPadding:
    decoder_start_token_id: int

    def __call__(self, features):
        batch = {"input_features": torch.stack([torch.tensor(feature["input_features"]) for feature in features])}
        labels = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(feature["labels"]) for feature in features], batch_first=True, padding_value=-100
        )
        if (labels[:, 0] == self.decoder_start_token_id).all().cpu().item():
            labels = labels[:, 1:]
        batch["labels"] = labels
        return batch


def prepare(index, feature_extractor):
    rng = np.random.default_rng(index)
    audio = rng.standard_normal(16000 * 2).astype(np.float32)
    features = feature_extractor(audio, sampling_rate=16000).input_features[0]
    return {"input_features": features, "labels": [START, *rng.integers(3, VOCABULARY, 20 + index % 5).tolist(), END]}


def main():
    torch.manual_seed(0)
    feature_extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=6)
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=VOCABULARY,
            d_model=256,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=1024,
            decoder_ffn_dim=1024,
            max_source_positions=300,
            max_target_positions=64,
            decoder_start_token_id=START,
            bos_token_id=START,
            eos_token_id=END,
            pad_token_id=END,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )

    def compute_metrics(pred):
        pred_ids, label_ids = pred.predictions, pred.label_ids
        label_ids[label_ids == -100] = END
        shortest = min(pred_ids.shape[1], label_ids.shape[1])
        return {"wer": float((pred_ids[:, :shortest] != label_ids[:, :shortest]).mean())}

    with tempfile.TemporaryDirectory() as folder:
        training_args = Seq2SeqTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=1,
            learning_rate=1e-5,
            warmup_steps=1,
            max_steps=2,
            gradient_checkpointing=False,
            fp16=torch.cuda.is_available(),
            eval_strategy="steps",
            per_device_eval_batch_size=4,
            predict_with_generate=True,
            generation_max_length=12,
            eval_steps=2,
            logging_steps=1,
            save_strategy="no",
            remove_unused_columns=False,
            report_to=[],
        )
        trainer = Seq2SeqTrainer(
            args=training_args,
            model=model,
            train_dataset=[prepare(i, feature_extractor) for i in range(8)],
            eval_dataset=[prepare(i, feature_extractor) for i in range(8, 12)],
            data_collator=DataCollatorSpeechSeq2SeqWithPadding(model.config.decoder_start_token_id),
            compute_metrics=compute_metrics,
        )
        trainer.train()
        print(trainer.state.log_history[-1])


if __name__ == "__main__":
    main()

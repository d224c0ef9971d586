"""Fine-tuning a small wav2vec 2.0 for CTC with transformers' Trainer: time masks, a padding collator, word errors."""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

VOCABULARY = 32


@dataclass
class DataCollatorCTCWithPadding:
    feature_extractor: Wav2Vec2FeatureExtractor
    padding: bool = True

    def __call__(self, features):
        inputs = [{"input_values": feature["input_values"]} for feature in features]
        batch = self.feature_extractor.pad(inputs, padding=self.padding, return_tensors="pt")
        longest = max(len(feature["labels"]) for feature in features)
        labels = torch.full((len(features), longest), -100)
        for i, feature in enumerate(features):
            labels[i, : len(feature["labels"])] = torch.tensor(feature["labels"])
        batch["labels"] = labels
        return batch


class Speech(torch.utils.data.Dataset):
    def __init__(self, length, feature_extractor):
        self.length, self.feature_extractor = length, feature_extractor

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        audio = rng.standard_normal(16000 + 800 * (index % 4)).astype(np.float32)
        values = self.feature_extractor(audio, sampling_rate=16000).input_values[0]
        return {"input_values": values, "labels": rng.integers(1, VOCABULARY, 12).tolist()}


def compute_metrics(pred):
    pred_ids = np.argmax(pred.predictions, axis=-1)
    labels = pred.label_ids
    return {"tokens": int((pred_ids != 0).sum()), "wer": float((labels == -100).mean())}


def main():
    torch.manual_seed(0)
    feature_extractor = Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=16000, return_attention_mask=True)
    config = Wav2Vec2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        conv_dim=(128,) * 7,
        num_conv_pos_embeddings=32,
        mask_time_length=4,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        pad_token_id=0,
    )
    model = Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    with tempfile.TemporaryDirectory() as folder:
        training_args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            gradient_checkpointing=True,
            max_steps=3,
            fp16=torch.cuda.is_available(),
            eval_strategy="steps",
            eval_steps=3,
            logging_steps=1,
            save_strategy="no",
            learning_rate=1e-4,
            warmup_steps=1,
            report_to=[],
        )
        trainer = Trainer(
            model=model,
            data_collator=DataCollatorCTCWithPadding(feature_extractor),
            args=training_args,
            compute_metrics=compute_metrics,
            train_dataset=Speech(16, feature_extractor),
            eval_dataset=Speech(4, feature_extractor),
        )
        trainer.train()
        print(trainer.state.log_history[-1])


if __name__ == "__main__":
    main()

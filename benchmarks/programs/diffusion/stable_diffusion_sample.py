"""Text to image with diffusers' Stable Diffusion pipeline, put together from small parts, as in its unit tests."""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast


def make_tokenizer():
    words = ["<|startoftext|>", "<|endoftext|>", "a", "photo", "of", "an", "astronaut", "riding", "horse", "on", "mars"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        model_max_length=77,
    )


def main(num_inference_steps=4):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(128, 256),
        layers_per_block=2,
        sample_size=32,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=256,
    )
    vae = AutoencoderKL(
        block_out_channels=[64, 128],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D", "DownEncoderBlock2D"],
        up_block_types=["UpDecoderBlock2D", "UpDecoderBlock2D"],
        latent_channels=4,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=1000,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=4,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    pipe = StableDiffusionPipeline(
        unet=unet,
        scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=make_tokenizer(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe = pipe.to(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    generator = torch.Generator(device=device).manual_seed(0)
    images = pipe(
        "a photo of an astronaut riding a horse on mars",
        num_inference_steps=num_inference_steps,
        guidance_scale=7.5,
        num_images_per_prompt=2,
        generator=generator,
        output_type="np",
    ).images
    print(images.shape, images.mean())
    if device == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()

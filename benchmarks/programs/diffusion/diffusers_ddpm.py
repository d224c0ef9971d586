"""Training an unconditional diffusion model with diffusers and accelerate, as in the library's basic training tutorial."""

import tempfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from tqdm.auto import tqdm


@dataclass
class TrainingConfig:
    image_size = 32
    train_batch_size = 8
    eval_batch_size = 4
    num_epochs = 1
    gradient_accumulation_steps = 1
    learning_rate = 1e-4
    lr_warmup_steps = 2
    mixed_precision = "no"


def evaluate(config, pipeline):
    images = pipeline(
        batch_size=config.eval_batch_size,
        num_inference_steps=4,
        output_type="np",
        generator=torch.Generator(device="cpu").manual_seed(0),
    ).images
    print("sampled", images.shape)


def train_loop(config, model, noise_scheduler, optimizer, train_dataloader, lr_scheduler):
    with tempfile.TemporaryDirectory() as folder:
        accelerator = Accelerator(
            mixed_precision=config.mixed_precision,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            project_dir=folder,
        )
        model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
            model, optimizer, train_dataloader, lr_scheduler
        )
        ema_model = EMAModel(model.parameters(), decay=0.9999, use_ema_warmup=True)
        ema_model.to(accelerator.device)
        global_step = 0
        for epoch in range(config.num_epochs):
            progress_bar = tqdm(total=len(train_dataloader), disable=not accelerator.is_local_main_process)
            progress_bar.set_description(f"Epoch {epoch}")
            for batch in train_dataloader:
                clean_images = batch["images"]
                noise = torch.randn(clean_images.shape, device=clean_images.device)
                bs = clean_images.shape[0]
                timesteps = torch.randint(
                    0, noise_scheduler.config.num_train_timesteps, (bs,), device=clean_images.device, dtype=torch.int64
                )
                noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
                with accelerator.accumulate(model):
                    noise_pred = model(noisy_images, timesteps, return_dict=False)[0]
                    loss = F.mse_loss(noise_pred, noise)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    lr_scheduler.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    ema_model.step(model.parameters())
                progress_bar.update(1)
                logs = {"loss": loss.detach().item(), "lr": lr_scheduler.get_last_lr()[0], "step": global_step}
                progress_bar.set_postfix(**logs)
                accelerator.log(logs, step=global_step)
                global_step += 1
            if accelerator.is_main_process:
                unet = accelerator.unwrap_model(model)
                ema_model.store(unet.parameters())
                ema_model.copy_to(unet.parameters())
                pipeline = DDPMPipeline(unet=unet, scheduler=noise_scheduler)
                pipeline.set_progress_bar_config(disable=True)
                evaluate(config, pipeline)
                ema_model.restore(unet.parameters())
        accelerator.end_training()


def main():
    config = TrainingConfig()
    torch.manual_seed(0)
    dataset = [{"images": torch.rand(3, config.image_size, config.image_size) * 2 - 1} for _ in range(16)]
    train_dataloader = torch.utils.data.DataLoader(dataset, batch_size=config.train_batch_size, shuffle=True)
    model = UNet2DModel(
        sample_size=config.image_size,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(64, 64, 128, 128),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    lr_scheduler = get_cosine_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=config.lr_warmup_steps,
        num_training_steps=len(train_dataloader) * config.num_epochs,
    )
    train_loop(config, model, noise_scheduler, optimizer, train_dataloader, lr_scheduler)


if __name__ == "__main__":
    main()

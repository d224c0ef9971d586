"""Assumed numbers do not move the peak: programs that read numbers, counted with data and calculated without."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from runners.meters.torch_tensors import TensorTracker
from tests.programs import HOST, calculated

WIDTH, CLASSES, BATCH = 256, 10, 32
CLOSE = 0.0


def classifier(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, CLASSES)).to(device)


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, WIDTH, device=device), torch.randint(0, CLASSES, (BATCH,), device=device)


def logs_loss_and_accuracy(device: str) -> None:
    model = classifier(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses, correct = [], 0
    for _ in range(3):
        x, y = batch(device)
        scores = model(x)
        loss = functional.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        correct += (scores.argmax(1) == y).sum().item()
    print(f"{sum(losses) / 3:.3f} {correct / (3 * BATCH):.1%} {math.exp(np.mean(losses)):.1f}")


def guards_and_clips(device: str) -> None:
    model = classifier(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(3):
        x, y = batch(device)
        loss = functional.cross_entropy(model(x), y)
        if not torch.isfinite(loss) or torch.isnan(loss).any():
            raise RuntimeError("diverged")
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        if norm > 1e6:
            print("large", norm.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def scales_its_loss(device: str) -> None:
    model = classifier(device)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler(device)
    for _ in range(3):
        x, y = batch(device)
        scaler.scale(functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def waits_for_a_plateau(device: str) -> None:
    model = classifier(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(4):
        x, y = batch(device)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(loss.item())


def stops_early(device: str) -> None:
    model = classifier(device)
    optimizer = torch.optim.AdamW(model.parameters())
    best, waited = math.inf, 0
    for _ in range(6):
        x, y = batch(device)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (value := loss.item()) < best:
            best, waited = value, 0
        else:
            waited += 1
        if waited > 2:
            break


def generates_until_the_end_token(device: str) -> None:
    embedding, head = nn.Embedding(50, WIDTH, device=device), nn.Linear(WIDTH, 50, device=device)
    ids = torch.randint(3, 50, (4, 8), device=device)
    finished = torch.zeros(4, dtype=torch.bool, device=device)
    with torch.no_grad():
        for _ in range(8):
            chosen = head(embedding(ids).mean(1)).argmax(-1)
            chosen = torch.where(finished, 0, chosen)
            ids = torch.cat([ids, chosen[:, None]], 1)
            finished |= chosen == 51
            if finished.all():
                break


def acts_by_a_policy(device: str) -> None:
    policy = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)).to(device)
    optimizer = torch.optim.Adam(policy.parameters())
    state, kept, rewards = np.zeros(4, dtype=np.float32), [], []
    for _ in range(16):
        choices = torch.distributions.Categorical(logits=policy(torch.from_numpy(state).to(device)))
        action = choices.sample()
        kept.append(choices.log_prob(action))
        state = np.clip(state + (0.1 if action.item() == 1 else -0.1), -1, 1).astype(np.float32)
        rewards.append(1.0 if abs(float(state[0])) < 0.5 else 0.0)
    returns = torch.tensor(rewards, device=device).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    (-torch.stack(kept) * returns).sum().backward()
    optimizer.step()


def measures_with_numpy(device: str) -> None:
    model = classifier(device).eval()
    chosen, labels, confusion = [], [], np.zeros((CLASSES, CLASSES))
    with torch.no_grad():
        for _ in range(3):
            x, y = batch(device)
            chosen.append(model(x).argmax(1).cpu().numpy())
            labels.append(y.cpu().numpy())
    for c, label in zip(np.concatenate(chosen), np.concatenate(labels), strict=True):
        confusion[label, c] += 1
    print(confusion.diagonal().sum() / confusion.sum(), (chosen[0] == labels[0]).mean())


def trains_two_networks(device: str) -> None:
    generator, critic = nn.Linear(64, WIDTH, device=device), nn.Linear(WIDTH, 1, device=device)
    optimizers = [torch.optim.Adam(each.parameters()) for each in (generator, critic)]
    for step in range(3):
        made = generator(torch.randn(BATCH, 64, device=device))
        of_critic = functional.softplus(-critic(torch.randn(BATCH, WIDTH, device=device))).mean()
        of_critic = of_critic + functional.softplus(critic(made.detach())).mean()
        optimizers[1].zero_grad()
        of_critic.backward()
        optimizers[1].step()
        of_generator = functional.softplus(-critic(made)).mean()
        optimizers[0].zero_grad()
        of_generator.backward()
        optimizers[0].step()
        print(f"[{step}] D: {of_critic.item():.2f}, G: {of_generator:.2f}")


def averages_its_weights(device: str) -> None:
    model = classifier(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    running = 0.0
    for step in range(3):
        x, y = batch(device)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running = 0.9 * running + 0.1 * loss.item()
        decay = min(0.99, (1 + step) / (10 + step))
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(weight.detach(), 1 - decay)
        if running != running:
            raise RuntimeError("not a number")


def ignores_padding(device: str) -> None:
    embedding, head = nn.Embedding(100, WIDTH, device=device), nn.Linear(WIDTH, 100, device=device)
    ids = torch.randint(1, 100, (8, 32), device=device)
    mask = torch.ones(8, 32, device=device)
    if torch.all(mask == 1) and 0 not in ids:
        scores = head(embedding(ids))
    else:
        scores = head(embedding(ids) * mask[..., None]) * mask[..., None]
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) < 0.15, -100)
    loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    print(math.exp(loss.item()))


def weighs_its_losses(device: str) -> None:
    model = nn.Linear(WIDTH, WIDTH, device=device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weight, history = 1.0, []
    for _ in range(3):
        x = torch.randn(BATCH, WIDTH, device=device)
        made = model(x)
        first, second = functional.mse_loss(made, x), made.abs().mean()
        weight = 0.5 * weight + 0.5 * (first / second).item()
        total = first + weight * second
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append({"first": first.item(), "second": float(second.detach()), "weight": weight})
    print(max(each["first"] for each in history), sorted(each["weight"] for each in history)[0])


PROGRAMS = [
    logs_loss_and_accuracy,
    guards_and_clips,
    scales_its_loss,
    waits_for_a_plateau,
    stops_early,
    generates_until_the_end_token,
    acts_by_a_policy,
    measures_with_numpy,
    trains_two_networks,
    averages_its_weights,
    ignores_padding,
    weighs_its_losses,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_calculated_peak_with_assumed_numbers_is_the_counted_one(program: Callable[[str], Any]) -> None:
    torch.manual_seed(0)
    with TensorTracker() as tracker:
        program("cpu")
    found = calculated(program, HOST)
    assert found.error is None
    assert found.peaks["tensor"] == pytest.approx(tracker.peak, rel=CLOSE)
    assert program is scales_its_loss or found.assumed


def keeps_the_best(device: str) -> None:
    model, best, kept = classifier(device), math.inf, None
    for value in (3.0, 2.0, 1.0):
        loss = (torch.full((4, 4), value, device=device) @ torch.ones(4, 4, device=device)).mean()
        if loss.item() < best:
            best, kept = loss.item(), copy.deepcopy(model)
    assert kept is not None


def keeps_what_is_uncertain(device: str) -> None:
    x = torch.rand(BATCH, WIDTH, device=device)
    kept = x[x.mean(1) > 0.7]
    kept.repeat(8, 1)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (keeps_the_best, "the other way may take other memory"),
        (keeps_what_is_uncertain, "at most all"),
    ],
)
def test_where_an_assumed_number_moves_the_peak_the_row_says_so(program: Callable[[str], Any], said: str) -> None:
    torch.manual_seed(0)
    with TensorTracker() as tracker:
        program("cpu")
    found = calculated(program, HOST)
    assert found.error is None
    assert found.peaks["tensor"] != pytest.approx(tracker.peak, rel=0.05)
    assert said in " ".join([*found.notes, *(each["bound"] for each in found.assumed["bounds"])])

"""Common operators and their gradients take the bytes of a CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Beta, Categorical, Dirichlet, Gamma, MultivariateNormal, Normal
from torch.nn import functional as f

from tests.tracing import Work, peak, real_peak, take

Shape = tuple[int, ...]
IMAGE: Shape = (2, 8, 16, 16)
VOLUME: Shape = (2, 4, 8, 8, 8)
ROWS: Shape = (64, 64)
MATRICES: Shape = (4, 16, 16)
SIGNAL: Shape = (2, 8, 64)


def layer(make: Callable[[], nn.Module], shape: Shape) -> Work:
    """Two passes of a layer, with the gradients of the first."""

    def work(device: str) -> None:
        made, given = make().to(device), torch.randn(*shape, device=device, requires_grad=True)
        for _ in range(2):
            output = made(given)
            (output[0] if isinstance(output, tuple) else output).sum().backward()

    return work


def positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + 8 * torch.eye(x.size(-1), device=x.device)


def classes(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long, device=x.device)


LAYERS: dict[str, Work] = {
    "Conv3d": layer(lambda: nn.Conv3d(4, 8, 3), VOLUME),
    "ConvTranspose1d": layer(lambda: nn.ConvTranspose1d(8, 8, 3, 2), SIGNAL),
    "ConvTranspose2d": layer(lambda: nn.ConvTranspose2d(8, 8, 3, 2), IMAGE),
    "ConvTranspose3d": layer(lambda: nn.ConvTranspose3d(4, 8, 3), VOLUME),
    "a dilated Conv1d": layer(lambda: nn.Conv1d(8, 8, 3, dilation=2), SIGNAL),
    "a depthwise Conv2d": layer(lambda: nn.Conv2d(8, 8, 3, groups=8), IMAGE),
    "BatchNorm2d": layer(lambda: nn.BatchNorm2d(8), IMAGE),
    "BatchNorm3d": layer(lambda: nn.BatchNorm3d(4), VOLUME),
    "GroupNorm": layer(lambda: nn.GroupNorm(4, 8), IMAGE),
    "InstanceNorm2d": layer(lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True), IMAGE),
    "LayerNorm": layer(lambda: nn.LayerNorm(16), IMAGE),
    "RMSNorm": layer(lambda: nn.RMSNorm(16), IMAGE),
    "LocalResponseNorm": layer(lambda: nn.LocalResponseNorm(2), IMAGE),
    "PixelShuffle": layer(lambda: nn.PixelShuffle(2), IMAGE),
    "PixelUnshuffle": layer(lambda: nn.PixelUnshuffle(2), IMAGE),
    "PReLU": layer(lambda: nn.PReLU(8), IMAGE),
    "GRUCell": layer(lambda: nn.GRUCell(32, 32), (8, 32)),
    "LSTMCell": layer(lambda: nn.LSTMCell(32, 32), (8, 32)),
    "weight norm": layer(lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3)), SIGNAL),
}
IMAGES: dict[str, Work] = {
    "bilinear": take(lambda x: f.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    "nearest": take(lambda x: f.interpolate(x, size=(20, 20)), IMAGE),
    "bicubic, smoothed": take(lambda x: f.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True), IMAGE),
    "trilinear": take(lambda x: f.interpolate(x, scale_factor=2, mode="trilinear"), VOLUME),
    "linear": take(lambda x: f.interpolate(x, scale_factor=2, mode="linear"), SIGNAL),
    "area": take(lambda x: f.interpolate(x, size=7, mode="area"), IMAGE),
    "avg_pool2d": take(lambda x: f.avg_pool2d(x, 2), IMAGE),
    "adaptive_avg_pool2d": take(lambda x: f.adaptive_avg_pool2d(x, 3), IMAGE),
    "adaptive_max_pool2d": take(lambda x: f.adaptive_max_pool2d(x, 3), IMAGE),
    "max_pool3d": take(lambda x: f.max_pool3d(x, 2), VOLUME),
    "lp_pool2d": take(lambda x: f.lp_pool2d(x, 2, 2), IMAGE),
    "fractional_max_pool2d": take(lambda x: f.fractional_max_pool2d(x, 2, output_size=7), IMAGE),
    "reflected": take(lambda x: f.pad(x, (1, 1, 1, 1), mode="reflect"), IMAGE),
    "replicated": take(lambda x: f.pad(x, (1, 1, 1, 1), mode="replicate"), IMAGE),
    "affine_grid": take(lambda x: f.affine_grid(x, [2, 3, 16, 16], align_corners=False), (2, 2, 3)),
    "grid_sample in three dimensions": take(
        lambda x, y: f.grid_sample(x, y, align_corners=True), VOLUME, (2, 4, 4, 4, 3)
    ),
    "dropout2d": take(lambda x: f.dropout2d(x, 0.5), IMAGE),
    "alpha_dropout": take(lambda x: f.alpha_dropout(x, 0.5, True), IMAGE),
}
LOSSES: dict[str, Work] = {
    "kl_div": take(lambda x, y: f.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), ROWS, ROWS),
    "logits": take(lambda x, y: f.binary_cross_entropy_with_logits(x, y.detach()), ROWS, ROWS),
    "huber": take(f.huber_loss, ROWS, ROWS),
    "smooth l1": take(f.smooth_l1_loss, ROWS, ROWS),
    "l1": take(f.l1_loss, ROWS, ROWS),
    "nll of pixels": take(lambda x: f.nll_loss(x.log_softmax(1), classes(x, 2, 16, 16)), IMAGE),
    "smoothed labels": take(lambda x: f.cross_entropy(x, classes(x, 2, 16, 16), label_smoothing=0.1), IMAGE),
    "soft labels": take(lambda x, y: f.cross_entropy(x, y.softmax(1)), ROWS, ROWS),
    "triplets": take(f.triplet_margin_loss, ROWS, ROWS, ROWS),
    "ranking": take(lambda x, y: f.margin_ranking_loss(x, y, torch.ones_like(x)), (64,), (64,)),
    "poisson": take(f.poisson_nll_loss, ROWS, ROWS),
    "gaussian": take(lambda x, y, z: f.gaussian_nll_loss(x, y.detach(), z), ROWS, ROWS, ROWS),
    "several labels": take(lambda x, y: f.multilabel_soft_margin_loss(x, y.detach()), ROWS, ROWS),
}
NUMBERS: dict[str, Work] = {
    "fft and back": take(lambda x: torch.fft.ifft(torch.fft.fft(x)).real, ROWS),
    "irfft2": take(lambda x: torch.fft.irfft2(torch.fft.rfft2(x)), IMAGE),
    "fftshift": take(lambda x: torch.fft.fftshift(torch.fft.fftn(x, dim=(-2, -1))), IMAGE),
    "inv": take(lambda x: torch.linalg.inv(positive(x)), MATRICES),
    "solve": take(lambda x, y: torch.linalg.solve(positive(x), y), MATRICES, (4, 16, 2)),
    "solve_triangular": take(
        lambda x, y: torch.linalg.solve_triangular(positive(x), y, upper=True), MATRICES, (4, 16, 2)
    ),
    "cholesky_solve": take(
        lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(positive(x))), MATRICES, (4, 16, 2)
    ),
    "eigh": take(lambda x: torch.linalg.eigh(positive(x))[0], MATRICES),
    "eigvals": take(torch.linalg.eigvals, MATRICES),
    "qr": take(lambda x: torch.linalg.qr(x)[0], MATRICES),
    "slogdet": take(lambda x: torch.linalg.slogdet(positive(x))[1], MATRICES),
    "matrix_exp": take(torch.linalg.matrix_exp, MATRICES),
    "matrix_power": take(lambda x: torch.linalg.matrix_power(x, 5), MATRICES),
    "spectral norm": take(lambda x: torch.linalg.matrix_norm(x, 2), MATRICES),
    "nuclear norm": take(lambda x: torch.linalg.matrix_norm(x, "nuc"), MATRICES),
    "cumsum": take(lambda x: x.cumsum(1), ROWS),
    "cumprod": take(lambda x: x.cumprod(1), ROWS),
    "logcumsumexp": take(lambda x: x.logcumsumexp(1), ROWS),
    "cummax": take(lambda x: x.cummax(1), ROWS),
    "sort": take(lambda x: x.sort(1), ROWS),
    "topk": take(lambda x: x.topk(5), ROWS),
    "kthvalue": take(lambda x: x.kthvalue(5), ROWS),
    "median": take(lambda x: x.median(1), ROWS),
    "quantile": take(lambda x: torch.quantile(x, 0.5, dim=1), ROWS),
    "logsumexp": take(lambda x: x.logsumexp(1), ROWS),
    "var": take(lambda x: x.var(1), ROWS),
    "std": take(lambda x: x.std(), ROWS),
    "prod": take(lambda x: x.prod(1), ROWS),
    "renorm": take(lambda x: x.renorm(2, 0, 1.0), ROWS),
    "cdist": take(torch.cdist, (64, 8), (32, 8)),
    "pdist": take(f.pdist, (64, 8)),
    "gather": take(lambda x: x.gather(1, classes(x, 64, 3)), ROWS),
    "scatter": take(lambda x: torch.zeros_like(x).scatter(1, classes(x, *ROWS), x), ROWS),
    "take_along_dim": take(lambda x: torch.take_along_dim(x, x.argsort(1), 1), ROWS),
    "roll": take(lambda x: x.roll(3, 1), ROWS),
    "flip": take(lambda x: x.flip(1), ROWS),
    "tril": take(torch.tril, ROWS),
    "diag_embed": take(torch.diag_embed, (8, 64)),
    "einsum": take(lambda x, y: torch.einsum("bij,bjk->ik", x, y), MATRICES, MATRICES),
    "bilinear form": take(lambda x, y: f.bilinear(x, y, torch.ones(8, 64, 64, device=x.device)), ROWS, ROWS),
    "kron": take(torch.kron, (8, 8), (8, 8)),
    "outer": take(torch.outer, (64,), (64,)),
    "tensordot": take(lambda x, y: torch.tensordot(x, y, dims=2), (16, 16, 16), (16, 16, 4)),
    "lerp": take(lambda x, y: torch.lerp(x, y, 0.3), ROWS, ROWS),
    "addcmul": take(torch.addcmul, ROWS, ROWS, ROWS),
    "where": take(lambda x, y: torch.where(x > 0.5, x, y), ROWS, ROWS),
    "cross": take(torch.linalg.cross, (64, 3), (64, 3)),
    "gradient": take(lambda x: torch.gradient(x), ROWS),
    "corrcoef": take(torch.corrcoef, (16, 64)),
    "cov": take(torch.cov, (16, 64)),
    "complex": take(lambda x: torch.view_as_real(torch.view_as_complex(x) * 2), (64, 2)),
    "polar": take(torch.polar, ROWS, ROWS),
    "searchsorted": lambda on: torch.searchsorted(torch.rand(64, 64, device=on), torch.rand(64, 8, device=on)),
    "bucketize": lambda on: torch.bucketize(torch.rand(64, 64, device=on), torch.linspace(0, 1, 9, device=on)),
    "histc": lambda on: torch.histc(torch.rand(64, device=on), 9),
    "multinomial": lambda on: torch.multinomial(torch.rand(4, 64, device=on), 3),
    "embedding": take(lambda x: f.embedding(classes(x, 8, 16), x), ROWS),
}
ACTIVATIONS: dict[str, Work] = {
    function.__name__: take(function, ROWS)
    for function in (f.glu, f.silu, f.mish, f.hardswish, f.elu, f.softplus, f.celu, f.gelu, f.selu, f.logsigmoid)
} | {
    "rrelu": take(lambda x: f.rrelu(x, training=True), ROWS),
    "gumbel_softmax": take(lambda x: f.gumbel_softmax(x, hard=True), ROWS),
}
DISTRIBUTIONS: dict[str, Work] = {
    "Normal": take(lambda x: Normal(x, 1.0).rsample(), ROWS),
    "Categorical": take(lambda x: Categorical(logits=x).log_prob(torch.zeros(64, device=x.device)), ROWS),
    "Gamma": take(lambda x: Gamma(x + 1, 1.0 + x).rsample(), ROWS),
    "Beta": take(lambda x: Beta(x + 1, 1.0 + x).rsample(), ROWS),
    "Dirichlet": take(lambda x: Dirichlet(x + 1).rsample(), ROWS),
    "MultivariateNormal": take(
        lambda x: MultivariateNormal(torch.zeros(16, device=x.device), positive(x)).rsample(), (16, 16)
    ),
}
ALL = LAYERS | IMAGES | LOSSES | NUMBERS | ACTIVATIONS | DISTRIBUTIONS


@pytest.mark.parametrize("name", ALL)
def test_an_operator_takes_the_bytes_of_a_cpu(name: str) -> None:
    assert peak(ALL[name]) == pytest.approx(real_peak(ALL[name]), rel=0.005, abs=256)

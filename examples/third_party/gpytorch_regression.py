"""An exact Gaussian process of GPyTorch, whose covariance grows with the square of the points.

python -m sweeper workload=custom workload.target=gpytorch_regression:run workload.params.points=500,1000
"""

import gpytorch
import torch


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


def run(*, points, dtype, device, phase):
    kind = {"device": device, "dtype": getattr(torch, dtype)}
    with phase("model_load"):
        x = torch.linspace(0, 1, points, **kind)
        y = torch.sin(6 * x)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(**kind)
        model = Process(x, y, likelihood).to(**kind)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    with phase("forward"):
        loss = -marginal(model(x), y)
    with phase("backward"):
        loss.backward()
    return {"loss": loss.item()}

"""Adaptive temperature scaling."""

from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Laplace, Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from simplexcal.calibrators._optim import (
    batches,
    check_n_features,
    default_uniform,
    features_of,
    generator_device,
    minimise,
    mlp,
    raised,
)
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.types import Outputs, Prediction

LATENT = 16
FLOOR = 1e-3  # of every scale and of T
CHUNK = 1024  # inputs at a time in prediction: the class densities need N·K·16 numbers


class AdaptiveTemperatureScaling(Calibrator):
    """softmax(z / T(f)) with T from a class-conditional autoencoder of the features f (Joy et al. 2023, AdaTS).

    An encoder gives q(v|f), normal in 16 dimensions; a decoder p(f|v), Laplace with scale 1; every class c has its own
    normal prior p(v|c). A network takes the K values ln p(v|c) to T = max(softplus, 1e-3). Trained by Adam on

      -E_q ln p(f|v) + KL(q(v|f) ‖ p(v|y)) + cross-entropy of z / T,  v ~ q(v|f), one sample for each input.

    In prediction v is the mean of q(v|f), so the answer is deterministic; the published code samples there too.
    """

    key = "adats"
    abbreviation = "AdaTS"
    title = "adaptive temperature scaling"
    needs_features = True

    def __init__(
        self, n_epochs: int = 100, learning_rate: float = 5e-4, batch_size: int = 128
    ) -> None:
        super().__init__()
        self.n_epochs, self.learning_rate, self.batch_size = n_epochs, learning_rate, batch_size

    def _build(self, n_classes: int, n_features: int | None) -> None:
        d = check_n_features(n_features)
        self.encoder = mlp([d, 1024, 512, 512], nn.ELU)
        self.posterior = mlp([512, 2 * LATENT])  # mean and scale
        self.decoder = mlp([LATENT, 1024, 512, 512, d], nn.ELU)
        self.prior = mlp(
            [n_classes, 2 * LATENT]
        )  # of the one-hot label: mean and scale of each class
        self.head = mlp([n_classes, 128, 128, 1], nn.ELU)

    def temperature(self, outputs: Outputs) -> Tensor:
        """Return T (N,) of each input."""
        chunks = features_of(outputs, self._first).split(CHUNK)
        return torch.cat([self._temperature(self._encode(f).mean) for f in chunks]).to(
            outputs.logits.dtype
        )

    def _fit(self, task: Task) -> None:
        features, labels = features_of(task.outputs, self._first), task.labels
        logits = raised(task.outputs.logits.detach().to(features.dtype))
        default_uniform(self, task.generator)
        stream = batches(len(labels), self.batch_size, task.generator, features.device)

        def loss() -> Tensor:
            rows = next(stream)
            return self._loss(features[rows], logits[rows], labels[rows], task.generator)

        n_steps = self.n_epochs * -(-len(labels) // self.batch_size)
        minimise(loss, self.parameters(), n_steps, self.learning_rate, progress=task.progress)

    def _loss(
        self, features: Tensor, logits: Tensor, labels: Tensor, generator: Generator | None
    ) -> Tensor:
        posterior, prior = self._encode(features), self._prior()
        noise = torch.randn(
            posterior.mean.shape, generator=generator, device=generator_device(generator)
        )
        v = posterior.mean + posterior.stddev * noise.to(features)
        own_prior = Normal(prior.mean[labels], prior.stddev[labels], validate_args=False)
        likelihood = Laplace(self.decoder(v), 1.0, validate_args=False).log_prob(features).sum(-1)
        divergence = kl_divergence(posterior, own_prior).sum(-1)
        negative_elbo: Tensor = (divergence - likelihood).mean()
        return negative_elbo + cross_entropy(logits / self._temperature(v).unsqueeze(-1), labels)

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction(
            (outputs.logits / self.temperature(outputs).unsqueeze(-1)).softmax(-1), outputs.label
        )

    def _encode(self, features: Tensor) -> Normal:
        """Return q(v|f)."""
        return normal(self.posterior(softplus(self.encoder(features))))

    def _prior(self) -> Normal:
        """Return p(v|c) for all K classes."""
        layer = cast(nn.Linear, self.prior[0])
        return normal(layer.weight.T + layer.bias)

    def _temperature(self, v: Tensor) -> Tensor:
        log_density = self._prior().log_prob(v.unsqueeze(-2)).sum(-1)
        return softplus(self.head(log_density)).squeeze(-1).clamp_min(FLOOR)

    @property
    def _first(self) -> nn.Linear:
        return cast(nn.Linear, self.encoder[0])


def normal(parameters: Tensor) -> Normal:
    """Return the normal law whose mean is one half of the last dimension, and whose scale is softplus of the other."""
    mean, scale = parameters.chunk(2, -1)
    return Normal(mean, softplus(scale).clamp_min(FLOOR), validate_args=False)

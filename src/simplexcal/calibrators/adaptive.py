"""Adaptive temperature scaling."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Laplace, Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from simplexcal._chunking import map_rows
from simplexcal.calibrators._optim import (
    FAR,
    default_uniform,
    divide_logits,
    floor_logits,
    generator_device,
    minimise,
    mlp,
    row_batches,
)
from simplexcal.calibrators.base import Calibrator, Task, check_n_features, features_for
from simplexcal.types import Outputs, Prediction

SMALLEST = 1e-3  # of every scale and of T
# A prediction holds so many numbers for each input at least: in small chunks the class densities,
# n_latent · K numbers for each input, fit a cache.
MIN_WIDTH = 1024


class AdaptiveTemperatureScaling(Calibrator):
    """softmax(z / T(f)), T from a class-conditional autoencoder (Joy et al. 2023, AdaTS).

    An encoder gives q(v|f) for the features f, normal in a latent space; a decoder p(f|v), Laplace
    with scale 1; every class c has its own normal prior p(v|c). A network takes the K values
    ln p(v|c) to T = max(softplus, 1e-3). Trained by Adam on

      -E_q ln p(f|v) + KL(q(v|f) ‖ p(v|y)) + cross-entropy of z / T,  v ~ q(v|f),

    with one v for each input.

    In prediction v is the mean of q(v|f), so the result is deterministic; the published code
    samples there too.

    Args:
        n_epochs: Passes through the data.
        learning_rate: Learning rate of Adam.
        batch_size: Inputs in a step.
        n_latent: Dimensions of the latent space.
        widths: Hidden widths of encoder and decoder.
        temperature_widths: Hidden widths of the network that gives T.
    """

    key = "adats"
    abbreviation = "AdaTS"
    title = "adaptive temperature scaling"
    needs_features = True

    def __init__(
        self,
        n_epochs: int = 100,
        learning_rate: float = 5e-4,
        batch_size: int = 128,
        n_latent: int = 16,
        widths: Sequence[int] = (1024, 512, 512),
        temperature_widths: Sequence[int] = (128, 128),
    ) -> None:
        super().__init__()
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_latent = n_latent
        self.widths = tuple(widths)
        self.temperature_widths = tuple(temperature_widths)

    def temperature(self, outputs: Outputs) -> Tensor:
        """Return T (N,) of each input.

        Args:
            outputs: Outputs of the network of the fit, with features.
        """
        features = features_for(self._first, outputs)
        width = max(MIN_WIDTH, self.n_latent * outputs.n_classes)

        def of_rows(rows: Tensor) -> Tensor:
            return self._temperature(self._encode(rows).mean)

        return map_rows(of_rows, features, width=width).to(outputs.logits.dtype)

    def _build(self, n_classes: int, n_features: int | None) -> None:
        d = check_n_features(n_features)
        code = 2 * self.n_latent  # mean and scale
        self.encoder = mlp([d, *self.widths], nn.ELU)
        self.posterior = mlp([self.widths[-1], code])
        self.decoder = mlp([self.n_latent, *self.widths, d], nn.ELU)
        self.prior = mlp([n_classes, code])  # of the one-hot label
        self.head = mlp([n_classes, *self.temperature_widths, 1], nn.ELU)

    def _fit(self, task: Task) -> None:
        features = features_for(self._first, task.outputs)
        labels = task.labels
        logits = floor_logits(task.outputs.logits.detach())
        largest = logits.amax(-1, keepdim=True)
        if bool((largest.abs() > FAR).any()):  # or the division would round differences away
            logits = logits - largest
        logits = logits.to(features.dtype)
        default_uniform(self, task.generator)

        def loss(rows: Tensor, noise: Tensor) -> Tensor:
            return self._loss(features[rows], logits[rows], labels[rows], noise)

        minimise(
            loss,
            self._batches(features, task.generator),
            self.parameters(),
            n_steps=self.n_epochs * -(-len(labels) // self.batch_size),
            learning_rate=self.learning_rate,
            progress=task.progress,
            cuda_graph=False,
        )

    def _batches(
        self, features: Tensor, generator: Generator | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows and standard normal noise (n, n_latent) for them."""
        n = len(features)
        device = generator_device(generator)
        for rows in row_batches(n, self.batch_size, generator, features.device):
            shape = (len(rows), self.n_latent)
            noise = torch.randn(shape, generator=generator, device=device)
            yield rows, noise.to(features)

    def _loss(
        self,
        features: Tensor,
        logits: Tensor,
        labels: Tensor,
        noise: Tensor,
    ) -> Tensor:
        posterior = self._encode(features)
        prior = self._prior()
        v = posterior.mean + posterior.stddev * noise
        own_prior = Normal(prior.mean[labels], prior.stddev[labels], validate_args=False)
        likelihood = Laplace(self.decoder(v), 1.0, validate_args=False).log_prob(features).sum(-1)
        divergence = kl_divergence(posterior, own_prior).sum(-1)
        negative_elbo: Tensor = (divergence - likelihood).mean()
        return negative_elbo + cross_entropy(logits / self._temperature(v).unsqueeze(-1), labels)

    def _predict(self, outputs: Outputs) -> Prediction:
        scaled = divide_logits(outputs.logits, self.temperature(outputs).unsqueeze(-1))
        return Prediction(scaled.softmax(-1), outputs.label)

    def _encode(self, features: Tensor) -> Normal:
        """Return q(v|f)."""
        return _normal(self.posterior(softplus(self.encoder(features))))

    def _prior(self) -> Normal:
        """Return p(v|c) for all K classes."""
        layer = cast(nn.Linear, self.prior[0])
        return _normal(layer.weight.T + layer.bias)

    def _temperature(self, v: Tensor) -> Tensor:
        log_density = self._prior().log_prob(v.unsqueeze(-2)).sum(-1)
        return softplus(self.head(log_density)).squeeze(-1).clamp_min(SMALLEST)

    @property
    def _first(self) -> nn.Linear:
        return cast(nn.Linear, self.encoder[0])


def _normal(parameters: Tensor) -> Normal:
    """Return the normal distribution of which the first half is the mean, the other the scale."""
    mean, scale = parameters.chunk(2, -1)
    return Normal(mean, softplus(scale).clamp_min(SMALLEST), validate_args=False)

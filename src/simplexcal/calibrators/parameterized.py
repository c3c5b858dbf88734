"""Parameterized temperature scaling."""

from collections.abc import Iterator, Sequence
from typing import cast

from torch import Tensor, nn

from simplexcal.calibrators._optim import floor_logits, glorot_uniform, minimise, mlp, row_batches
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.types import Outputs, Prediction

MIN_TEMPERATURE = 1e-12
MAX_TEMPERATURE = 1e12
MAX_DRAWS = 100  # of the first weights


class ParameterizedTemperatureScaling(Calibrator):
    """softmax(z / T(z)) with T a small network of the largest logits (Tomani et al. 2022, PTS).

    T = clip(|t|, 1e-12, 1e12), where t is the output of a ReLU network for the largest logits,
    clipped and sorted in descending order. Trained by Adam on the mean squared error to the one-hot
    label. Only the network's input is clipped: the softmax takes the logits as they are, so that no
    two classes become equal.

    Args:
        n_steps: Steps of Adam.
        learning_rate: Learning rate of Adam.
        batch_size: Inputs in a step.
        n_largest: Largest logits that the network sees; with fewer classes, all of them.
        widths: Hidden widths of the network.
        max_logit: Logits are clipped to ±``max_logit`` for the network.
    """

    key = "pts"
    abbreviation = "PTS"
    title = "parameterized temperature scaling"

    def __init__(
        self,
        n_steps: int = 100_000,
        learning_rate: float = 5e-5,
        batch_size: int = 1000,
        n_largest: int = 10,
        widths: Sequence[int] = (5, 5),
        max_logit: float = 100.0,
    ) -> None:
        super().__init__()
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_largest = n_largest
        self.widths = tuple(widths)
        self.max_logit = max_logit

    def temperature(self, outputs: Outputs) -> Tensor:
        """Return T (N,) of each input.

        Args:
            outputs: Outputs of the network of the fit.
        """
        return self._temperature(self._largest(outputs.logits)).to(outputs.logits.dtype)

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.network = mlp([min(n_classes, self.n_largest), *self.widths, 1])

    def _fit(self, task: Task) -> None:
        labels = task.labels
        logits = floor_logits(task.outputs.logits.detach().to(self._first.weight.dtype))
        largest = self._largest(logits)
        self._initialise(largest, task)

        def batches() -> Iterator[tuple[Tensor]]:
            n = len(labels)
            for rows in row_batches(n, self.batch_size, task.generator, logits.device):
                yield (rows,)

        def loss(rows: Tensor) -> Tensor:
            probs = scaled_softmax(logits[rows], self._temperature(largest[rows]))
            return squared_error(probs, labels[rows])

        minimise(
            loss,
            batches(),
            self.parameters(),
            n_steps=self.n_steps,
            learning_rate=self.learning_rate,
            progress=task.progress,
            cuda_graph=False,
        )

    def _initialise(self, largest: Tensor, task: Task) -> None:
        """Draw the first weights, again where t = 0 for every input.

        Such a network has no gradient and never learns. About one draw in fifty is of this kind.
        """
        for _ in range(MAX_DRAWS):
            glorot_uniform(self.network, task.generator)
            if self.network(largest).any():
                break

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction(scaled_softmax(outputs.logits, self.temperature(outputs)), outputs.label)

    def _temperature(self, largest: Tensor) -> Tensor:
        t: Tensor = self.network(largest)
        return t.squeeze(-1).abs().clamp(MIN_TEMPERATURE, MAX_TEMPERATURE)

    def _largest(self, logits: Tensor) -> Tensor:
        """Return the largest logits, clipped and in descending order."""
        clipped = logits.to(self._first.weight.dtype).clamp(-self.max_logit, self.max_logit)
        return clipped.topk(self._first.in_features, dim=-1).values

    @property
    def _first(self) -> nn.Linear:
        return cast(nn.Linear, self.network[0])


def scaled_softmax(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return softmax(z / T); the largest logit is subtracted first, so nothing overflows.

    Args:
        logits: z, (N, K).
        temperature: T of each row, (N,).
    """
    below = logits - logits.amax(-1, keepdim=True)
    return (below / temperature.unsqueeze(-1)).softmax(-1)


def squared_error(probs: Tensor, labels: Tensor) -> Tensor:
    """Return mean (p - y)² over inputs and classes, y the one-hot label.

    Σ_k (p_k - y_k)² = Σ_k p_k² - 2 p_y + 1.

    Args:
        probs: (N, K).
        labels: (N,).
    """
    at_label = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    errors = probs.square().sum(-1) - 2 * at_label + 1
    return errors.mean() / probs.shape[1]

"""Parameterized temperature scaling."""

from typing import cast

from torch import Tensor, nn

from simplexcal.calibrators._optim import batches, glorot_uniform, minimise, mlp, raised
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.types import Outputs, Prediction

CLIP = 100.0  # |z| at most, in the network's input
TOP = 10  # the largest logits, which the network sees
WIDTHS = (5, 5)
BOUNDS = (1e-12, 1e12)  # of T
DRAWS = 100  # of the first weights, at most


class ParameterizedTemperatureScaling(Calibrator):
    """softmax(z / T(z)) with T a small network of the ten largest logits (Tomani et al. 2022, PTS).

    T = clip(|t|, 1e-12, 1e12), where t is the output of 10 → 5 → 5 → 1 (ReLU) for the logits clipped to ±100 and sorted
    in descending order; with K < 10 classes, of all K. Trained by Adam on the mean squared error to the one-hot label.
    Only the network's input is clipped: the softmax takes the logits as they are, so that no two classes become equal.
    """

    key = "pts"
    abbreviation = "PTS"
    title = "parameterized temperature scaling"

    def __init__(
        self, n_steps: int = 100_000, learning_rate: float = 5e-5, batch_size: int = 1000
    ) -> None:
        super().__init__()
        self.n_steps, self.learning_rate, self.batch_size = n_steps, learning_rate, batch_size

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.network = mlp([min(n_classes, TOP), *WIDTHS, 1])

    def temperature(self, outputs: Outputs) -> Tensor:
        """Return T (N,) of each input."""
        return self._temperature(self._top(outputs.logits)).to(outputs.logits.dtype)

    def _fit(self, task: Task) -> None:
        logits, labels = (
            raised(task.outputs.logits.detach().to(self._first.weight.dtype)),
            task.labels,
        )
        top = self._top(logits)
        self._initialise(top, task)
        stream = batches(len(labels), self.batch_size, task.generator, logits.device)

        def loss() -> Tensor:
            rows = next(stream)
            return squared_error(
                scaled_softmax(logits[rows], self._temperature(top[rows])), labels[rows]
            )

        minimise(loss, self.parameters(), self.n_steps, self.learning_rate, progress=task.progress)

    def _initialise(self, top: Tensor, task: Task) -> None:
        """Draw the first weights, again where t = 0 for every input: such a network has no gradient and never learns.

        About one draw in fifty is of this kind.
        """
        for _ in range(DRAWS):
            glorot_uniform(self.network, task.generator)
            if self.network(top).any():
                break

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction(scaled_softmax(outputs.logits, self.temperature(outputs)), outputs.label)

    def _temperature(self, top: Tensor) -> Tensor:
        t: Tensor = self.network(top)
        return t.squeeze(-1).abs().clamp(*BOUNDS)

    def _top(self, logits: Tensor) -> Tensor:
        clipped = logits.to(self._first.weight.dtype).clamp(-CLIP, CLIP)
        return clipped.topk(self._first.in_features, dim=-1).values

    @property
    def _first(self) -> nn.Linear:
        return cast(nn.Linear, self.network[0])


def scaled_softmax(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return softmax(z / T), one T for each row; the largest logit is subtracted first, so nothing overflows."""
    return ((logits - logits.amax(-1, keepdim=True)) / temperature.unsqueeze(-1)).softmax(-1)


def squared_error(probs: Tensor, labels: Tensor) -> Tensor:
    """Return mean (p - y)² over inputs and classes, y the one-hot label: Σ_k (p_k - y_k)² = Σ_k p_k² - 2 p_y + 1."""
    at_label = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return (probs.square().sum(-1) - 2 * at_label + 1).mean() / probs.shape[1]

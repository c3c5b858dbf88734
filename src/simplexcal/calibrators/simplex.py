"""Simplex Temperature Scaling."""

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor

from simplexcal.calibrators._branch import Branch, Pool, negative_log_density, pools
from simplexcal.calibrators._head import Head
from simplexcal.calibrators._training import check_n_features, minimise
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.calibrators.temperature import fit_log_temperature
from simplexcal.concrete import Concrete
from simplexcal.metrics import ece
from simplexcal.mixup import Mixup
from simplexcal.records import Outputs, Prediction

PAPER_BETAS = tuple(round(0.1 * i, 1) for i in range(2, 21))
PAPER_WIDTHS = (1024, 1024, 512, 256)


class SimplexTemperatureScaling(Calibrator):
    """Logits become the location of a Concrete distribution, whose temperature λ(x) is learned (Esaki et al. 2024).

    Two sources of λ, for two questions. How probable is each class? A head on logit statistics gives τ(x) and λ(x),
    trained by the exact likelihood E[π_y] of the real labels. How uncertain is the input? A branch on the features
    gives λ(x), trained on Multi-Mixup samples; Concrete(logits, λ) then gives both uncertainties. Without ``mixup`` in
    ``fit`` there is no branch, and the head answers both.

    ``head=False`` is the paper's method: the branch answers both questions. See ``paper``.
    """

    uses_mixup = True
    log_temperature: Tensor
    beta: Tensor

    def __init__(
        self,
        betas: Sequence[float] = (4.0,),
        widths: Sequence[int] = (128, 64),
        n_steps: int = 1000,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        weight_decay: float = 5e-4,
        pool_size: int = 10_000,
        fresh: bool = False,
        head: bool = True,
    ) -> None:
        super().__init__()
        if not betas or min(betas) <= 0:
            raise ValueError(f"`betas` must be positive numbers; got {tuple(betas)}. The paper tries 0.2 to 2.0.")
        self.betas, self.widths, self.n_steps = tuple(betas), tuple(widths), n_steps
        self.batch_size, self.learning_rate, self.weight_decay = batch_size, learning_rate, weight_decay
        self.pool_size, self.fresh, self.head = pool_size, fresh, head

    @classmethod
    def paper(cls) -> Self:
        """Return the paper's method to the letter: 19 values of β, 25 000 steps of 100 fresh mixes, β by ECE.

        Only the mean differs: it is exact here. For the rest of the letter, fit it with InputMixup's defaults.
        """
        return cls(PAPER_BETAS, PAPER_WIDTHS, 25_000, 100, fresh=True, head=False)

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.register_buffer("log_temperature", torch.zeros(()))
        self.register_buffer("beta", torch.zeros(()))  # 0: no branch
        self.likelihood_head = Head(n_classes) if self.head else None
        self.branch = None if n_features is None else Branch(1, n_features, self.widths)

    def _fit(self, task: Task) -> None:
        if self.likelihood_head is not None:
            logits = task.outputs.logits
            self.log_temperature.fill_(fit_log_temperature(logits, task.labels))
            self.likelihood_head.fit(self._scaled(logits), task.labels, task.generator, task.progress)
        if task.mixup is not None:
            self._fit_branch(task, task.mixup)
        elif self.likelihood_head is None:
            raise ValueError("`mixup` must be given for a fit without the head. Pass InputMixup or FeatureMixup.")

    def _fit_branch(self, task: Task, mixup: Mixup) -> None:
        heads = Branch(len(self.betas), check_n_features(task.outputs.n_features), self.widths)
        heads.to(task.outputs.logits.device).initialise(task.generator)
        stream = pools(mixup, self.betas, self.pool_size, self.batch_size, task.generator, fresh=self.fresh)
        minimise(
            lambda *batch: negative_log_density(heads, Pool(*batch)).sum(),
            heads.parameters(),
            self.n_steps,
            self.learning_rate,
            self.weight_decay,
            task.progress,
            stream=stream,
        )
        best = _smallest_ece(heads, task) if len(self.betas) > 1 else 0
        self.branch = Branch(1, heads.n_features, self.widths).to(task.outputs.logits.device)
        self.branch.load_state_dict(heads.take(best))
        self.beta.fill_(self.betas[best])

    def concrete(self, outputs: Outputs) -> Concrete:
        """Return the distribution that gives the uncertainties: the branch's, or the head's where there is none."""
        if self.branch is not None and self.beta > 0:
            return _concrete(outputs, self.branch)[0]
        return self._likely(outputs)

    def _predict(self, outputs: Outputs) -> Prediction:
        m = self.concrete(outputs).moments()
        probs = m.mean if self.likelihood_head is None or self.beta == 0 else self._likely(outputs).mean
        return Prediction(probs, outputs.label, m.expected_entropy, m.entropy, m.mutual_information)

    def _likely(self, outputs: Outputs) -> Concrete:
        """Return the distribution whose mean has the best likelihood: the head's."""
        head = cast(Head, self.likelihood_head)
        likely: Concrete = head(self._scaled(outputs.logits))
        return likely

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits / self.log_temperature.exp()


def _concrete(outputs: Outputs, branch: Branch) -> list[Concrete]:
    """Return the distribution that each head of the branch gives."""
    if outputs.features is None or outputs.n_features != branch.n_features:
        raise ValueError(
            f"`features` must have the {branch.n_features} columns of the fit; got {outputs.n_features}. "
            "Take them from the same layer of the same network."
        )
    temperatures = branch(outputs.features).to(outputs.logits)
    return [Concrete(outputs.logits, temperature, validate_args=False) for temperature in temperatures]


@torch.no_grad()
def _smallest_ece(heads: Branch, task: Task) -> int:
    """Return which head has the smallest ECE on the validation set, with 10 bins: the paper's rule."""
    correct = task.outputs.label == task.labels
    errors = [ece(d.mean.amax(-1), correct) for d in _concrete(task.outputs, heads)]
    return int(torch.stack(errors).nan_to_num(torch.inf).argmin())

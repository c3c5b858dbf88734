"""What the methods with a branch share: it learns from Multi-Mixup samples, for several values of β side by side."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor

from simplexcal._chunking import in_chunks
from simplexcal.calibrators._branch_network import Branch, Pool, pools
from simplexcal.calibrators._optim import check_n_features, minimise
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.metrics import ece
from simplexcal.mixup import Mixup
from simplexcal.types import Outputs

PAPER_BETAS = tuple(round(0.1 * i, 1) for i in range(2, 21))
PAPER_WIDTHS = (1024, 1024, 512, 256)


class BranchCalibrator(Calibrator):
    """A method with one head of a branch for each β; the one with the smallest ECE stays (the paper's Appendix B).

    It implements ``_losses`` and ``_means``.
    """

    uses_mixup = True
    beta: Tensor
    branch: Branch | None

    def __init__(
        self,
        betas: Sequence[float],
        widths: Sequence[int],
        n_steps: int,
        batch_size: int,
        learning_rate: float,
        weight_decay: float,
        pool_size: int,
        resample: bool,
        lr_decay: bool,
    ) -> None:
        super().__init__()
        betas = tuple(map(float, betas))
        if not betas or min(betas) <= 0:
            raise ValueError(
                f"`betas` must be positive numbers; got {betas}. The paper tries 0.2 to 2.0."
            )
        self.betas, self.widths, self.n_steps = betas, tuple(widths), n_steps
        self.batch_size, self.learning_rate, self.weight_decay = (
            batch_size,
            learning_rate,
            weight_decay,
        )
        self.pool_size, self.resample, self.lr_decay = pool_size, resample, lr_decay
        self.tried: list[
            dict[str, Tensor]
        ] = []  # the state of each β's head, of the last fit; not saved

    def each_beta(self) -> dict[float, Self]:
        """Return a fitted calibrator for each β that the fit has tried, not only for the one it chose."""
        if self.n_classes is None or not self.tried:
            raise ValueError(
                "There is no head for each β: they are there after a fit with mixup, and a file keeps the chosen one "
                "alone. Fit again."
            )
        return {
            beta: self._with(beta, head) for beta, head in zip(self.betas, self.tried, strict=True)
        }

    def _with(self, beta: float, head: dict[str, Tensor]) -> Self:
        settings: dict[str, Any] = {**self.settings, "betas": (beta,)}
        one = type(self)(**settings)
        one.build(int(self.n_classes or 0), self.n_features)
        state = {**self.state_dict(), **{f"branch.{name}": value for name, value in head.items()}}
        one.to(self.beta.device).load_state_dict(
            {**state, "beta": torch.full_like(self.beta, beta)}
        )
        one.tried = [head]
        return one.requires_grad_(False).eval()

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.register_buffer("beta", torch.zeros(()))  # 0: no branch
        self.branch = None if n_features is None else Branch(1, n_features, self.widths)
        self.tried = []

    def _fit_branch(self, task: Task, mixup: Mixup) -> None:
        device = task.outputs.logits.device
        heads = Branch(len(self.betas), check_n_features(task.outputs.n_features), self.widths).to(
            device
        )
        heads.initialise(task.generator)
        stream = pools(
            mixup,
            self.betas,
            self.pool_size,
            self.batch_size,
            task.generator,
            resample=self.resample,
        )
        minimise(
            lambda *batch: self._losses(heads, Pool(*batch)).sum(),
            heads.parameters(),
            self.n_steps,
            self.learning_rate,
            self.weight_decay,
            task.progress,
            self.lr_decay,
            stream,
        )
        best = self._smallest_ece(heads, task) if len(self.betas) > 1 else 0
        self.tried = [heads.take(i) for i in range(len(self.betas))]
        self.branch = Branch(1, heads.n_features, self.widths).to(device)
        self.branch.load_state_dict(self.tried[best])
        self.beta.fill_(self.betas[best])

    @torch.no_grad()
    def _smallest_ece(self, heads: Branch, task: Task) -> int:
        """Return which head has the smallest ECE on the validation set, with 10 bins: the paper's rule."""

        def confidence(logits: Tensor, features: Tensor) -> tuple[Tensor]:
            return (
                torch.stack(
                    [mean.amax(-1) for mean in self._means(heads, Outputs(logits, features))], -1
                ),
            )

        logits, features = task.outputs.logits, cast(Tensor, task.outputs.features)
        (found,) = in_chunks(confidence, logits, features, width=logits.shape[1])
        errors = [ece(column, task.outputs.label == task.labels) for column in found.T]
        return int(torch.stack(errors).nan_to_num(torch.inf).argmin())

    @abstractmethod
    def _losses(self, heads: Branch, batch: Pool) -> Tensor:
        """Return the mean loss of each head on its mixed samples (H,)."""

    @abstractmethod
    def _means(self, heads: Branch, outputs: Outputs) -> Iterable[Tensor]:
        """Yield the probabilities (N, K) that each head gives."""

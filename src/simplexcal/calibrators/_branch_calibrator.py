"""The base of methods with a branch that learns from mixup samples, for several β at once."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor

from simplexcal._chunking import map_rows
from simplexcal.calibrators._branch_network import Branch, MemberBatch, mixup_batches
from simplexcal.calibrators._optim import minimise, tensor_cores
from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.metrics import ece
from simplexcal.mixup import Mixup, n_logit_features
from simplexcal.types import Outputs

PAPER_BETAS = tuple(round(0.1 * i, 1) for i in range(2, 21))
PAPER_WIDTHS = (1024, 1024, 512, 256)
PAPER_BINS = 10


class BranchCalibrator(Calibrator):
    """A method with a branch: one ensemble member is trained for each β.

    The member with the smallest ECE on the calibration data is kept (the paper's Appendix B). A
    method implements ``_losses`` and ``_means``.

    Args:
        betas: Dirichlet concentrations of the mixup weights.
        widths: Hidden widths of the branch.
        n_steps: Steps of Adam.
        batch_size: Mixup samples in a step, for each β.
        learning_rate: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        pool_size: Mixup samples drawn for each β.
        resample: Draw new mixup samples whenever the pool is used up.
        lr_decay: Decay the learning rate to 0 along a cosine.
        n_networks: Networks of each member, whose geometric mean is λ.
        zero_last_layer: Start the last layer of each network at 0, not at random.
    """

    uses_mixup = True
    beta: Tensor  # of the member that was kept
    branch: Branch

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
        n_networks: int = 1,
        zero_last_layer: bool = False,
    ) -> None:
        super().__init__()
        self.betas = tuple(map(float, betas))
        if not self.betas or min(self.betas) <= 0:
            raise ValueError(
                f"`betas` must be positive numbers; got {self.betas}. The paper tries 0.2 to 2.0."
            )
        if n_networks < 1:
            raise ValueError(f"`n_networks` must be at least 1; got {n_networks}.")
        self.n_networks = n_networks
        self.zero_last_layer = zero_last_layer
        self.widths = tuple(widths)
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.pool_size = pool_size
        self.resample = resample
        self.lr_decay = lr_decay
        # The state of each member after the last fit. It is not saved.
        self.member_states: list[dict[str, Tensor]] = []

    def each_beta(self) -> dict[float, Self]:
        """Return a fitted calibrator for each β that the fit has tried."""
        if self.n_classes is None or not self.member_states:
            raise ValueError(
                "There is no ensemble member for each β: they are there after a fit, and a file "
                "keeps the chosen one alone. Fit again."
            )
        members = zip(self.betas, self.member_states, strict=True)
        return {beta: self._with_member(beta, state) for beta, state in members}

    @property
    def reads_features(self) -> bool:
        """Whether the branch computes λ(x) from features, and not from logits."""
        return self.n_features is not None

    def _with_member(
        self,
        beta: float,
        member: dict[str, Tensor],
    ) -> Self:
        settings: dict[str, Any] = {**self.settings, "betas": (beta,)}
        one = type(self)(**settings)
        one.build(int(self.n_classes or 0), self.n_features)
        branch = {f"branch.{name}": value for name, value in member.items()}
        state = {**self.state_dict(), **branch, "beta": torch.full_like(self.beta, beta)}
        one.to(self.beta.device).load_state_dict(state)
        one.member_states = [member]
        return one.requires_grad_(False).eval()

    def _build(self, n_classes: int, n_features: int | None) -> None:
        self.register_buffer("beta", torch.zeros(()))
        self.branch = self._make_branch(1, n_features or n_logit_features(n_classes))
        self.member_states = []

    def _make_branch(self, n_members: int, n_features: int) -> Branch:
        return Branch(n_members, n_features, self.widths, self.n_networks)

    def _row_width(self, outputs: Outputs) -> int:
        largest = max(*self.widths, 1)  # The features are read where they are.
        return super()._row_width(outputs) + self.n_networks * largest

    def _fit_branch(self, task: Task, mixup: Mixup) -> None:
        """Train the members on mixup samples, and keep one."""
        device = task.outputs.logits.device
        features = cast(Tensor, task.outputs.features)
        members = self._make_branch(len(self.betas), features.shape[1]).to(device)
        members.initialise(task.generator, zero_last_layer=self.zero_last_layer)
        batches = mixup_batches(
            mixup,
            self.betas,
            self.pool_size,
            self.batch_size,
            task.generator,
            resample=self.resample,
        )
        with tensor_cores(device):
            minimise(
                lambda *batch: self._losses(members, MemberBatch(*batch)).sum(),
                batches,
                members.parameters(),
                n_steps=self.n_steps,
                learning_rate=self.learning_rate,
                weight_decay=self.weight_decay,
                lr_decay=self.lr_decay,
                progress=task.progress,
            )
        best = 0
        if len(self.betas) > 1:
            best = self._smallest_ece(members, task)
        self.member_states = [members.member_state(i) for i in range(len(self.betas))]
        self.branch.load_state_dict(self.member_states[best])
        self.beta.fill_(self.betas[best])

    @torch.no_grad()
    def _smallest_ece(self, members: Branch, task: Task) -> int:
        """Return which member has the smallest ECE with 10 bins: the paper's rule."""

        def confidences(logits: Tensor, features: Tensor) -> Tensor:
            means = self._means(members, Outputs(logits, features))
            return torch.stack([mean.amax(-1) for mean in means], -1)

        logits = task.outputs.logits
        features = cast(Tensor, task.outputs.features)
        found = map_rows(confidences, logits, features, width=logits.shape[1])
        correct = task.outputs.label == task.labels
        errors = [ece(confidence, correct, PAPER_BINS) for confidence in found.T]
        return int(torch.stack(errors).nan_to_num(torch.inf).argmin())

    @abstractmethod
    def _losses(self, members: Branch, batch: MemberBatch) -> Tensor:
        """Return the loss of each member on its mixup samples (H,)."""

    @abstractmethod
    def _means(
        self,
        members: Branch,
        outputs: Outputs,
    ) -> Iterable[Tensor]:
        """Yield the probabilities (N, K) that each member gives."""

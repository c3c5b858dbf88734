"""The network without calibration."""

from simplexcal.calibrators.base import Calibrator, Task
from simplexcal.types import Outputs, Prediction


class Uncalibrated(Calibrator):
    """softmax(z): the network's own probabilities, for comparison. It needs no fit."""

    key = "none"
    abbreviation = "Uncalibrated"
    title = "the network as it is"

    def _build(
        self,
        n_classes: int,
        n_features: int | None,
    ) -> None: ...

    def _check_fitted(self, outputs: Outputs) -> None:
        if self.n_classes is not None:
            super()._check_fitted(outputs)

    def _warn_of_weak_data(self, task: Task) -> None: ...

    def _fit(self, task: Task) -> None: ...

    def _predict(self, outputs: Outputs) -> Prediction:
        return Prediction(outputs.logits.softmax(-1), outputs.label)

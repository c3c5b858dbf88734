"""Lightning: a callback that calibrates a network at the end of its training."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from simplexcal._validation import warn_caller
from simplexcal.calibrators import Calibrator
from simplexcal.model import CalibratedModel, calibrate


class CalibrationCallback(Callback):
    """Calibrates the module after `Trainer.fit`, on its validation data or on others.

    The module's `forward` must return logits, and a batch be what `simplexcal.calibrate` takes,
    such as (inputs, labels). The module is calibrated as it is at the end of the training, in the
    main process; the trainer's best checkpoint may be another one.

    Args:
        data: Held-out labelled data; None: the trainer's validation data. If these have chosen the
            checkpoint or stopped the training, the calibrator is a little too confident.
        method: A key of CALIBRATORS, or a calibrator.
        path: File to save the calibrated model to; None: it is not saved.
        **settings: Other arguments of `simplexcal.calibrate`.

    Attributes:
        model: The calibrated model; None before the end of a fit.
    """

    def __init__(
        self,
        data: Any = None,
        method: str | Calibrator = "sts",
        path: str | Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.data = data
        self.method = method
        self.path = path
        self.settings = settings
        self.model: CalibratedModel | None = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate the module; the trainer calls this.

        Args:
            trainer: The trainer.
            pl_module: The trained module.

        Raises:
            ValueError: If there are no data.
        """
        if not trainer.is_global_zero:
            return
        data = self.data
        if data is None:
            data = _validation_data(trainer)
        self.model = calibrate(pl_module, data, self.method, **self.settings)
        if self.path is not None:
            self.model.save(self.path)


def _validation_data(trainer: Trainer) -> Any:
    """Return the trainer's one validation DataLoader."""
    data = trainer.val_dataloaders
    if isinstance(data, list | tuple) and len(data) == 1:
        data = data[0]
    if data is None or isinstance(data, list | tuple | dict):
        count = 0
        if data is not None:
            count = len(data)
        raise ValueError(
            f"`data` must be given where there is not one validation DataLoader; found {count}. "
            "Pass CalibrationCallback(data=...)."
        )
    if trainer.world_size > 1:
        warn_caller(
            "The validation data of this process are a part of the whole, since each of the "
            f"{trainer.world_size} processes has its own. Pass CalibrationCallback(data=...) to "
            "calibrate on all."
        )
    return data

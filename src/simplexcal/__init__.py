"""Calibrate a trained classifier's confidence on the probability simplex.

No prediction changes: the label is the network's own. The two methods that change predictions, for
comparison, say so.
"""

from simplexcal._validation import NotFittedError
from simplexcal._version import __version__
from simplexcal.accuracy_estimation import AccuracyEstimate, estimate_accuracy
from simplexcal.backbone import Backbone, extract
from simplexcal.calibrators import (
    CALIBRATORS,
    AdaptiveTemperatureScaling,
    Calibrator,
    DiagonalIntraOrderPreserving,
    DirichletCalibration,
    DirichletTemperatureScaling,
    EnsembleTemperatureScaling,
    IsotonicCalibration,
    ParameterizedTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
    Uncalibrated,
    VectorScaling,
)
from simplexcal.card import CalibrationCard
from simplexcal.comparison import Comparison
from simplexcal.concrete import Concrete, Moments
from simplexcal.dense_evaluation import DenseEvaluation, evaluate_dense
from simplexcal.drift import Drift
from simplexcal.evaluation import Evaluation, OODEvaluation, evaluate, evaluate_ood, tabulate
from simplexcal.mixup import FeatureMixup, InputMixup, LogitMixup
from simplexcal.model import CalibratedModel, calibrate, load, load_calibrator
from simplexcal.monitoring import MonitorResult, monitor
from simplexcal.thresholds import Threshold, find_threshold
from simplexcal.types import Outputs, Prediction

__all__ = [  # noqa: RUF022 - in groups
    # The distribution.
    "Concrete",
    "Moments",
    # The network: one call, or step by step.
    "calibrate",
    "load",
    "CalibratedModel",
    "CalibrationCard",
    "Backbone",
    "extract",
    "Outputs",
    "InputMixup",
    "FeatureMixup",
    "LogitMixup",
    # The methods.
    "CALIBRATORS",
    "Calibrator",
    "Uncalibrated",
    "TemperatureScaling",
    "EnsembleTemperatureScaling",
    "ParameterizedTemperatureScaling",
    "AdaptiveTemperatureScaling",
    "DirichletTemperatureScaling",
    "SimplexTemperatureScaling",
    "DiagonalIntraOrderPreserving",
    "IsotonicCalibration",
    "VectorScaling",
    "DirichletCalibration",
    "load_calibrator",
    "NotFittedError",
    # The evaluation of predictions.
    "Prediction",
    "Evaluation",
    "OODEvaluation",
    "Comparison",
    "evaluate",
    "DenseEvaluation",
    "evaluate_dense",
    "evaluate_ood",
    "tabulate",
    # Which predictions to accept.
    "find_threshold",
    "Threshold",
    # The predictions without labels, after deployment.
    "estimate_accuracy",
    "AccuracyEstimate",
    "monitor",
    "MonitorResult",
    "Drift",
    # The library.
    "__version__",
]

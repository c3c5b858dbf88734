"""Calibrate a trained classifier's confidence on the probability simplex, without changing one prediction."""

from simplexcal._validation import NotFittedError as NotFittedError
from simplexcal._version import __version__ as __version__
from simplexcal.backbone import Backbone as Backbone
from simplexcal.backbone import extract as extract
from simplexcal.calibrators import CALIBRATORS as CALIBRATORS
from simplexcal.calibrators import AdaptiveTemperatureScaling as AdaptiveTemperatureScaling
from simplexcal.calibrators import Calibrator as Calibrator
from simplexcal.calibrators import DirichletTemperatureScaling as DirichletTemperatureScaling
from simplexcal.calibrators import EnsembleTemperatureScaling as EnsembleTemperatureScaling
from simplexcal.calibrators import (
    ParameterizedTemperatureScaling as ParameterizedTemperatureScaling,
)
from simplexcal.calibrators import SimplexTemperatureScaling as SimplexTemperatureScaling
from simplexcal.calibrators import TemperatureScaling as TemperatureScaling
from simplexcal.calibrators import Uncalibrated as Uncalibrated
from simplexcal.concrete import Concrete as Concrete
from simplexcal.concrete import Moments as Moments
from simplexcal.evaluation import Evaluation as Evaluation
from simplexcal.evaluation import OODEvaluation as OODEvaluation
from simplexcal.evaluation import evaluate as evaluate
from simplexcal.evaluation import evaluate_ood as evaluate_ood
from simplexcal.evaluation import tabulate as tabulate
from simplexcal.mixup import FeatureMixup as FeatureMixup
from simplexcal.mixup import InputMixup as InputMixup
from simplexcal.model import CalibratedModel as CalibratedModel
from simplexcal.model import calibrate as calibrate
from simplexcal.model import load as load
from simplexcal.types import Outputs as Outputs
from simplexcal.types import Prediction as Prediction

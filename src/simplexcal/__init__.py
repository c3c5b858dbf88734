"""Calibrate a trained classifier's confidence on the probability simplex, without changing one prediction."""

from simplexcal._checks import NotFittedError as NotFittedError
from simplexcal.backbone import Backbone as Backbone
from simplexcal.backbone import extract as extract
from simplexcal.calibrate import CalibratedModel as CalibratedModel
from simplexcal.calibrate import calibrate as calibrate
from simplexcal.calibrate import load as load
from simplexcal.calibrators import CALIBRATORS as CALIBRATORS
from simplexcal.calibrators import AdaptiveTemperatureScaling as AdaptiveTemperatureScaling
from simplexcal.calibrators import Calibrator as Calibrator
from simplexcal.calibrators import DirichletTemperatureScaling as DirichletTemperatureScaling
from simplexcal.calibrators import EnsembleTemperatureScaling as EnsembleTemperatureScaling
from simplexcal.calibrators import ParameterizedTemperatureScaling as ParameterizedTemperatureScaling
from simplexcal.calibrators import SimplexTemperatureScaling as SimplexTemperatureScaling
from simplexcal.calibrators import TemperatureScaling as TemperatureScaling
from simplexcal.calibrators import Uncalibrated as Uncalibrated
from simplexcal.concrete import Concrete as Concrete
from simplexcal.concrete import Moments as Moments
from simplexcal.evaluate import Evaluation as Evaluation
from simplexcal.evaluate import OODEvaluation as OODEvaluation
from simplexcal.evaluate import evaluate as evaluate
from simplexcal.evaluate import evaluate_ood as evaluate_ood
from simplexcal.evaluate import tabulate as tabulate
from simplexcal.mixup import FeatureMixup as FeatureMixup
from simplexcal.mixup import InputMixup as InputMixup
from simplexcal.records import Outputs as Outputs
from simplexcal.records import Prediction as Prediction

__version__ = "0.1.0"

"""Functions of (probs, labels), of (confidence, correct) and of (score, positive)."""

from simplexcal.metrics.calibration_error import Bins as Bins
from simplexcal.metrics.calibration_error import accuracy_band as accuracy_band
from simplexcal.metrics.calibration_error import adaptive_ece as adaptive_ece
from simplexcal.metrics.calibration_error import classwise_ece as classwise_ece
from simplexcal.metrics.calibration_error import ece as ece
from simplexcal.metrics.calibration_error import equal_mass_reliability as equal_mass_reliability
from simplexcal.metrics.calibration_error import mce as mce
from simplexcal.metrics.calibration_error import reliability as reliability
from simplexcal.metrics.calibration_error import rms_ce as rms_ce
from simplexcal.metrics.calibration_error import smooth_ece as smooth_ece
from simplexcal.metrics.ece_inference import Floor as Floor
from simplexcal.metrics.ece_inference import Interval as Interval
from simplexcal.metrics.ece_inference import ece_interval as ece_interval
from simplexcal.metrics.ece_inference import noise_floor as noise_floor
from simplexcal.metrics.proper_scores import BrierDecomposition as BrierDecomposition
from simplexcal.metrics.proper_scores import accuracy as accuracy
from simplexcal.metrics.proper_scores import brier as brier
from simplexcal.metrics.proper_scores import brier_decomposition as brier_decomposition
from simplexcal.metrics.proper_scores import nll as nll
from simplexcal.metrics.ranking import RiskCoverage as RiskCoverage
from simplexcal.metrics.ranking import aupr as aupr
from simplexcal.metrics.ranking import aurc as aurc
from simplexcal.metrics.ranking import auroc as auroc
from simplexcal.metrics.ranking import fpr_at_tpr as fpr_at_tpr
from simplexcal.metrics.ranking import risk_coverage as risk_coverage

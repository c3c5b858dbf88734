"""Numbers that judge a prediction: pure functions of (probs, labels), (confidence, correct) or (score, positive)."""

from simplexcal.metrics.bootstrap import Floor as Floor
from simplexcal.metrics.bootstrap import Interval as Interval
from simplexcal.metrics.bootstrap import accuracy_band as accuracy_band
from simplexcal.metrics.bootstrap import ece_interval as ece_interval
from simplexcal.metrics.bootstrap import noise_floor as noise_floor
from simplexcal.metrics.calibration import Bins as Bins
from simplexcal.metrics.calibration import adaptive_ece as adaptive_ece
from simplexcal.metrics.calibration import debiased_ece as debiased_ece
from simplexcal.metrics.calibration import ece as ece
from simplexcal.metrics.calibration import equal_mass_reliability as equal_mass_reliability
from simplexcal.metrics.calibration import maximum_ce as maximum_ce
from simplexcal.metrics.calibration import reliability as reliability
from simplexcal.metrics.calibration import smooth_ece as smooth_ece
from simplexcal.metrics.ranking import RiskCoverage as RiskCoverage
from simplexcal.metrics.ranking import aupr as aupr
from simplexcal.metrics.ranking import aurc as aurc
from simplexcal.metrics.ranking import auroc as auroc
from simplexcal.metrics.ranking import fpr_at_tpr as fpr_at_tpr
from simplexcal.metrics.ranking import risk_coverage as risk_coverage
from simplexcal.metrics.scoring import BrierSplit as BrierSplit
from simplexcal.metrics.scoring import accuracy as accuracy
from simplexcal.metrics.scoring import brier as brier
from simplexcal.metrics.scoring import brier_split as brier_split
from simplexcal.metrics.scoring import classwise_ece as classwise_ece
from simplexcal.metrics.scoring import nll as nll

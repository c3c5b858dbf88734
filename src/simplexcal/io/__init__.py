"""Files: the library's own, which hold outputs and calibrators, and users' tables."""

from simplexcal.io.native import load_calibrator as load_calibrator
from simplexcal.io.native import load_outputs as load_outputs
from simplexcal.io.native import save_calibrator as save_calibrator
from simplexcal.io.native import save_outputs as save_outputs

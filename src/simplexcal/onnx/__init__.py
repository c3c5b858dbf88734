"""A calibrated network as an ONNX file, to be served without torch and without this library. Extra ``[onnx]``."""

from simplexcal.onnx.export import Exported as Exported
from simplexcal.onnx.export import export_calibrator as export_calibrator
from simplexcal.onnx.export import export_model as export_model

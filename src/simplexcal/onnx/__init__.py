"""A calibrated network as an ONNX file, served without torch and this library; extra [onnx]."""

from simplexcal.onnx.export import Exported as Exported
from simplexcal.onnx.export import export_calibrator as export_calibrator
from simplexcal.onnx.export import export_model as export_model

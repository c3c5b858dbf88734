"""ONNX files: a calibrated network is written as one, a network is read from one; extra [onnx]."""

from simplexcal.onnx.append import append_calibrator as append_calibrator
from simplexcal.onnx.export import Exported as Exported
from simplexcal.onnx.export import export_calibrator as export_calibrator
from simplexcal.onnx.export import export_model as export_model
from simplexcal.onnx.network import OnnxNetwork as OnnxNetwork

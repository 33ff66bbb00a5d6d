"""Selectors without PyTorch's own loader: graphs of torch.export and ONNX."""

from .onnx_export import export_onnx, export_program, largest_difference, quantize_onnx
from .onnx_selector import OnnxSelector
from .selection_path import SelectionPath

__all__ = [
    "OnnxSelector",
    "SelectionPath",
    "export_onnx",
    "export_program",
    "largest_difference",
    "quantize_onnx",
]

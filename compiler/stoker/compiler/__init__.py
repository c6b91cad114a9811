"""Converts ONNX models and compiles them for accelerators. This package is offline and independent of the target."""

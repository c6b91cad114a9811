"""ONNX on CPU (ONNX Runtime)."""

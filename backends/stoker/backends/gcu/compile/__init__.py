"""Compiling converted ONNX models for a simulated GCU card into `model.exec` files."""

"""Compiles a converted ONNX model to a static program for the IPU: lowering, tile mapping, memory account, cost model."""

"""Reads the declarations of ONNX files for the backends that serve them, without `onnx` or a runtime, and with bounded memory and time.

`runtime` alone needs ONNX Runtime.
"""

"""What an ONNX file says of itself, for the backends that serve such files: read without `onnx`, without a runtime, bounded throughout.

`runtime` alone needs ONNX Runtime.
"""

"""What an ONNX file says of itself, for the backends that serve such files: read without `onnx`, without a runtime, bounded throughout.

`runtime_errors` alone needs ONNX Runtime, and is for who runs such files on it.
"""

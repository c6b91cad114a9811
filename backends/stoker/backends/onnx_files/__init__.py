"""What an ONNX file says of itself, for the backends that serve such files: read without `onnx`, without a runtime, bounded throughout.

`runtime_errors` and `runtime_messages` are for who runs such files on ONNX Runtime, which the former alone needs.
"""

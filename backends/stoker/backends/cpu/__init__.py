"""The CPU as a target of the compiler: ONNX for backend onnxruntime, or what backend openvino serves."""

"""The process that reads a model with its framework and converts it to ONNX. Alone here, models are unpickled.

It may run in another interpreter: it imports the standard library, numpy, the framework and the converter, and nothing else of Stoker.
"""

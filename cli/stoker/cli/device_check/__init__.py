"""`stoker device-check`: compares a device with ONNX Runtime, times it, and fits the constants of its cost model."""

"""`stoker plan`: which devices run an ONNX model, how fast, and how many of them carry a load."""

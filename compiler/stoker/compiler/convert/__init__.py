"""Converts a source model to a form that targets accept: options, shapes, opset, passes."""

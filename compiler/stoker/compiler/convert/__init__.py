"""From a source model to what targets take: options, shapes, opset, passes."""

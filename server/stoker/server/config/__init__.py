"""Model configurations: config.pbtxt and JSON are parsed, checked, and completed from the model file."""

"""Number formats below FP32, and what they cost in accuracy."""

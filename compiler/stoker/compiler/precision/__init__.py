"""Number formats narrower than FP32, and their effect on accuracy."""

"""Adapts the vendor's Python packages `poprt` and `model_runtime`: real IPUs."""

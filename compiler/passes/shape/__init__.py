"""Batch sizes and shapes."""

"""Execution: the workers that own instances and run batches."""

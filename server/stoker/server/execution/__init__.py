"""Execution: workers that own model instances and run batches on them."""

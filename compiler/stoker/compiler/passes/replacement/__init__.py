"""Passes that replace one node by others that compute the same result."""

"""A node replaced by others that compute the same."""

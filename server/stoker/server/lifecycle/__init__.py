"""Lifecycle: which versions are loaded, in service, or closed, and from which files."""

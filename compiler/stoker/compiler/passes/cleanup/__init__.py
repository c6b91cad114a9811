"""Passes that remove nodes without effect and merge redundant ones."""

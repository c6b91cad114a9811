"""Passes that change number formats."""

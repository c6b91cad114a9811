"""Removing what does nothing, joining what is one."""

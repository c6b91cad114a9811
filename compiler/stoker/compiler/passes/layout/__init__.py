"""Passes for an accelerator's memory and IO."""

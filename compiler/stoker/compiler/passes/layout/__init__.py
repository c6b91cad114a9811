"""Passes for an accelerator's memory and host IO."""

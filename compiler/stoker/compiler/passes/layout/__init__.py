"""What concerns an accelerator's memory and IO."""

"""Codecs that all protocols share: tensors as bytes and as JSON, validation, memory bounds, the memo."""

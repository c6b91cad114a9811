"""What the codecs of all protocols share: tensors as bytes and as JSON, validation, bounds."""

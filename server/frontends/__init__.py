"""The protocol fronts: transports, codecs, limits, status mapping. Imports nothing, so that a start pays only for the fronts it uses."""

"""What tensors that nobody gave hold."""

from enum import StrEnum


class Filling(StrEnum):
    """The choices of `--input-data`."""

    RANDOM = "random"
    ZERO = "zero"

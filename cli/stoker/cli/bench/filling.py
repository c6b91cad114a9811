"""The values of tensors that the user did not give."""

from enum import StrEnum


class Filling(StrEnum):
    """The choices of `--input-data`."""

    RANDOM = "random"
    ZERO = "zero"

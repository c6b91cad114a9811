"""`BUILD`: whether the modules of native_modules.txt are compiled, or interpreted as every other module."""

from typing import Final

from stoker.server.core import completion

#: `native` or `pure`. One module stands for all: they are compiled together.
BUILD: Final = "pure" if completion.__file__.endswith(".py") else "native"

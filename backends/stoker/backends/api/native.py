"""`mypyc_attr`: what a class says to mypyc, for modules that the native build compiles. Interpreted, it does nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    ClassT = TypeVar("ClassT")

    def mypyc_attr(**_settings: object) -> Callable[[ClassT], ClassT]:
        """mypy_extensions has the settings."""
        return lambda decorated: decorated

"""Readers of option values: the operator's settings (`--backend-config`) and config.pbtxt `parameters`.

A reader takes the default where a value is wrong and collects the errors, so that all of them are reported at once.
"""

import abc
import enum
from collections.abc import Mapping, Sequence
from typing import TypeVar

from stoker.backends.api.candidate import Violation, parameter_path
from stoker.backends.api.errors import BackendSettingError

#: How Triton's and Poplar's flags spell the two values, in lower case.
FLAGS = {"true": True, "1": True, "false": False, "0": False}

#: The setting of every backend of devices that selects the runtime; see `stoker.backends.devices.runtime`.
RUNTIME_SETTING = "runtime"

_MAX_DIGITS = 20

_Default = TypeVar("_Default")
_Choice = TypeVar("_Choice", bound=enum.Enum)


class OptionReader(abc.ABC):
    """Converts option values from text.

    Attributes:
        values: By name, as written.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    @abc.abstractmethod
    def reject_value(self, name: str, expected: str) -> None:
        """Records that the value of `name` is wrong; `expected` names the allowed values."""

    def number(self, name: str, default: _Default, low: int, high: int) -> int | _Default:
        """A whole number from `low` to `high`."""
        text = self.values.get(name)
        if text is None:
            return default
        if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and low <= int(text) <= high:
            return int(text)
        self.reject_value(name, f"a whole number from {low} to {high}")
        return default

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        text = self.values.get(name)
        if text is None:
            return default
        if text.lower() not in FLAGS:
            self.reject_value(name, "true, false, 1 or 0")
        return FLAGS.get(text.lower(), default)

    def choice(self, name: str, default: _Choice) -> _Choice:
        """A member of the default's enumeration, by its value in any letter case."""
        text = self.values.get(name)
        if text is None:
            return default
        for each in type(default):
            if each.value == text.lower():
                return each
        self.reject_value(name, ", ".join(str(each.value) for each in type(default)))
        return default


class SettingsReader(OptionReader):
    """Reads the settings of one backend.

    Attributes:
        errors: What is wrong, one text each.
    """

    def __init__(self, backend: str, settings: Mapping[str, str], known: Sequence[str]) -> None:
        """Reads `settings` of `backend`, which has the settings `known` beside `runtime`."""
        super().__init__(settings)
        self.errors = [
            f"there is no setting '{name}'; there are {', '.join((RUNTIME_SETTING, *known))}" for name in settings if name not in known
        ]
        self._backend = backend

    def reject_value(self, name: str, expected: str) -> None:
        self.reject(name, f"expected {expected}")

    def reject(self, name: str, reason: str) -> None:
        """Records that the value of `name` is wrong, for `reason`."""
        self.errors.append(f"{name}='{self.values[name][:80]}': {reason}")

    def check(self) -> None:
        """Ends the reading.

        Raises:
            BackendSettingError: settings are wrong; names all of them.
        """
        if self.errors:
            raise BackendSettingError(f"backend '{self._backend}': {'; '.join(self.errors)}")


class ParameterReader(OptionReader):
    """Reads the `parameters` of one model.

    Attributes:
        violations: What is wrong.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        super().__init__(parameters)
        self.violations: list[Violation] = []

    def reject_value(self, name: str, expected: str) -> None:
        self.reject(name, f"takes {expected}, not '{self.values[name][:40]}'")

    def reject(self, name: str, message: str) -> None:
        """Records that the value of `name` is wrong."""
        self.violations.append(Violation(parameter_path(name), message))

    def ids(self, name: str, noun: str) -> frozenset[int] | None:
        """Ids of devices, separated by commas; None where the model has no such parameter. `noun` names the devices in the error."""
        text = self.values.get(name)
        if text is None:
            return None
        parts = [part.strip() for part in text.split(",")]
        if all(part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts):
            return frozenset(int(part) for part in parts)
        self.reject_value(name, f"ids of {noun}, such as '0' or '2,3'")
        return None

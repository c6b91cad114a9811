"""Headers and metadata that become parameters of the request: those whose whole name a pattern of the operator's matches.

Names reach us in lower case. The pattern is read without regard to case, as Triton does over HTTP, unless it begins with `(?-i)`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from stoker.server.core.request import ParameterValue

#: Names whose answer is remembered. Clients choose names: beyond it all are forgotten.
_KEPT_NAMES: Final = 512
_LONGEST_NAME: Final = 256
_CASE_SENSITIVE: Final = "(?-i)"
#: What Python's patterns have and RE2's do not: back references and looks around, which is also what takes exponential time.
_NOT_RE2: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:[=!]|<[=!]|P=|P>|\(|>)|\\[1-9])")
#: The server reads these itself, or nobody may set them.
_RESERVED: Final = frozenset({"priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers", "binary_data_output"})
NOTHING: Final[Mapping[str, ParameterValue]] = {}


class PatternError(ValueError):
    """A pattern that cannot be used; the message says why."""


class HeaderForward:
    """Picks the headers that are forwarded.

    Attributes:
        is_on: Whether any are.
    """

    def __init__(self, pattern: str = "") -> None:
        """Forwards headers whose names match `pattern` as a whole; empty: none.

        Raises:
            PatternError: it is no pattern, or has constructs that RE2 does not.
        """
        self.is_on = bool(pattern)
        if _NOT_RE2.search(pattern):
            raise PatternError("back references, looks ahead and looks behind are not RE2 syntax")
        flags = re.RegexFlag(0) if pattern.startswith(_CASE_SENSITIVE) else re.IGNORECASE
        try:
            self._pattern = re.compile(pattern.removeprefix(_CASE_SENSITIVE), flags | re.ASCII)
        except re.error as error:
            raise PatternError(f"it is not a regular expression: {error}") from None
        self._kept: dict[str, bool] = {}

    def parameters(self, headers: Iterable[tuple[str, str]]) -> Mapping[str, ParameterValue]:
        """Those of `headers` that are forwarded, by name; of several of one name the last."""
        if not self.is_on:
            return NOTHING
        return {name: value for name, value in headers if self._matches(name)}

    def _matches(self, name: str) -> bool:
        known = self._kept.get(name)
        if known is None:
            if len(name) > _LONGEST_NAME or name in _RESERVED or name.startswith("triton_"):
                return False
            if len(self._kept) >= _KEPT_NAMES:
                self._kept.clear()
            known = self._kept[name] = self._pattern.fullmatch(name) is not None
        return known


def with_forwarded(parameters: Mapping[str, ParameterValue], forwarded: Mapping[str, ParameterValue]) -> Mapping[str, ParameterValue]:
    """A request's parameters with what is forwarded: a header that an operator trusts outdoes a parameter of the same name."""
    return {**parameters, **forwarded} if forwarded else parameters

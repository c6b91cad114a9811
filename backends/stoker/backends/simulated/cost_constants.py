"""Constants of a cost model that were measured on a device, in place of those that were fitted to published tables.

`stoker device-check --fit` writes them to a JSON file; the compile option `cost_constants` names it:

    {"format": 1, "device": "gcu", "source": "measured on i20 by ...", "constants": {"launch_s": 2.9e-05}}

The names are the fields of the device's dataclass of constants. A field that the file does not have keeps its fitted value. The optional
`"error": {"median": 0.04, "worst": 0.11, "cases": 30}` is that of the modelled latencies on the cases of the fit.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from stoker.backends.api.nearest import did_you_mean
from stoker.backends.simulated.model_error import ModelError, unknown_error

FORMAT: Final = 1
MAX_BYTES: Final = 1 << 20
MOST_ERROR: Final = 1e6
FITTED_SOURCE: Final = "fitted to published tables"
GIVEN_SOURCE: Final = "given by the caller"

ConstantsT = TypeVar("ConstantsT")


class ConstantsError(ValueError):
    """A file that holds no constants of the device."""


@dataclass(frozen=True, slots=True)
class SourcedConstants(Generic[ConstantsT]):
    """Constants and their origin.

    Attributes:
        values: The device's dataclass of constants.
        source: The origin, for people: `fitted to published tables`, or what the file says.
        is_fitted: Whether they are those fitted to published tables.
        error: Of the modelled latencies, as the file states it; None if it does not.
    """

    values: ConstantsT
    source: str
    is_fitted: bool
    error: ModelError | None = None

    @property
    def stated_error(self) -> ModelError:
        """`error`, or else one that says nothing."""
        return self.error or unknown_error(self.source)


def sourced_constants(given: str | Mapping[str, float], fitted: ConstantsT, device: str) -> SourcedConstants[ConstantsT]:
    """Returns the constants for `device` that the compile option `cost_constants` selects.

    Args:
        given: Path of a file, or values by name; empty selects `fitted`.
        fitted: A dataclass of floats.
        device: Name of the device family, such as `gcu`.

    Raises:
        ConstantsError: the file cannot be read or is for another device, or a name or value is wrong.
    """
    if not given:
        return SourcedConstants(fitted, FITTED_SOURCE, is_fitted=True)
    if isinstance(given, str):
        document = _document(Path(given), device)
        source = str(document["source"])
        error = _error(document.get("error"), source, given)
        return SourcedConstants(_replaced(fitted, document["constants"], given), source, is_fitted=False, error=error)
    return SourcedConstants(_replaced(fitted, given, "cost_constants"), GIVEN_SOURCE, is_fitted=False)


def _document(path: Path, device: str | None) -> Mapping[str, Any]:
    """Reads a file for `device`, or for any device if that is None."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_BYTES:
            raise ConstantsError(f"{path}: {size_bytes} bytes, more than the {MAX_BYTES} that are read")
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConstantsError(f"{path}: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConstantsError(f"{path}: expected a JSON object with \"format\": {FORMAT}, as 'stoker device-check --fit' writes it")
    if device is not None and document.get("device") != device:
        raise ConstantsError(f"{path}: the constants are for device '{str(document.get('device'))[:40]}', not {device}")
    if not isinstance(document.get("constants"), dict) or not isinstance(document.get("source"), str) or not document["source"]:
        raise ConstantsError(f'{path}: expected "constants", an object of numbers by name, and "source", a text')
    return document


def device_of(path: Path) -> str:
    """Returns the device family of a file of constants, such as `gcu`.

    Raises:
        ConstantsError: the file cannot be read, or holds no constants.
    """
    return str(_document(path, None)["device"])


def _error(given: object, source: str, where: str) -> ModelError | None:
    if given is None:
        return None
    numbers = [given.get(name) for name in ("median", "worst", "cases")] if isinstance(given, dict) else []
    valid = [float(each) for each in numbers if isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each <= MOST_ERROR]
    if len(valid) != 3:
        raise ConstantsError(
            f'{where}: "error" is {str(given)[:80]}; expected the numbers "median", "worst" and "cases", each 0 to {MOST_ERROR:,.0f}'
        )
    median, worst, cases = valid
    return ModelError(median=median, worst=worst, rows=int(cases), source=source)


def _replaced(fitted: ConstantsT, values: Mapping[str, Any], where: str) -> ConstantsT:
    known = asdict(fitted)  # type: ignore[call-overload] # a dataclass, which no annotation can say
    for name, value in values.items():
        if name not in known:
            raise ConstantsError(f"{where}: there is no constant '{name[:80]}'{did_you_mean(name, known)}; there are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ConstantsError(f"{where}: constant '{name}' is {str(value)[:40]}; expected a positive number")
    return replace(fitted, **{name: float(value) for name, value in values.items()})  # type: ignore[type-var] # as above

"""Options declared once: a dataclass field holds the name, default, kind of value and help text.

The command line, the YAML file, shell completion and the Python API are generated from these declarations, so they have the same names,
defaults and rules. A `Kind` converts user input (text, a YAML value, a Python argument) to the option's value or raises an error with the
expected form.
"""

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from stoker.compiler.errors import OptionError

_METADATA_KEY = "option"
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """The kind of values that an option takes.

    Attributes:
        name: Name in YAML error messages and in the help, such as `integer`.
        metavar: Placeholder for a value in the help.
        parse: Converts text, a list or a YAML value to the option's value; raises ValueError with the expected form.
        is_flag: Whether the option needs no value on the command line.
        is_many: Whether the option takes several words on the command line.
    """

    name: str
    metavar: str
    parse: Callable[[Any], Any]
    is_flag: bool = False
    is_many: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class OptionSpec:
    """One declared option.

    Attributes:
        name: As the command line (`--name`), the YAML file and Python spell it.
        kind: Kind of its values.
        help: One or two sentences for `--help`.
        group: Heading of its section in the help.
        default: Value if the option is not given.
        choices: Allowed values; empty allows every value of the kind.
        flags: Further spellings on the command line, such as `-i`.
    """

    name: str
    kind: Kind
    help: str
    group: str
    default: Any
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def parse(self, value: object) -> Any:
        """Parses a given value; None and an empty YAML value select the default.

        Raises:
            OptionError: it is not of the option's kind, or not one of its choices.
        """
        if value is None:
            return self.default
        try:
            parsed = self.kind.parse(value)
        except ValueError as error:
            raise OptionError(f"{self.name}: {error}") from None
        if self.choices and parsed not in self.choices:
            raise OptionError(f"{self.name}: '{parsed}' is none of {', '.join(self.choices)}")
        return parsed


def option(kind: Kind, help: str, *, group: str, default: Any = None, choices: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> Any:
    """Returns a dataclass field that declares an option; see `OptionSpec`. Mutable defaults are copied for each instance."""
    metadata = {_METADATA_KEY: OptionSpec("", kind, help, group, default, choices, flags)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def specs(owner: type) -> dict[str, OptionSpec]:
    """Returns the options that dataclass `owner` declares, by name, in order."""
    return {
        field.name: dataclasses.replace(field.metadata[_METADATA_KEY], name=field.name)
        for field in dataclasses.fields(owner)
        if _METADATA_KEY in field.metadata
    }


def _text(value: object) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"expected text, got {value!r}")
    return str(value)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ValueError(f"expected true or false, got {value!r}")


def _integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        _reject(value, "an integer")
    try:
        return int(value)
    except ValueError:
        _reject(value, "an integer")


def _reject(value: object, expected: str) -> NoReturn:
    raise ValueError(f"expected {expected}, got {value!r}")


def _at_least_one(value: object) -> int:
    number = _integer(value)
    if number < 1:
        _reject(value, "an integer of 1 or more")
    return number


def _not_negative(value: object) -> int:
    number = _integer(value)
    if number < 0:
        _reject(value, "an integer of 0 or more")
    return number


def _proportion(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except ValueError:
        number = 0.0
    if not 0.0 < number <= 1.0:
        _reject(value, "a number above 0 and up to 1")
    return number


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        _reject(value, "a number")
    return number


def _above_zero(value: object) -> float:
    number = _number(value)
    if number <= 0:
        _reject(value, "a number above 0")
    return number


def _counts(value: object) -> tuple[int, ...]:
    """Parses `1,8,32`, one number, or a list of numbers."""
    words = [value] if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(words, str):
        words = [word for word in words.replace(" ", "").split(",") if word]
    if not isinstance(words, list | tuple) or not words:
        _reject(value, "integers of 1 or more separated by commas")
    return tuple(_at_least_one(word) for word in words)


def _names(value: object) -> tuple[str, ...]:
    """Parses `a,b`, a list of such texts, or a list of names."""
    if not isinstance(value, str | list | tuple):
        _reject(value, "names separated by commas")
    words = [value] if isinstance(value, str) else list(value)
    return tuple(name.strip() for word in words for name in _text(word).split(",") if name.strip())


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, str | list | tuple):
        _reject(value, "a list")
    return (value,) if isinstance(value, str) else tuple(_text(word) for word in value)


#: The size of a dimension in a shape that stays as the model has it; users write `?` or `*`.
OPEN = -1


def _dimension(word: object) -> int:
    if isinstance(word, str):
        word = word.strip()
        return OPEN if word in ("?", "*") else _integer(word)
    return _integer(word)


def _shape(value: object, name: str) -> tuple[int, ...]:
    words = value.strip().removeprefix("[").removesuffix("]").split(",") if isinstance(value, str) else value
    if isinstance(words, int) and not isinstance(words, bool):
        words = [words]
    if not isinstance(words, list | tuple):
        _reject(value, f"sizes for '{name}' such as 1,512")
    try:
        sizes = tuple(_dimension(word) for word in words if word != "")
    except ValueError:
        _reject(value, f"sizes for '{name}' such as 1,512 or ?,512")
    if any(size < 1 and size != OPEN for size in sizes):
        _reject(value, f"sizes of 1 or more for '{name}', or ? for a dimension that --batch_size or --batch_sizes sets")
    return sizes


def _shapes(value: object) -> Mapping[str, tuple[int, ...]]:
    """Parses `NAME=d0,d1` words, or a mapping of names to sizes."""
    if isinstance(value, Mapping):
        return {_text(name): _shape(sizes, str(name)) for name, sizes in value.items()}
    shapes: dict[str, tuple[int, ...]] = {}
    for word in _words(value):
        # Tensor names may contain '='; sizes never do.
        name, equals, sizes = word.rpartition("=")
        if not (equals and name):
            _reject(word, "NAME=d0,d1,... such as input_ids=1,512")
        if name in shapes:
            raise ValueError(f"'{name}' is given twice")
        shapes[name] = _shape(sizes, name)
    return shapes


def _pairs(value: object) -> Mapping[str, Any]:
    """Parses `KEY=VALUE` words, or a mapping; values stay text."""
    if isinstance(value, Mapping):
        return {_text(key): each for key, each in value.items()}
    pairs: dict[str, Any] = {}
    for word in _words(value):
        key, equals, text = word.partition("=")
        if not (equals and key):
            _reject(word, "KEY=VALUE")
        if key in pairs:
            raise ValueError(f"'{key}' is given twice")
        pairs[key] = text
    return pairs


def literal(text: Any) -> Any:
    """Evaluates a Python or JSON literal (`True`, `4`, `{'a': [1]}`); any other text is returned unchanged."""
    if not isinstance(text, str):
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


TEXT = Kind("text", "TEXT", _text)
PATH = Kind("path", "PATH", _text)
FLAG = Kind("true or false", "", _flag, is_flag=True)
INTEGER = Kind("integer", "N", _integer)
COUNT = Kind("integer of 1 or more", "N", _at_least_one)
COUNTS = Kind("integers of 1 or more separated by commas", "N,...", _counts)
SIZE = Kind("integer of 0 or more", "N", _not_negative)
NUMBER = Kind("number", "X", _number)
POSITIVE = Kind("number above 0", "X", _above_zero)
PROPORTION = Kind("number in (0, 1]", "X", _proportion)
NAMES = Kind("names separated by commas", "NAME,...", _names)
PATHS = Kind("list of paths", "PATH", _words, is_many=True)
SHAPES = Kind("list of NAME=d0,d1", "NAME=d0,d1", _shapes, is_many=True)
PAIRS = Kind("list of KEY=VALUE", "KEY=VALUE", _pairs, is_many=True)
WORDS = Kind("list", "WORD", _words, is_many=True)

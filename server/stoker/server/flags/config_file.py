"""The YAML file of `--config`, and `--print-config`, which prints such a file.

A key of the file is the name of a flag, with `-` or `_`; a value is the flag's value, or a list of values for a flag that may be repeated.
A value has its text as it is written: `on`, `0x10` and `1.0` are what a command line would have. Paths are relative to the working
directory, as those of flags.

PyYAML is imported only for a start with a file, and for `--print-config`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from stoker.backends.api.nearest import did_you_mean
from stoker.server.core.flag import BadValue, FlagError, Panel
from stoker.server.flags.table import Declared, flags, holds, primary_names

#: The flag that names the file. The file itself cannot set it.
CONFIG: Final = "config"
#: The largest file, in bytes.
MAX_FILE_BYTES: Final = 1 << 20
#: Texts that YAML reads as they are, without quotes.
_PLAIN: Final = re.compile(r"(?!null$)[\w./][\w./=,:%+@-]*(?<!:)", re.ASCII | re.IGNORECASE)
_NULL: Final = "tag:yaml.org,2002:null"


class Given(NamedTuple):
    """The texts that one source gives for a flag.

    Attributes:
        texts: The texts, in their order; the last one counts, unless the flag takes a list.
        source: The text before a value in an error, such as `--grpc-port=` or `stoker.yaml:3: grpc-port: `.
        origin: The source for people: `command line`, a variable, or file and line.
    """

    texts: Sequence[str]
    source: str
    origin: str


def read_file(path: Path) -> dict[str, Given]:
    """The values of the file at `path`, by primary name of the flag.

    Raises:
        FlagError: the file cannot be read or is no YAML, or a key or value is wrong. The error names file, line and key.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FlagError(f"--config={path}: the file cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise FlagError(f"--config={path}: the file has more than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise FlagError(f"{path}:{line}: expected UTF-8 text") from None
    return _Reader(str(path)).read(text)


class _Reader:
    """Reads one file; `name` is its name in errors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, text: str) -> dict[str, Given]:
        root = self._composed(text)
        if root is None or root.tag == _NULL:
            return {}
        if root.id != "mapping":
            self._fail(root, "expected one flag on each line, such as 'grpc-port: 8500'")
        found: dict[str, Given] = {}
        first: dict[str, tuple[str, int]] = {}
        for key, value in root.value:
            written, name = self._flag_of(key)
            if name in first:
                before, line = first[name]
                both = f"'{written}' is given twice" if before == written else f"'{before}' and '{written}' are one flag, given twice"
                self._fail(key, f"{both}, first on line {line}")
            first[name] = written, _line(key)
            where = f"{self._name}:{_line(key)}"
            found[name] = Given(self._texts(written, flags()[name], key, value), f"{where}: {written}: ", where)
        return found

    def _composed(self, text: str) -> Any:
        """The root of the file; None: the file has no content."""
        import yaml

        try:
            return yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise FlagError(f"{self._name}:{line}: no valid YAML: {error.problem}") from None
        except yaml.reader.ReaderError as error:
            line = text[: error.position].count("\n") + 1
            raise FlagError(f"{self._name}:{line}: no valid YAML: {error.reason}") from None
        except RecursionError:
            raise FlagError(f"{self._name}: no valid YAML: values are nested too deeply") from None

    def _flag_of(self, key: Any) -> tuple[str, str]:
        """The key as written, and the primary name of its flag."""
        if key.id != "scalar":
            self._fail(key, "expected the name of a flag before ':'")
        written = str(key.value)
        name = written.replace("_", "-")
        name = primary_names().get(name, name)
        if name == CONFIG:
            self._fail(key, f"'{written}' names a file, which only a flag or STOKER_CONFIG can do")
        if name not in flags():
            known = sorted({*flags(), *primary_names()} - {CONFIG})
            self._fail(key, f"unknown key '{written}': expected the name of a flag{did_you_mean(name, known, most=1)}")
        return written, name

    def _texts(self, written: str, declared: Declared, key: Any, value: Any) -> list[str]:
        """The texts of the value of one key."""
        takes_list = holds(declared.kind, list)
        expected = _expected(declared)
        nodes = value.value if value.id == "sequence" and takes_list else [value]
        for node in nodes:
            if node.id != "scalar":
                kind = {"sequence": "a list", "mapping": "a mapping"}[node.id]
                self._fail(node if len(nodes) > 1 else key, f"{written}: {kind}: expected {expected}")
            if node.tag == _NULL:
                self._fail(node if node.value else key, f"{written}: no value: expected {expected}")
        if not nodes:
            self._fail(key, f"{written}: an empty list: expected {expected}")
        return [str(node.value) for node in nodes]

    def _fail(self, node: Any, message: str) -> NoReturn:
        raise FlagError(f"{self._name}:{_line(node)}: {message}")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _expected(declared: Declared) -> str:
    """The values that a flag takes, for an error."""
    one = "a path" if holds(declared.kind, Path) else "a text"
    if declared.flag.parser is not None:
        try:
            declared.flag.parser("")
        except BadValue as error:
            one = error.expected
        except FlagError:
            one = declared.flag.metavar
    return f"{one}, or a list of them" if holds(declared.kind, list) else one


_HEAD: Final = (
    "# The configuration of 'serve', as --print-config shows it; 'serve --config=FILE' reads it.",
    "# Lines that begin with '#' are defaults, or secrets, which are not printed.",
)


def printed(given: Mapping[str, Given], *, has_key_variable: bool) -> str:
    """The effective configuration as a file that `--config` reads, with the origin of each value.

    Args:
        given: The texts of each flag that is set, by name.
        has_key_variable: Whether the API key is in the environment.
    """
    lines = list(_HEAD)
    for panel in Panel:
        of_panel = [line for name, each in flags().items() if each.flag.panel is panel for line in _lines(name, each, given.get(name))]
        if panel is Panel.API_KEY and has_key_variable:
            of_panel.append("# The API key is set by STOKER_API_KEY, and is not printed.")
        if of_panel:
            lines += ["", f"# {panel}", *of_panel]
    return "\n".join([*lines, ""])


def _lines(name: str, declared: Declared, given: Given | None) -> Iterator[str]:
    if name == CONFIG:
        return
    if given is None:
        default = _default(declared)
        if not declared.flag.hidden:
            yield f"# {name}: {default}  # default" if default is not None else f"# {name}:"
        return
    texts = [text for text in given.texts if not declared.flag.holds_secret(text)]
    origin = f"  # {given.origin.translate(_CONTROLS)}"
    if len(texts) < len(given.texts):
        yield f"# {name}: a secret, not printed{origin}"
    if not texts:
        return
    if not holds(declared.kind, list):
        yield f"{name}: {_scalar(texts[-1])}{origin}"
        return
    yield f"{name}:{origin}"
    yield from (f"  - {_scalar(text)}" for text in texts)


#: A file's name in a comment must not end its line.
_CONTROLS: Final = dict.fromkeys((*range(32), 0x7F, 0x85, 0x2028, 0x2029), "?")


def _default(declared: Declared) -> str | None:
    value = declared.flag.shown(declared.default) if declared.flag.shown else declared.default
    if value is None or not declared.flag.show_default:
        return None
    return _scalar(str(value).lower() if isinstance(value, bool) else str(value))


def _scalar(text: str) -> str:
    """A YAML scalar with the value `text`."""
    if _PLAIN.fullmatch(text):
        return text
    import yaml

    return str(yaml.dump(text, default_style='"', width=float("inf"))).rstrip("\n")

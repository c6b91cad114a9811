"""Problems, findings and suggestions that reading one configuration collects, and the bounds of a configuration."""

import enum
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor

from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.api.nearest import nearest

#: Bytes of a config.pbtxt or of a JSON override.
MAX_TEXT_BYTES = 1 << 20
#: Blocks within blocks; the deepest field of ModelConfig lies at 7.
MAX_DEPTH = 32
#: Problems collected before reading stops.
MAX_PROBLEMS = 50
#: Characters of a problem's field, and of its message: both may repeat text of the configuration.
MAX_FIELD_LENGTH, MAX_MESSAGE_LENGTH = 256, 2048

MAX_BATCH_SIZE = 65_536
#: Inputs, or outputs, of one model.
MAX_TENSORS = 1024
#: Dimensions of one tensor, batch dimension left out (numpy allows 64 with it).
MAX_RANK = 32
#: Elements of one row of a tensor: no gRPC message holds more.
MAX_ROW_ELEMENTS = (1 << 31) - 1
#: Instances of one model version, over all its groups.
MAX_INSTANCES = 64
#: Entries of one side of `optimization.execution_accelerators`.
MAX_ACCELERATORS = 8
#: Priority levels of one model: each has its own queue.
MAX_PRIORITY_LEVELS = 1000
MAX_WARMUPS = 100
#: All inputs of one warm-up sample together, in bytes: a short configuration can describe a sample of any size.
MAX_WARMUP_BYTES = 1 << 30
#: Runs of one warm-up sample.
MAX_WARMUP_COUNT = 1000
#: Sequences in progress of one instance. Each keeps its states in memory, even while its client sends nothing.
MAX_CANDIDATES = 65_536
#: Initial size of one state of one sequence, in bytes.
MAX_STATE_BYTES = 1 << 30

#: The reason of a value that the model's own code gives.
FROM_CODE = "from the model's code"

#: Batching inferred from a model file that allows it uses this max_batch_size. Triton's ONNX backend takes 4, which rejects most first
#: requests; memory is committed for the rows that come, not for this bound.
DEFAULT_MAX_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a configuration.

    Attributes:
        source: Short file name, such as `digits/config.pbtxt`.
        line: 1-based; None where the source has no lines.
        field: Path of the field, such as `input[1].dims`.
        message: The problem and the allowed values.
    """

    source: str
    line: int | None
    field: str
    message: str

    @classmethod
    def of(cls, source: str, line: int | None, field: str, message: str) -> "Problem":
        """A problem with bounded, encodable texts: field and message may repeat any text of the configuration."""
        return cls(source, line, _cut(field, MAX_FIELD_LENGTH), _cut(message, MAX_MESSAGE_LENGTH))

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.field}: {self.message}"


def _cut(text: str, length: int) -> str:
    """`text` cut to `length` characters, all of which can be encoded in UTF-8 (JSON can contain a lone surrogate)."""
    shown = text[: length + 1].encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= length else f"{shown[: length - 3]}..."


class ConfigError(ModelLoadError):
    """A configuration that cannot be used. `str()` is one line: `file:line: field: message` of each problem, joined by `; `.

    Attributes:
        problems: All problems, in the order of their lines.
        warnings: Fields that would be accepted without their expected effect if there were no problems.
    """

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)


def problem_lines(error: ServingError) -> tuple[str, ...]:
    """The message of `error`, with one line for each problem if there are several."""
    return tuple(str(problem) for problem in error.problems) if isinstance(error, ConfigError) else (error.message,)


class FindingKind(enum.Enum):
    """The origin of a value."""

    WRITTEN = "written"
    INFERRED = "inferred"
    DEFAULT = "default"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One value of a completed configuration.

    Attributes:
        field: Path of the field.
        kind: The origin of the value.
        text: The value, and its reason if it was not written.
    """

    field: str
    kind: FindingKind
    text: str


class Findings:
    """Collects findings in order. Confined to: one completion."""

    def __init__(self) -> None:
        self._all: list[Finding] = []

    def written(self, field: str, text: str) -> None:
        """Adds a value that the configuration gives."""
        self._all.append(Finding(field, FindingKind.WRITTEN, text))

    def inferred(self, field: str, text: str) -> None:
        """Adds a value that the model file gives."""
        self._all.append(Finding(field, FindingKind.INFERRED, text))

    def default(self, field: str, text: str) -> None:
        """Adds a default value."""
        self._all.append(Finding(field, FindingKind.DEFAULT, text))

    def warning(self, field: str, text: str) -> None:
        """Adds a field that does not have its expected effect."""
        self._all.append(Finding(field, FindingKind.WARNING, text))

    def all(self) -> tuple[Finding, ...]:
        """All findings so far."""
        return tuple(self._all)


#: One step of a path: a field, an index or a map key.
_STEP = re.compile(r"""\.?\w+|\[-?\d+\]|\["(?:[^"\\]|\\.)*+"\]""")
#: Bound on the steps of a written field's path: each block is a field with an index or a key.
_MAX_STEPS = 2 * (MAX_DEPTH + 1)


class Report:
    """Problems and warnings of one source, in the order in which they were found. Confined to: one reading of one configuration."""

    def __init__(self, source: str, lines: Mapping[str, int | None], *, first_line: int | None, warnings: Iterable[Problem] = ()) -> None:
        """Starts empty.

        Args:
            source: Short file name.
            lines: Field path to line; may still be filled while the report is in use.
            first_line: The line of values without a line of their own; None where the source has no lines.
            warnings: The warnings of an earlier reading of the same source.
        """
        self._source = source
        self._lines = lines
        self._first_line = first_line
        self._problems: dict[Problem, None] = {}
        self.warnings = list(warnings)

    def line_of(self, path: str) -> int | None:
        """The line of the field, or of the nearest one around it that was written.

        `path` may end in any text, because a client chooses the last name in it. The cost is linear in the length.
        """
        for end in (len(path), *reversed(_ends(path))):
            line = self._lines.get(path[:end])
            if line is not None:
                return line
        return self._first_line

    def error(self, path: str, message: str, *, line: int | None = None) -> None:
        """Adds a problem, each only once.

        Raises:
            ConfigError: the bound on problems is reached.
        """
        self._problems[self._problem(path, message, line)] = None
        if len(self._problems) >= MAX_PROBLEMS:
            self.raise_if_any()

    def warn(self, path: str, message: str) -> None:
        """Adds a warning: a field is accepted but has no effect, or not the expected one."""
        warning = self._problem(path, message, None)
        if warning not in self.warnings:
            self.warnings.append(warning)

    @property
    def has_problems(self) -> bool:
        """Whether there are problems so far."""
        return bool(self._problems)

    def raise_if_any(self) -> None:
        """Ends the reading if there were problems.

        Raises:
            ConfigError: with all problems in the order of their lines, and with the warnings.
        """
        if self._problems:
            raise ConfigError(sorted(self._problems, key=lambda problem: problem.line or 0), self.warnings)

    def _problem(self, path: str, message: str, line: int | None) -> Problem:
        return Problem.of(self._source, line or self.line_of(path), path, message)


def _ends(path: str) -> list[int]:
    """The ends of the leading steps of `path`, at most `_MAX_STEPS`; the list stops at the first text that is no step."""
    ends = [0]
    while len(ends) <= _MAX_STEPS and (step := _STEP.match(path, ends[-1])) is not None:
        ends.append(step.end())
    return ends[1:]


def map_path(path: str, key: object) -> str:
    """Path of a map's entry: `parameters["execution"]`, `priority_queue_policy[2]`."""
    return f"{path}[{key}]" if isinstance(key, int) else f"{path}[{json.dumps(key, ensure_ascii=False)}]"


#: Above this number of names only the nearest ones are listed.
_FEW = 8
#: Least similarity (share of common letters) at which a name counts as a misspelling of another.
_CLOSE = 0.7
#: Spellings of element types that other formats use, without prefix: to Triton's name and to TensorFlow's.
_TYPE_SPELLINGS = {
    "BOOLEAN": ("BOOL", "BOOL"),
    "HALF": ("FP16", "HALF"),
    "FLOAT16": ("FP16", "HALF"),
    "FP16": ("FP16", "HALF"),
    "FLOAT": ("FP32", "FLOAT"),
    "FLOAT32": ("FP32", "FLOAT"),
    "FP32": ("FP32", "FLOAT"),
    "DOUBLE": ("FP64", "DOUBLE"),
    "FLOAT64": ("FP64", "DOUBLE"),
    "FP64": ("FP64", "DOUBLE"),
    "BFLOAT16": ("BF16", "BFLOAT16"),
    "BF16": ("BF16", "BFLOAT16"),
    "BYTES": ("STRING", "STRING"),
    "STR": ("STRING", "STRING"),
    "INT": ("INT32", "INT32"),
    "LONG": ("INT64", "INT64"),
}  # fmt: skip


def allowed_names(wrong: str, allowed: Iterable[str], *, also: Iterable[str] = (), most: int = _FEW) -> str:
    """The end of a message about a name that is not among `allowed`: `; did you mean 'x'? allowed: x, y, z`.

    Of many names only the nearest are listed: `; did you mean 'x'? allowed: x, y, ... (27 in all)`.

    Args:
        wrong: The name.
        allowed: The allowed names, in the order in which they are listed.
        also: Further names that may have been meant; they are not listed.
        most: Up to this number of names, all are listed.
    """
    names = list(allowed)
    meant = _meant(wrong, list(dict.fromkeys([*names, *also])))
    hint = f"; did you mean '{meant}'?" if meant else ";"
    if len(names) <= most:
        return f"{hint} allowed: {', '.join(names) or 'nothing'}"
    near = list(dict.fromkeys([*([meant] if meant in names else []), *nearest(wrong, names, most=_FEW, closeness=0.0)]))[:_FEW]
    return f"{hint} allowed: {', '.join(near)}, ... ({len(names)} in all)"


@functools.cache
def field_parents(root: Descriptor) -> Mapping[str, tuple[str, ...]]:
    """For every field name below `root`: the paths of the topmost blocks that have such a field; empty for the top level."""
    parents: dict[str, list[str]] = {}
    for name, parent in sorted(_fields(root, ""), key=lambda found: _depth(found[1])):
        found = parents.setdefault(name, [])
        if parent not in found and (not found or _depth(parent) == _depth(found[0])):
            found.append(parent)
    return {name: tuple(paths) for name, paths in parents.items()}


def belonging(parents: Iterable[str]) -> str:
    """The end of a message about a field in the wrong block: `; it belongs inside 'dynamic_batching'`."""
    first, *others = [f"inside '{parent}'" if parent else "at the top level" for parent in parents]
    alternatives = f"{', '.join([first, *others[:-1]])} or {others[-1]}" if others else first
    return f"; it belongs {alternatives}"


def _meant(wrong: str, names: list[str]) -> str | None:
    by_folded = {name.lower(): name for name in names}
    folded = wrong.lower()
    for spelling in (folded, *_type_names(wrong)):
        # `CPU` for KIND_CPU, `value` for string_value.
        named = [name for name in by_folded if name == spelling or name.endswith(f"_{spelling}")]
        if len(named) == 1:
            return by_folded[named[0]]
    return next(iter(nearest(wrong, names, closeness=_CLOSE)), None)


def _type_names(wrong: str) -> tuple[str, ...]:
    """The names of the element type with that spelling (in lower case) in the two forms."""
    bare = wrong.upper().removeprefix("TYPE_").removeprefix("DT_")
    triton, tensorflow = _TYPE_SPELLINGS.get(bare, ("", ""))
    return (f"type_{triton}".lower(), f"dt_{tensorflow}".lower()) if triton else ()


def _depth(parent: str) -> int:
    return parent.count(".") + 1 if parent else 0


def _fields(message: Descriptor, path: str) -> Iterator[tuple[str, str]]:
    """The name and the containing block of every field; no message of the schema contains itself."""
    for field in message.fields:
        yield field.name, path
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        if inner is not None:
            yield from _fields(inner, f"{path}.{field.name}" if path else field.name)

"""Metrics that a model defines: their bounds, and which names they may have."""

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

#: Families and series of all models of one process. A histogram has a series for each bucket, one for the sum, and one for the count.
MAX_FAMILIES: Final = 256
MAX_SERIES: Final = 4096
#: Labels of a series, and the longest name, label and help text, characters.
MAX_LABELS: Final = 16
MAX_NAME_CHARACTERS: Final = 128
MAX_LABEL_CHARACTERS: Final = 256
MAX_HELP_CHARACTERS: Final = 1024
#: Upper bounds of a histogram; the bucket without a bound comes in addition.
MAX_BOUNDS: Final = 128
#: The series of a histogram have the name of the family and one of these.
HISTOGRAM_SUFFIXES: Final = ("_bucket", "_sum", "_count")
#: The server's own families begin so.
SERVER_PREFIXES: Final = ("nv_", "stoker_", ":tensorflow:", "process_", "python_")
#: Labels that the server or Prometheus sets.
RESERVED_LABELS: Final = frozenset({"worker", "le", "quantile"})
_LARGEST: Final = sys.float_info.max
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def check_family(name: Any, description: Any) -> None:
    """Checks the name and the help text of a family.

    Raises:
        ValueError: one of them is not allowed; the text says why.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or len(name) > MAX_NAME_CHARACTERS:
        raise ValueError(
            f"'{str(name)[:MAX_NAME_CHARACTERS]}' is no name of a metric: at most {MAX_NAME_CHARACTERS} letters, digits, '_' and ':'"
        )
    if name.startswith(SERVER_PREFIXES):
        raise ValueError(f"metric '{name}' has a name of the server's own metrics, which begin with {', '.join(SERVER_PREFIXES)}")
    if not isinstance(description, str) or len(description) > MAX_HELP_CHARACTERS:
        raise ValueError(f"the description of metric '{name}' is no text of at most {MAX_HELP_CHARACTERS} characters")


def check_labels(labels: Mapping[Any, Any]) -> None:
    """Checks the labels of a series.

    Raises:
        ValueError: they are too many, or one is not allowed; the text says which.
    """
    if len(labels) > MAX_LABELS:
        raise ValueError(f"a metric has at most {MAX_LABELS} labels, not {len(labels)}")
    for name, value in labels.items():
        if not isinstance(name, str) or _LABEL.fullmatch(name) is None or name.startswith("__") or len(name) > MAX_NAME_CHARACTERS:
            raise ValueError(f"'{str(name)[:MAX_NAME_CHARACTERS]}' is no name of a label: letters, digits and '_', not '__' first")
        if name in RESERVED_LABELS:
            raise ValueError(f"label '{name}' is set by the server: use another name")
        if not isinstance(value, str) or len(value) > MAX_LABEL_CHARACTERS:
            raise ValueError(f"the value of label '{name}' is no text of at most {MAX_LABEL_CHARACTERS} characters")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"the value of label '{name}' is not valid Unicode") from None


def check_bounds(bounds: Sequence[Any]) -> None:
    """Checks the upper bounds of a histogram's buckets, without the infinite one.

    Raises:
        ValueError: they are too many, not finite, or do not ascend; the text says which.
    """
    if len(bounds) > MAX_BOUNDS:
        raise ValueError(f"a histogram has at most {MAX_BOUNDS} buckets, not {len(bounds)}")
    for bound in bounds:
        if type(bound) not in (int, float) or not -_LARGEST <= bound <= _LARGEST:
            raise ValueError(f"'{str(bound)[:MAX_NAME_CHARACTERS]}' is no bucket of a histogram: a finite number")
    for lower, upper in pairwise(bounds):
        if lower >= upper:
            raise ValueError(f"the buckets of a histogram ascend strictly: {upper} follows {lower}")


def series_count(bounds: Sequence[float] | None) -> int:
    """How many series a metric is; `bounds` are those of a histogram without the infinite one, None: it is none."""
    return 1 if bounds is None else len(bounds) + 3

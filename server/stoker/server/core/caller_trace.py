"""The trace that a caller is in, as W3C Trace Context (level 1) carries it in `traceparent` and `tracestate`."""

import re
from typing import Final, NamedTuple

# Section 3.2.2: version, trace id, parent id and flags, in lower case; a later version may have more behind a dash.
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01
#: Section 3.3.1.5 asks to pass on at least so much; longer ones are dropped, as it allows.
_STATE_CHARACTERS: Final = 512
#: No version has more of it by far.
_LONGEST: Final = 256


class CallerTrace(NamedTuple):
    """Where spans of this server belong.

    Attributes:
        trace_id: Of the whole trace, above 0.
        span_id: Of the caller's span, above 0.
        is_sampled: Whether the caller keeps it.
        state: `tracestate` as sent, empty if there is none; what it holds is for vendors.
    """

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


def read_caller(parent: str | None, state: str | None = None) -> CallerTrace | None:
    """What the values of `traceparent` and `tracestate` say; None where the former is missing or not of its form, as the standard asks."""
    found = None if parent is None or len(parent) > _LONGEST else _FORM.fullmatch(parent.strip(" \t"))
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    kept = state if state is not None and len(state) <= _STATE_CHARACTERS else ""
    return CallerTrace(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), kept)

"""Request parameters: which the server reads itself, which are reserved, which travel on."""

import re
from collections.abc import Mapping

from stoker.backends.api.errors import InvalidRequest, Unsupported
from stoker.server.codecs.shared_memory import DISABLED
from stoker.server.core.request import ParameterValue
from stoker.server.core.sequence import SequenceMark

#: A stream client asks with it for a final marker of its own after the last response.
EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
_SHARED_MEMORY = frozenset({"shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"})
#: Names that clients' libraries keep for other things than parameters of the user's own.
_RESERVED = frozenset({"headers", "binary_data_output"})
#: Triton's bound on sequence ids that are text.
_SEQUENCE_ID_LENGTH = 128
_MODEL_NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.\-]{1,128}\Z")
_VERSION = re.compile(r"[0-9]{1,18}\Z", re.ASCII)
_UINT64_MAX = (1 << 64) - 1
_UINT64_DIGITS = 20


class RequestParameters:
    """What a request's parameters say, sorted out.

    Attributes:
        priority: 0 = the model's default.
        timeout_us: 0 = none.
        wants_empty_final: Whether a stream must end with a final marker.
        sequence: Where in a sequence the request stands; None: the client named none.
        custom: The client's own.
    """

    __slots__ = ("custom", "priority", "sequence", "timeout_us", "wants_empty_final")

    def __init__(self) -> None:
        self.priority = 0
        self.timeout_us = 0
        self.wants_empty_final = False
        self.sequence: SequenceMark | None = None
        self.custom: dict[str, ParameterValue] = {}


#: For the many requests without parameters. REQUIRES: nobody writes to it.
NO_PARAMETERS = RequestParameters()


def read_parameters(given: Mapping[str, ParameterValue]) -> RequestParameters:
    """Sorts out a request's parameters.

    Raises:
        InvalidRequest: a reserved key, or a value of a wrong type or range.
    """
    read = RequestParameters()
    sequence_id: int | str = 0
    is_start = is_end = False
    for key, value in given.items():
        if key == "priority":
            read.priority = _unsigned(key, value)
        elif key == "timeout":
            read.timeout_us = _unsigned(key, value)
        elif key == EMPTY_FINAL_RESPONSE:
            read.wants_empty_final = _boolean(key, value)
        elif key == "sequence_id":
            sequence_id = _sequence_id(value)
        elif key == "sequence_start":
            is_start = _boolean(key, value)
        elif key == "sequence_end":
            is_end = _boolean(key, value)
        elif key.startswith("triton_"):
            raise InvalidRequest(
                f"parameter '{key[:128]}': parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified"
            )
        elif key == "version_label":
            raise InvalidRequest(
                "parameter 'version_label' selects no version in KServe v2: name the version's number, or use TensorFlow Serving's "
                "protocol for labels"
            )
        elif key in _RESERVED:
            raise InvalidRequest(f"parameter '{key}' is reserved for Triton usage and should not be specified")
        else:
            read.custom[key] = value
    if sequence_id or is_start or is_end:
        read.sequence = SequenceMark(sequence_id, is_start, is_end)
    return read


def refuse_shared_memory(keys: Mapping[str, object], tensor: str) -> None:
    """Refuses a tensor that would live in shared memory.

    Raises:
        Unsupported: one of `keys` says so.
    """
    if not _SHARED_MEMORY.isdisjoint(keys):
        raise Unsupported(f"tensor '{tensor[:128]}' refers to shared memory: {DISABLED}")


def classification_count(value: object, output: str) -> int:
    """The value of an output's `classification` parameter: how many classes to name, at least 1.

    Raises:
        InvalidRequest: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < (1 << 31):
        raise InvalidRequest(f"parameter 'classification' of output '{output[:128]}' must be an integer of at least 1")
    return value


def parse_version(text: str, model: str) -> int | None:
    """The version that `text` names; None for an empty text.

    Raises:
        InvalidRequest: not a decimal number.
    """
    if not text:
        return None
    if _VERSION.match(text) is None:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text[:64]}' for model '{model[:128]}': it must be decimal digits"
        )
    return int(text)


def check_model_name(name: str) -> str:
    """`name`, if it may be a model's: letters, digits, `_`, `.`, `-`, at most 128, not only dots.

    Raises:
        InvalidRequest: it may not.
    """
    if _MODEL_NAME.match(name) is None:
        shown = name[:128].encode("ascii", "backslashreplace").decode()
        raise InvalidRequest(f"invalid model name '{shown}': expected 1 to 128 letters, digits, '_', '.' or '-', and not only dots")
    return name


def _boolean(key: str, value: ParameterValue) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter '{key}' must be a boolean")
    return value


def _sequence_id(value: ParameterValue) -> int | str:
    if isinstance(value, str):
        if len(value) > _SEQUENCE_ID_LENGTH:
            raise InvalidRequest(f"parameter 'sequence_id' has {len(value)} characters, more than the {_SEQUENCE_ID_LENGTH} allowed")
        return value or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT64_MAX:
        raise InvalidRequest("parameter 'sequence_id' must be a string or an unsigned 64-bit integer")
    return value


def _unsigned(key: str, value: ParameterValue) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _UINT64_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT64_MAX:
        raise InvalidRequest(f"parameter '{key}' must be an unsigned 64-bit integer")
    return value

"""A request after decoding: what the engine needs, and what the encoder of its answer must remember."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.core.request import InferRequest


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """One decoded inference request.

    Attributes:
        request: Validated.
        classifications: By output, how many classes to name instead of giving the tensor.
        wants_empty_final: Whether a stream must end with a final marker.
        binary_outputs: Outputs to send as raw bytes; only HTTP leaves the choice.
    """

    request: InferRequest
    classifications: Mapping[str, int] = field(default_factory=dict)
    wants_empty_final: bool = False
    binary_outputs: frozenset[str] = frozenset()

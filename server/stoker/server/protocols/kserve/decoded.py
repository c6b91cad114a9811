"""A request after decoding: what the engine needs, and what the encoder of its answer must remember."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from stoker.server.codecs.shared_memory import Span
from stoker.server.core.request import InferRequest
from stoker.server.protocols.kserve.shared_tensors import NO_SHARED

if TYPE_CHECKING:
    from stoker.server.protocols.kserve.request_memo import RequestPlan


class DecodedRequest(NamedTuple):
    """One decoded inference request.

    Attributes:
        request: Validated.
        classifications: By output, how many classes to name instead of giving the tensor.
        wants_empty_final: Whether a stream must end with a final marker.
        binary_outputs: Outputs to send as raw bytes; only HTTP leaves the choice.
        shared_outputs: By output, where in shared memory it is to be written.
        repeats: What it has in common with others like it, where it was remembered.
    """

    request: InferRequest
    classifications: Mapping[str, int]
    wants_empty_final: bool = False
    binary_outputs: frozenset[str] = frozenset()
    shared_outputs: Mapping[str, Span] = NO_SHARED
    repeats: "RequestPlan | None" = None

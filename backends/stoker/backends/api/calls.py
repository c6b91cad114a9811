"""`ModelCalls`: how a model asks other models of the same server (Triton: business logic scripting, BLS).

The server gives it to the instances whose backend wants it (`LoadRequest.calls`). A call may be made in any thread of the model, and blocks
it until the next response arrives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

Arrays = Mapping[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A request that a model sends to another model.

    Attributes:
        model_name: The model asked for.
        model_version: The version asked for; None: the one that serves by default.
        inputs: By name, `[rows, *dims]` (no rows where the other model is not batched).
        output_names: The outputs wanted; empty: all.
        request_id: The id of the request; empty: none.
        sequence_id: The id of the sequence; 0 or empty: none.
        sequence_start: Whether the request begins its sequence.
        sequence_end: Whether the request ends its sequence.
        priority: 0: the other model's default; 1: the highest.
        timeout_us: The queue timeout, microseconds; 0: none.
        trace_context: The OpenTelemetry context of the request that causes this one, see `RequestShare`; empty: none.
        parameters: Further parameters of the request.
    """

    model_name: str
    inputs: Arrays
    model_version: int | None = None
    output_names: tuple[str, ...] = ()
    request_id: str = ""
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    trace_context: str = ""
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResponse:
    """One response to a `ModelCall`.

    Attributes:
        model_name: The model that responded.
        model_version: Its version.
        outputs: By name; they stay valid as long as they are referenced.
        parameters: The parameters of the response.
    """

    model_name: str
    model_version: int
    outputs: Arrays
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelControl:
    """A load or an unload of another model, or the question whether it is ready.

    Attributes:
        action: `ready`: whether the model is ready. `load`, `unload`: as a client's request.
        model_name: The other model.
        model_version: `ready`: the version; None: any.
        config_json: `load`: the configuration as JSON; None: the repository's.
        files: `load`: files by name, such as `file:1/model.onnx`; they need `config_json`.
        unload_dependents: `unload`: whether models that were loaded only for the steps of an ensemble are unloaded with it.
    """

    action: Literal["ready", "load", "unload"]
    model_name: str
    model_version: int | None = None
    config_json: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    unload_dependents: bool = False


class ModelCalls(Protocol):
    """Runs requests on other models of the server, and controls them."""

    def call(self, call: ModelCall) -> Iterator[CallResponse]:
        """Yields the responses: one of an ordinary model, any number of a decoupled one. Closing the iterator cancels the request.

        Raises:
            ServingError: the request is rejected, or the other model failed; its message is the one that a client would get.
        """

    def control(self, control: ModelControl) -> bool:
        """Whether the model is ready (`ready`); else True once the load or the unload has ended.

        Raises:
            ServingError: the server rejects it, or the load failed.
        """

"""The connections of streams on the device's side: a queue, a user's handler, data of the PopEF file, or nothing.

The device polls the streams, and no stream blocks. Without data, the device waits at the session's gate and polls again.

A predicate selects the anchors of a model that a queue manager (or a user's handlers) serves. It takes an anchor and returns
 an `AnchorCallbackPolicy`; `or_bind` joins two.
"""

import enum
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor, Metadata, TensorType
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import Executable


class AnchorCallbackPolicy(enum.Enum):
    """The kinds of connections of a stream."""

    BIND_USER_CB = enum.auto()
    """The anchor is bound to a queue or a handler of the user."""
    BIND_EMPTY_CB = enum.auto()
    """The anchor is not bound: the device reads zeros, and its outputs are dropped."""


AnchorPredicate = Callable[[Anchor], AnchorCallbackPolicy]


def pred_program_flow_main(metadata: Metadata) -> AnchorPredicate:
    """Binds anchors that a main program of `metadata` uses."""
    main = frozenset(metadata.program_flow.main)
    return lambda anchor: _bind_if(not main.isdisjoint(anchor.programs))


def pred_program_not_assigned(anchor: Anchor) -> AnchorCallbackPolicy:
    """Binds anchors that no program claims."""
    return _bind_if(not anchor.programs)


def or_bind(first: AnchorPredicate, second: AnchorPredicate) -> AnchorPredicate:
    """Binds what either binds."""
    user = AnchorCallbackPolicy.BIND_USER_CB
    return lambda anchor: _bind_if(first(anchor) is user or second(anchor) is user)


def bound(anchors: Iterable[Anchor], predicate: AnchorPredicate) -> list[Anchor]:
    """The anchors that `predicate` binds.

    Raises:
        ApplicationRuntimeError: it does not return a policy; a bool would silently bind nothing.
    """
    found = []
    for anchor in anchors:
        policy = predicate(anchor)
        if not isinstance(policy, AnchorCallbackPolicy):
            raise ApplicationRuntimeError(f"the predicate says {policy!r} of anchor '{anchor.name}'; expected an AnchorCallbackPolicy")
        if policy is AnchorCallbackPolicy.BIND_USER_CB:
            found.append(anchor)
    return found


def _bind_if(is_bound: bool) -> AnchorCallbackPolicy:
    return AnchorCallbackPolicy.BIND_USER_CB if is_bound else AnchorCallbackPolicy.BIND_EMPTY_CB


Array = npt.NDArray[Any]
#: Fills, or reads, the memory of one micro-batch of one anchor; called on the device's thread, may block.
Handler = Callable[[Array], None]


class InputStream(Protocol):
    """The interface through which the device reads one anchor."""

    @property
    def anchor(self) -> Anchor:
        """The anchor that the stream feeds."""

    def fetch(self) -> Array | None:
        """Returns one micro-batch, the same one until `release`; None: no data yet."""

    def release(self, error: Exception | None) -> None:
        """Ends the device's use of the micro-batch that `fetch` returned."""


class OutputStream(Protocol):
    """The interface through which the device writes one anchor."""

    @property
    def anchor(self) -> Anchor:
        """The anchor that the stream receives."""

    def slot(self) -> Array | None:
        """Returns memory for one micro-batch, the same until `release`; None: no memory yet."""

    def release(self, error: Exception | None) -> None:
        """Ends the device's use of the memory that `slot` returned, whether written or not."""


def zeros_of(anchor: Anchor) -> Array:
    """Returns one micro-batch of zeros."""
    return np.zeros(anchor.tensor_info.shape, anchor.tensor_info.data_type.numpy)


class FixedInput:
    """Passes the same data at every call: tensor data of the file, or zeros if the anchor has no binding."""

    def __init__(self, anchor: Anchor, data: Array) -> None:
        self.anchor = anchor
        self._data = data

    def fetch(self) -> Array | None:
        return self._data

    def release(self, error: Exception | None) -> None:
        """Does nothing: no caller waits for the memory."""


class DroppedOutput:
    """Memory that is never read."""

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self._memory = zeros_of(anchor)

    def slot(self) -> Array | None:
        return self._memory

    def release(self, error: Exception | None) -> None:
        """Does nothing: no caller waits for the memory."""


class HandledInput:
    """A user's handler fills the device's memory."""

    def __init__(self, anchor: Anchor, handler: Handler) -> None:
        self.anchor = anchor
        self._handler = handler
        self._memory = zeros_of(anchor)
        self._is_filled = False

    def fetch(self) -> Array | None:
        if not self._is_filled:
            self._handler(self._memory)
            self._is_filled = True
        return self._memory

    def release(self, error: Exception | None) -> None:
        self._is_filled = False


class HandledOutput:
    """A user's handler reads the device's memory."""

    def __init__(self, anchor: Anchor, handler: Handler) -> None:
        self.anchor = anchor
        self._handler = handler
        self._memory = zeros_of(anchor)

    def slot(self) -> Array | None:
        return self._memory

    def release(self, error: Exception | None) -> None:
        if error is None:
            self._handler(self._memory)


class TensorManager:
    """The streams of one session: tensor data of the file bound by name, the rest by the user."""

    def __init__(self, executable: Executable, predicate: AnchorPredicate) -> None:
        """Binds the inputs that the file has tensor data for and that `predicate` does not exclude.

        Raises:
            PopefError: the tensor data is damaged.
            ApplicationRuntimeError: the data does not fit its anchor, or the predicate does not return a policy.
        """
        self._executable = executable
        self._inputs: dict[str, InputStream] = {}
        self._outputs: dict[str, OutputStream] = {}
        tensors = executable.model.tensors
        for anchor in bound([anchor for anchor in executable.metadata.inputs if anchor.name in tensors], predicate):
            reader = tensors[anchor.name]
            info = reader.info.tensor_info
            if info != anchor.tensor_info:
                raise ApplicationRuntimeError(
                    f"tensor data '{anchor.name}' has shape {list(info.shape)} and type {info.data_type.name}, its anchor "
                    f"{list(anchor.tensor_info.shape)} and {anchor.tensor_info.data_type.name}"
                )
            self._inputs[anchor.name] = FixedInput(anchor, reader.array())
        self._auto_bound = frozenset(self._inputs)

    def user_inputs(self) -> tuple[Anchor, ...]:
        """Inputs without data in the file, which the user must provide."""
        return tuple(anchor for anchor in self._executable.metadata.inputs if anchor.name not in self._auto_bound)

    def bind_input(self, stream: InputStream) -> None:
        """Connects `stream` to its anchor, in place of what was connected."""
        self._inputs[stream.anchor.name] = stream

    def bind_output(self, stream: OutputStream) -> None:
        """Connects `stream` to its anchor, in place of what was connected."""
        self._outputs[stream.anchor.name] = stream

    def bind_nothing(self, anchor: Anchor) -> None:
        """Gives an anchor that is not connected zeros to read, or memory that is never read."""
        if anchor.type is TensorType.INPUT:
            self._inputs.setdefault(anchor.name, FixedInput(anchor, zeros_of(anchor)))
        else:
            self._outputs.setdefault(anchor.name, DroppedOutput(anchor))

    def is_bound(self, anchor: Anchor) -> bool:
        """Whether the anchor is connected."""
        return anchor.name in self._inputs or anchor.name in self._outputs

    def input(self, name: str) -> InputStream:
        """Returns the stream that feeds anchor `name`. REQUIRES: the anchor is connected."""
        return self._inputs[name]

    def output(self, name: str) -> OutputStream:
        """Returns the stream that receives anchor `name`. REQUIRES: the anchor is connected."""
        return self._outputs[name]

    def reject_unbound(self, anchors: list[Anchor], program: str) -> None:
        """Checks that `anchors` are connected before `program` runs.

        Raises:
            ApplicationRuntimeError: some are not; the text names all of them.
        """
        unbound = [anchor.name for anchor in anchors if not self.is_bound(anchor)]
        if unbound:
            raise ApplicationRuntimeError(
                f"the {program} programs of executable '{self._executable.name}' use anchors that nothing is connected to: "
                f"{', '.join(unbound)}; bind a queue (create_queue_manager) or a handler (set_user_input_handler, set_user_output_handler)"
            )

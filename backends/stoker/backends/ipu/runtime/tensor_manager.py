"""`TensorManager`: which stream each anchor of a session is connected to."""

from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import Executable
from stoker.backends.ipu.runtime.predicates import AnchorPredicate, bound
from stoker.backends.ipu.runtime.streams import DroppedOutput, FixedInput, InputStream, OutputStream, zeros_of


class TensorManager:
    """The streams of one session: tensor data of the file bound by name, the rest by the user."""

    def __init__(self, executable: Executable, predicate: AnchorPredicate) -> None:
        """Binds the inputs that the file has tensor data for and that `predicate` does not exclude.

        Raises:
            PopefError: the tensor data is damaged.
            ApplicationRuntimeError: it does not fit its anchor, or the predicate returns something else than a policy.
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
        """Inputs that the file has no data for: the user's to provide."""
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
        """The stream that feeds anchor `name`. REQUIRES: it is connected."""
        return self._inputs[name]

    def output(self, name: str) -> OutputStream:
        """The stream that shows anchor `name`. REQUIRES: it is connected."""
        return self._outputs[name]

    def refuse_unbound(self, anchors: list[Anchor], program: str) -> None:
        """Checks that `anchors` are connected before `program` runs.

        Raises:
            ApplicationRuntimeError: some are not; names all of them.
        """
        unbound = [anchor.name for anchor in anchors if not self.is_bound(anchor)]
        if unbound:
            raise ApplicationRuntimeError(
                f"the {program} programs of executable '{self._executable.name}' use anchors that nothing is connected to: "
                f"{', '.join(unbound)}; bind a queue (create_queue_manager) or a handler (set_user_input_handler, set_user_output_handler)"
            )

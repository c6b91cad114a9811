"""`PackRequest`: one sequence of a request, checked, on its way into a pack and its results on their way out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from poprt.runtime.pack_layout import PackGroup, PackLayout
from poprt.runtime.packing_config import PackRunnerConfig
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import DataDesc
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, Waiters

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackRequest:
    """One sequence.

    Attributes:
        inputs: By name, [length, ...] each; masks and positions where they were given.
        lengths: Its tokens in each group of inputs.
        outputs: Memory of the caller, by name; None: allocated, and all outputs are wanted.
        is_batched: Whether the request gave arrays [1, length, ...]; allocated outputs then have that dimension too.
        future: Its result.
    """

    inputs: Mapping[str, Array]
    lengths: tuple[int, ...]
    outputs: Mapping[str, Array] | None
    is_batched: bool
    future: InferenceFuture

    def deliver(self, layout: PackLayout, results: Mapping[str, Array], starts: tuple[int, ...], number: int) -> dict[str, Array]:
        """Copies its part of a batch's results to where the caller gets them, by name.

        Args:
            layout: Of the model.
            results: Of the whole batch.
            starts: Where its tokens begin, in each group.
            number: Which sequence of the batch it is.
        """
        delivered: dict[str, Array] = {}
        for name in results if self.outputs is None else self.outputs:
            group = layout.token_outputs.get(name)
            if group is None:
                part = results[name][number]
            else:
                rows = results[name].reshape(-1, *results[name].shape[2:])
                part = rows[starts[group] : starts[group] + self.lengths[group]]
            if self.outputs is None:
                delivered[name] = part[np.newaxis].copy() if self.is_batched else part.copy()
                continue
            target = self.outputs[name]
            memory = target[0, ...] if target.ndim > part.ndim else target
            np.copyto(memory if group is None else memory[: self.lengths[group]], part)
            delivered[name] = target
        return delivered


class RequestReader:
    """Checks requests against one packed model. Any thread may use it."""

    def __init__(
        self,
        layout: PackLayout,
        config: PackRunnerConfig,
        inputs: Mapping[str, DataDesc],
        outputs: Mapping[str, DataDesc],
        waiters: Waiters,
    ) -> None:
        """Takes the model's layout, its inputs and outputs by name, and the counter of the threads that wait."""
        self._layout = layout
        self._config = config
        self._inputs = inputs
        self._outputs = outputs
        self._waiters = waiters

    def read(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None) -> PackRequest:
        """One request.

        Raises:
            ApplicationRuntimeError: a name, shape, dtype or length is wrong; says which was expected.
        """
        known = [name for group in self._layout.groups for name in group.names]
        for name in inputs:
            if name not in known and name != self._layout.unpack_info:
                raise ApplicationRuntimeError(f"the packed model has no input '{name}'; it has {', '.join(known)}")
        given: dict[str, Array] = {}
        lengths: list[int] = []
        is_batched = False
        for group in self._layout.groups:
            batched = [name for name in group.names if name in inputs and self._is_batched(name, inputs[name])]
            is_batched = is_batched or bool(batched)
            arrays = {name: self._checked(name, inputs[name], group) for name in group.names if name in inputs}
            lacking = [name for name in group.inputs if name not in arrays]
            if lacking:
                raise ApplicationRuntimeError(f"the request lacks input '{lacking[0]}'")
            lengths.append(self._length(group, arrays))
            given |= self._without_padding(arrays) if self._config.padding_remove_mask in arrays else arrays
            lengths[-1] = len(given[group.dynamic]) if group.dynamic in given else lengths[-1]
            self._refuse_length(group, lengths[-1])
        return PackRequest(
            given,
            tuple(lengths),
            None if outputs is None else self._checked_outputs(outputs, lengths),
            is_batched,
            InferenceFuture(self._waiters),
        )

    def _is_batched(self, name: str, array: Array) -> bool:
        return np.ndim(array) == len(self._inputs[name].shape)

    def _checked(self, name: str, array: Array, group: PackGroup) -> Array:
        """`array` as [length, ...]."""
        desc = self._inputs[name]
        array = np.asarray(array)
        if name != group.mask and array.dtype != desc.numpy_data_type():
            raise ApplicationRuntimeError(f"input '{name}' is {array.dtype}, expected {desc.numpy_data_type()}")
        one = array[0, ...] if array.ndim == len(desc.shape) and array.shape[0] == 1 else array
        if one.ndim != len(desc.shape) - 1 or one.shape[1:] != tuple(desc.shape[2:]):
            rest = "".join(f", {size}" for size in desc.shape[2:])
            raise ApplicationRuntimeError(
                f"input '{name}' has shape {list(array.shape)}; a request to a PackRunner is one sequence: "
                f"[length{rest}] or [1, length{rest}]"
            )
        return one

    def _length(self, group: PackGroup, arrays: Mapping[str, Array]) -> int:
        length = len(arrays[group.dynamic] if group.dynamic in arrays else arrays[group.inputs[0]])
        for name, array in arrays.items():
            if len(array) != length:
                raise ApplicationRuntimeError(f"input '{name}' has {len(array)} tokens, '{group.dynamic}' has {length}")
        return length

    def _without_padding(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        mask = arrays[self._config.padding_remove_mask]
        kept = np.flatnonzero(mask)
        names = (self._config.padding_remove_mask, *self._config.padding_remove_inputs)
        # Inputs that were not named count tokens, as positions do: they lose their end.
        return {name: array[kept] if name in names else array[: len(kept)] for name, array in arrays.items()}

    def _refuse_length(self, group: PackGroup, length: int) -> None:
        longest = min(self._layout.longest, group.shape.tokens) if len(self._layout.groups) == 1 else group.shape.row_length
        if not 1 <= length <= longest:
            raise ApplicationRuntimeError(f"input '{group.dynamic}' has {length} tokens; this model packs sequences of 1 to {longest}")

    def _checked_outputs(self, outputs: Mapping[str, Array], lengths: list[int]) -> Mapping[str, Array]:
        for name, array in outputs.items():
            desc = self._outputs.get(name)
            if desc is None:
                raise ApplicationRuntimeError(f"the packed model has no output '{name}'; it has {', '.join(self._outputs)}")
            group = self._layout.token_outputs.get(name)
            rest = tuple(desc.shape[1:] if group is None else desc.shape[2:])
            least = 0 if group is None else lengths[group]
            one = array[0, ...] if array.ndim == len(desc.shape) and array.shape[0] == 1 else array
            tail = one.shape if group is None else one.shape[1:]
            if array.dtype != desc.numpy_data_type() or tail != rest or (group is not None and (one.ndim == 0 or len(one) < least)):
                wanted = list(rest) if group is None else [f"{least} or more", *rest]
                raise ApplicationRuntimeError(
                    f"output '{name}' is {array.dtype}{list(array.shape)}, expected {desc.numpy_data_type()}"
                    f"[{', '.join(map(str, wanted))}], or a dimension of 1 before it"
                )
            if not array.flags.writeable:
                raise ApplicationRuntimeError(f"output '{name}' cannot be written to")
        return outputs

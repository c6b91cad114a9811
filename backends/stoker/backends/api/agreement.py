"""Checks that a model file agrees with the served signature."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.backends.api.candidate import Violation, reject
from stoker.backends.api.model import VARIABLE, FileTensor, ModelSignature, TensorSpec
from stoker.backends.api.ragged import BatchInput


def disagreements(signature: ModelSignature, inputs: Sequence[FileTensor], outputs: Sequence[FileTensor]) -> Iterator[Violation]:
    """Returns all contradictions between `signature` and the tensors of the model file.

    Names, datatypes (the file's own, or one that the backend casts it to), ranks and fixed sizes must agree; the signature may fix a size
    that is variable in the file, never the reverse. Every input the file needs must be in the signature; outputs may be left out. With
    max_batch_size n the first dimension of every file tensor is the batch: open, or fixed to exactly n, and then the device always computes
    n rows. Any other fixed size could not take what the signature allows.
    """
    scattered = {output.name for output in signature.batch_outputs}
    for side, specs, tensors in (("input", signature.inputs, inputs), ("output", signature.outputs, outputs)):
        by_name = {tensor.name: tensor for tensor in tensors}
        for index, spec in enumerate(specs):
            at = f"{side}[{index}]"
            tensor = by_name.get(spec.name)
            if tensor is None:
                yield Violation(f"{at}.name", f"{side} '{spec.name}' is not in the model file; its {side}s: {', '.join(by_name) or 'none'}")
            elif spec.is_ragged:
                yield from _Pair(at, f"{side} '{spec.name}'", replace(spec, dims=(VARIABLE,)), tensor, 0).disagreements()
            else:
                batch_size = 0 if spec.name in scattered else signature.max_batch_size
                known = replace(tensor, shape=None) if spec.name in scattered else tensor
                yield from _Pair(at, f"{side} '{spec.name}'", spec, known, batch_size).disagreements()
                if signature.is_ragged and batch_size > 0 and known.shape and known.shape[0] != VARIABLE:
                    yield Violation(
                        "max_batch_size",
                        f"{side} '{spec.name}' has shape {list(known.shape)} in the model file, so its batch is fixed to {known.shape[0]}; "
                        "ragged batches are as large as their requests make them, and not padded",
                    )
    made = {each.name: each for each in signature.batch_inputs}
    yield from _artefact_violations(made.values(), {tensor.name: tensor for tensor in inputs})
    for tensor in inputs:
        if signature.input(tensor.name) is None and not tensor.optional and tensor.name not in made:
            yield Violation("input", f"the model file needs input '{tensor.name}', which the configuration does not have")


def check_agreement(signature: ModelSignature, inputs: Sequence[FileTensor], outputs: Sequence[FileTensor]) -> int | None:
    """Checks `signature` against the tensors of the model file.

    Returns:
        The `static_batch_size` the instance must declare: n if some tensor's first dimension is fixed to n, None otherwise.

    Raises:
        ModelLoadError: there are `disagreements`; the message names each tensor and both sides.
    """
    reject(disagreements(signature, inputs, outputs))
    scattered = {output.name for output in signature.batch_outputs}
    served = {("input", spec.name) for spec in signature.inputs if not spec.is_ragged}
    served |= {("output", spec.name) for spec in signature.outputs if spec.name not in scattered}
    shapes = [
        tensor.shape
        for side, tensors in (("input", inputs), ("output", outputs))
        for tensor in tensors
        if tensor.shape and (side, tensor.name) in served
    ]
    return signature.max_batch_size if signature.is_batched and any(shape[0] != VARIABLE for shape in shapes) else None


def _artefact_violations(made: Iterable[BatchInput], in_file: Mapping[str, FileTensor]) -> Iterator[Violation]:
    """Returns violations of the file's inputs that are `made` from the batch."""
    for each in made:
        tensor = in_file.get(each.name)
        if tensor is None:
            yield Violation("batch_input", f"input '{each.name}' is not in the model file; its inputs: {', '.join(in_file) or 'none'}")
        elif each.datatype not in (tensor.datatype, *tensor.casts):
            yield Violation(
                "batch_input",
                f"input '{each.name}' is {each.datatype.config_name} in the configuration "
                f"and {tensor.datatype.config_name} in the model file",
            )


@dataclass(frozen=True, slots=True)
class _Pair:
    """A tensor of the signature and its counterpart in the file."""

    at: str
    name: str
    spec: TensorSpec
    tensor: FileTensor
    max_batch_size: int

    def disagreements(self) -> Iterator[Violation]:
        if self.spec.datatype not in (self.tensor.datatype, *self.tensor.casts):
            yield Violation(
                f"{self.at}.data_type",
                f"{self.name} is {self.spec.datatype.config_name} in the configuration "
                f"and {self.tensor.datatype.config_name} in the model file",
            )
        if self.at.startswith("input") and self.spec.optional and not self.tensor.optional:
            yield Violation(f"{self.at}.optional", f"{self.name} is optional in the configuration, but the model file cannot do without it")
        if self.tensor.shape is not None:
            yield from self._shapes(self.tensor.shape)

    def _shapes(self, shape: tuple[int, ...]) -> Iterator[Violation]:
        dims = shape
        if self.max_batch_size > 0:
            if not shape:
                yield Violation(
                    "max_batch_size",
                    f"{self.name} is a scalar in the model file, it has no batch dimension; "
                    f"max_batch_size {self.max_batch_size} needs one: write 0",
                )
                return
            if shape[0] not in (VARIABLE, self.max_batch_size):
                yield Violation(
                    "max_batch_size",
                    f"{self.name} has shape {list(shape)} in the model file, so its batch is fixed to {shape[0]}, which does not go "
                    f"with max_batch_size {self.max_batch_size}: write {shape[0]}, or 0 and the whole shape as dims",
                )
                return
            dims = shape[1:]
        wanted = self.spec.model_dims
        if len(wanted) != len(dims) or any(size not in (VARIABLE, dim) for dim, size in zip(wanted, dims, strict=True)):
            batch = "batch and dims" if self.max_batch_size > 0 else "dims"
            configured = [VARIABLE, *wanted] if self.max_batch_size > 0 else list(wanted)
            field = "dims" if self.spec.reshape is None else "reshape.shape"
            yield Violation(
                f"{self.at}.{field}", f"{self.name} has {batch} {configured} in the configuration and shape {list(shape)} in the model file"
            )

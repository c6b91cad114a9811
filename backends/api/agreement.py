"""Whether a model file offers what the served signature promises."""

from collections.abc import Sequence

from backends.api.errors import ModelLoadError
from backends.api.model import VARIABLE, FileTensor, ModelSignature, TensorSpec


def check_agreement(signature: ModelSignature, inputs: Sequence[FileTensor], outputs: Sequence[FileTensor]) -> int | None:
    """Holds `signature` against the tensors of the file that is to serve it.

    Names, datatypes, ranks and fixed sizes must agree; where the file leaves a size open the signature may fix it, never the reverse.
    Every input the file needs must be in the signature; outputs may be left out. With max_batch_size n the first dimension of every
    file tensor is the batch: open, or fixed to exactly n, and then the device always computes n rows. Any other fixed size could not
    take what the signature allows.

    Returns:
        The `static_batch_size` the instance must declare: n if some tensor's first dimension is fixed to n, None otherwise.

    Raises:
        ModelLoadError: they disagree; the message names the tensor and both sides.
    """
    fixed = [
        *_check_side("input", signature.inputs, inputs, signature.max_batch_size),
        *_check_side("output", signature.outputs, outputs, signature.max_batch_size),
    ]
    for tensor in inputs:
        if signature.input(tensor.name) is None and not tensor.optional:
            raise ModelLoadError(f"the model file needs input '{tensor.name}', which the configuration does not have")
    return signature.max_batch_size if any(fixed) else None


def _check_side(side: str, specs: Sequence[TensorSpec], tensors: Sequence[FileTensor], max_batch_size: int) -> list[bool]:
    by_name = {tensor.name: tensor for tensor in tensors}
    fixed: list[bool] = []
    for spec in specs:
        tensor = by_name.get(spec.name)
        if tensor is None:
            raise ModelLoadError(f"{side} '{spec.name}' is not in the model file; its {side}s: {', '.join(by_name) or 'none'}")
        if spec.datatype is not tensor.datatype:
            raise ModelLoadError(
                f"{side} '{spec.name}' is {spec.datatype.config_name} in the configuration "
                f"and {tensor.datatype.config_name} in the model file"
            )
        if side == "input" and spec.optional and not tensor.optional:
            raise ModelLoadError(f"input '{spec.name}' is optional in the configuration, but the model file cannot do without it")
        if tensor.shape is not None:
            fixed.append(_check_shape(f"{side} '{spec.name}'", spec, tensor.shape, max_batch_size))
    return fixed


def _check_shape(tensor: str, spec: TensorSpec, shape: tuple[int, ...], max_batch_size: int) -> bool:
    """Returns whether the batch dimension is fixed."""
    dims = shape
    batch_is_fixed = False
    if max_batch_size > 0:
        if not shape:
            raise ModelLoadError(
                f"{tensor} is a scalar in the model file, it has no batch dimension; max_batch_size {max_batch_size} needs one: write 0"
            )
        batch_is_fixed = shape[0] != VARIABLE
        if batch_is_fixed and shape[0] != max_batch_size:
            raise ModelLoadError(
                f"{tensor} has shape {list(shape)} in the model file, so its batch is fixed to {shape[0]}, which does not go with "
                f"max_batch_size {max_batch_size}: write {shape[0]}, or 0 and the whole shape as dims"
            )
        dims = shape[1:]
    wanted = spec.model_dims
    if len(wanted) != len(dims) or any(size not in (VARIABLE, dim) for dim, size in zip(wanted, dims, strict=True)):
        batch = "batch and dims" if max_batch_size > 0 else "dims"
        configured = [VARIABLE, *wanted] if max_batch_size > 0 else list(wanted)
        raise ModelLoadError(f"{tensor} has {batch} {configured} in the configuration and shape {list(shape)} in the model file")
    return batch_is_fixed

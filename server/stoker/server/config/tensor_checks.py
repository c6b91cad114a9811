"""Checks of the declared inputs and outputs: names, dims, reshape, image formats."""

from collections.abc import Sequence
from math import prod

from stoker.server.config.limits import MAX_RANK, MAX_ROW_ELEMENTS, MAX_TENSORS
from stoker.server.config.report import Report
from stoker.server.pb import model_config_pb2 as pb

Tensor = pb.ModelInput | pb.ModelOutput

_IMAGE_FORMATS = {pb.ModelInput.FORMAT_NHWC: "FORMAT_NHWC", pb.ModelInput.FORMAT_NCHW: "FORMAT_NCHW"}


def check_tensors(config: pb.ModelConfig, report: Report) -> None:
    """Notes what is wrong with `input` and `output` by themselves."""
    sides: tuple[tuple[str, Sequence[Tensor]], ...] = (("input", config.input), ("output", config.output))
    for side, tensors in sides:
        if len(tensors) > MAX_TENSORS:
            report.error(side, f"{len(tensors)} tensors; at most {MAX_TENSORS}")
            continue
        seen: dict[str, int] = {}
        for index, tensor in enumerate(tensors):
            at = f"{side}[{index}]"
            if not tensor.name:
                report.error(f"{at}.name", "must be written")
            elif seen.setdefault(tensor.name, index) != index:
                report.error(f"{at}.name", f"'{tensor.name}' is also the name of {side}[{seen[tensor.name]}]")
            _check_shape(tensor, at, report)
    for index, image in enumerate(config.input):
        if image.format in _IMAGE_FORMATS and image.dims and len(image.dims) != 3:
            report.error(f"input[{index}].format", f"{_IMAGE_FORMATS[image.format]} needs 3 dims, not {len(image.dims)}")


def check_row(dims: Sequence[int], path: str, report: Report, *, allows_variable: bool = True) -> bool:
    """Whether `dims` (found at `path`) is a shape that a row of a tensor can have; notes it if not."""
    if len(dims) > MAX_RANK:
        report.error(path, f"{len(dims)} dimensions; at most {MAX_RANK}")
        return False
    lowest = "-1 (varies) or a size of at least 1" if allows_variable else "a size of at least 1"
    wrong = [index for index, dim in enumerate(dims) if dim < 1 and not (allows_variable and dim == -1)]
    for index in wrong:
        report.error(f"{path}[{index}]", f"takes {lowest}, not {dims[index]}")
    if not wrong and prod(dim for dim in dims if dim > 0) > MAX_ROW_ELEMENTS:
        report.error(path, f"a row would have more than {MAX_ROW_ELEMENTS} elements")
        return False
    return not wrong


def _check_shape(tensor: Tensor, at: str, report: Report) -> None:
    is_sound = check_row(tensor.dims, f"{at}.dims", report)
    if not tensor.HasField("reshape"):
        return
    shape = tensor.reshape.shape
    if not tensor.dims:
        report.error(f"{at}.reshape", "needs 'dims' beside it")
    elif is_sound and check_row(shape, f"{at}.reshape.shape", report) and _between_variables(tensor.dims) != _between_variables(shape):
        # As the variable sizes keep their order, the fixed sizes around each must have the same product.
        report.error(f"{at}.reshape.shape", f"{list(shape)} does not hold the elements of dims {list(tensor.dims)}")


def _between_variables(dims: Sequence[int]) -> list[int]:
    """Products of the runs of fixed sizes before, between and after the variable ones."""
    runs = [1]
    for dim in dims:
        if dim < 0:
            runs.append(1)
        else:
            runs[-1] *= dim
    return runs

"""The parameters of padding: `pad_buckets`, `pad_value`, `pad_mask_input` and `pad_crop_outputs`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from stoker.backends.api.candidate import parameter_path
from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.server.config.report import Report
from stoker.server.core.padding import Axis, Crop, Padding, PadGroup

BUCKETS: Final = "pad_buckets"
VALUE: Final = "pad_value"
MASK: Final = "pad_mask_input"
CROPS: Final = "pad_crop_outputs"
PARAMETERS: Final = frozenset({BUCKETS, VALUE, MASK, CROPS})
#: Bounds of one model's buckets.
MAX_BUCKETS: Final = 64
MAX_BUCKET: Final = 1 << 24
_AXIS: Final = re.compile(r"(.+?)(?:\[(\d{1,3})\])?")
_FORM: Final = "NAME[+NAME...]=SIZE,SIZE,... or NAME=auto, several of them separated by ';'"


class _Wrong(Exception):
    """A text that is not a valid setting; the message names what is wrong."""


def padding_of(parameters: Mapping[str, str], signature: ModelSignature, report: Report, *, pads_all: bool) -> Padding | None:
    """The padding of a model with `parameters`; None: there is none, or it has errors, which are reported.

    `pads_all`: the operator's setting for models without a padding of their own, TensorFlow Serving's `pad_variable_length_inputs`.
    """
    if BUCKETS not in parameters:
        for key in sorted(PARAMETERS & parameters.keys()):
            report.error(parameter_path(key), f"has no meaning without '{BUCKETS}'")
        return _of_all(signature) if pads_all and not _contradiction(signature) else None
    if reason := _contradiction(signature):
        report.error(parameter_path(BUCKETS), f"contradicts {reason}")
        return None
    padding: Padding | None = None
    for key, read in ((BUCKETS, _read_groups), (MASK, _read_mask), (VALUE, _read_values), (CROPS, _read_crops)):
        if key not in parameters:
            continue
        try:
            padding = read(parameters[key], signature, padding or Padding(groups=()))
        except _Wrong as error:
            report.error(parameter_path(key), str(error))
            return None
    return padding


def outer_signature(signature: ModelSignature, padding: Padding | None) -> ModelSignature:
    """The signature that clients see: the mask is optional, because the server makes it."""
    if padding is None or padding.mask is None:
        return signature
    inputs = tuple(replace(spec, optional=True) if spec.name == padding.mask else spec for spec in signature.inputs)
    return replace(signature, inputs=inputs)


def _contradiction(signature: ModelSignature) -> str:
    """What excludes padding; empty: nothing."""
    if not signature.is_batched:
        return "max_batch_size 0: requests share no batches"
    if signature.is_decoupled:
        return "model_transaction_policy.decoupled"
    if signature.is_ragged:
        return "ragged batches, which need no padding"
    return ""


def _of_all(signature: ModelSignature) -> Padding | None:
    """TensorFlow Serving's rule: every open axis, each for itself."""
    groups = [
        PadGroup((Axis(spec.name, axis),))
        for spec in signature.inputs
        if not spec.optional and spec.reshape is None
        for axis, dim in enumerate(spec.dims)
        if dim == VARIABLE
    ]
    return Padding(groups=tuple(groups), repeats_first=True) if groups else None


def _read_groups(text: str, signature: ModelSignature, padding: Padding) -> Padding:
    groups: list[PadGroup] = []
    seen: set[Axis] = set()
    for entry in text.split(";"):
        names, equals, sizes = entry.strip().partition("=")
        if not equals:
            raise _Wrong(f"expected {_FORM}, not '{entry[:80]}'")
        axes = tuple(_axis(name.strip(), signature.inputs, "input") for name in names.split("+"))
        for axis in axes:
            if axis in seen:
                raise _Wrong(f"'{axis.name}[{axis.axis}]' is there twice")
            seen.add(axis)
        groups.append(PadGroup(axes, () if sizes.strip() == "auto" else _sizes(sizes)))
    return replace(padding, groups=tuple(groups))


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise _Wrong(f"expected sizes such as 32,64,128 or auto, not '{text[:80]}'")
    sizes = [int(part) for part in parts]
    if sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > MAX_BUCKET or len(sizes) > MAX_BUCKETS:
        raise _Wrong(f"the sizes must ascend, from 1 to {MAX_BUCKET}, at most {MAX_BUCKETS} of them")
    return tuple(sizes)


def _read_mask(text: str, signature: ModelSignature, padding: Padding) -> Padding:
    axis = _axis(text.strip(), signature.inputs, "input")
    spec = signature.input(axis.name)
    assert spec is not None
    if spec.datatype.is_bytes:
        raise _Wrong(f"input '{axis.name}' has type TYPE_STRING; a mask has numbers")
    if len(spec.dims) != 1:
        raise _Wrong(f"input '{axis.name}' has dims {list(spec.dims)}; a mask has one, the size of the first padded axis")
    if all(axis not in group.axes for group in padding.groups):
        first, *others = padding.groups
        padding = replace(padding, groups=(replace(first, axes=(*first.axes, axis)), *others))
    return replace(padding, mask=axis.name)


def _read_values(text: str, signature: ModelSignature, padding: Padding) -> Padding:
    """`5` for all padded inputs, or `NAME=5;NAME=0`."""
    padded = list(dict.fromkeys(axis.name for group in padding.groups for axis in group.axes if axis.name != padding.mask))
    values: dict[str, str] = {}
    for entry in text.split(";") if "=" in text else [f"{name}={text}" for name in padded]:
        name, _, value = (part.strip() for part in entry.partition("="))
        if name not in padded:
            raise _Wrong(f"'{name[:80]}' is no padded input; these are {', '.join(padded)}")
        spec = signature.input(name)
        assert spec is not None
        _check_value(spec, value)
        values[name] = value
    return replace(padding, values=values)


def _check_value(spec: TensorSpec, value: str) -> None:
    if spec.datatype.is_bytes:
        return
    try:
        spec.datatype.numpy.type(float(value) if spec.datatype.numpy.kind not in "iu" else int(value))
    except (ValueError, OverflowError):
        raise _Wrong(f"'{value[:40]}' is no value of {spec.datatype.config_name}, the type of input '{spec.name}'") from None


def _read_crops(text: str, signature: ModelSignature, padding: Padding) -> Padding:
    """`NAME`, `NAME[1]` or `NAME=INPUT`, separated by commas."""
    crops: list[Crop] = []
    for entry in text.split(","):
        name, _, source = (part.strip() for part in entry.partition("="))
        group = 0
        if source:
            axis = _axis(source, signature.inputs, "input")
            found = [index for index, each in enumerate(padding.groups) if axis in each.axes]
            if not found:
                raise _Wrong(f"'{source[:80]}' is no padded input")
            group = found[0]
        crops.append(Crop(_axis(name, signature.outputs, "output"), group))
    return replace(padding, crops=tuple(crops))


def _axis(text: str, specs: Sequence[TensorSpec], side: str) -> Axis:
    """The axis of `NAME`, whose only open axis it is, or of `NAME[AXIS]`."""
    matched = _AXIS.fullmatch(text)
    name = matched[1] if matched else text
    spec = next((each for each in specs if each.name == name), None)
    if spec is None:
        raise _Wrong(f"no {side} '{name[:80]}'; there is {', '.join(each.name for each in specs)}")
    if spec.reshape is not None:
        raise _Wrong(f"{side} '{name}' has a reshape")
    open_axes = [axis for axis, dim in enumerate(spec.dims) if dim == VARIABLE]
    if matched is not None and matched[2] is not None:
        axis = int(matched[2])
        if axis not in open_axes:
            raise _Wrong(f"axis {axis} of {side} '{name}' with dims {list(spec.dims)} is not open; open are {open_axes or 'none'}")
        return Axis(name, axis)
    if len(open_axes) != 1:
        hint = f": write {name}[{open_axes[0]}]" if open_axes else ""
        raise _Wrong(f"{side} '{name}' with dims {list(spec.dims)} has {len(open_axes)} open axes, not one{hint}")
    return Axis(name, open_axes[0])

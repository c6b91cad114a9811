"""`model_warmup` of a completed configuration: compared with the signature, and in the form the loader runs."""

from math import prod

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import BY_CONFIG_NAME
from stoker.server.config.limits import MAX_WARMUP_BYTES
from stoker.server.config.report import Report, map_path
from stoker.server.config.suggestions import allowed_names
from stoker.server.core.model_config import Warmup, WarmupInput
from stoker.server.pb import model_config_pb2 as pb


def warmups(message: pb.ModelConfig, signature: ModelSignature, report: Report) -> tuple[Warmup, ...]:
    """The samples to run before READY; notes those that `signature` would refuse."""
    return tuple(_sample(sample, index, signature, report) for index, sample in enumerate(message.model_warmup))


def _sample(sample: pb.ModelWarmup, index: int, signature: ModelSignature, report: Report) -> Warmup:
    at = f"model_warmup[{index}]"
    most = max(1, signature.max_batch_size)
    if sample.batch_size > most:
        report.error(f"{at}.batch_size", f"takes 0 to {most} (max_batch_size is {signature.max_batch_size}), not {sample.batch_size}")
    rows = max(1, sample.batch_size)
    inputs: dict[str, WarmupInput] = {}
    for name, tensor in sample.inputs.items():
        spec = signature.input(name)
        if spec is None:
            report.error(map_path(f"{at}.inputs", name), f"no such input{allowed_names(name, [known.name for known in signature.inputs])}")
            continue
        inputs[name] = _input(tensor, spec, map_path(f"{at}.inputs", name), report)
    missing = [spec.name for spec in signature.inputs if spec.name not in sample.inputs and not spec.optional]
    if missing:
        report.error(f"{at}.inputs", f"lacks input(s) {', '.join(missing)}")
    size_bytes = sum(rows * prod(each.dims) * each.datatype.numpy.itemsize for each in inputs.values())
    if size_bytes > MAX_WARMUP_BYTES:
        report.error(f"{at}.inputs", f"the sample would take {size_bytes} bytes; at most {MAX_WARMUP_BYTES}")
    return Warmup(name=sample.name or f"sample {index}", batch_size=rows, count=max(1, sample.count), inputs=inputs)


def _input(tensor: pb.ModelWarmup.Input, spec: TensorSpec, at: str, report: Report) -> WarmupInput:
    datatype = BY_CONFIG_NAME[pb.DataType.Name(tensor.data_type)]
    if datatype is not spec.datatype:
        report.error(f"{at}.data_type", f"{datatype.config_name}, but the model takes {spec.datatype.config_name}")
    if len(tensor.dims) != len(spec.dims) or any(dim not in (-1, size) for dim, size in zip(spec.dims, tensor.dims, strict=True)):
        report.error(f"{at}.dims", f"{list(tensor.dims)}, but the model takes {list(spec.dims)}")
    return WarmupInput(
        datatype=datatype,
        dims=tuple(tensor.dims),
        is_random=tensor.WhichOneof("input_data_type") == "random_data",
        data_file=tensor.input_data_file or None,
    )

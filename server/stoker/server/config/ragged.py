"""Ragged inputs, and inputs and outputs made from the batch, in a completed configuration."""

from stoker.backends.api.backend import Backend
from stoker.backends.api.ragged import BatchInput, BatchInputKind, BatchOutput
from stoker.backends.api.tensor import BY_CONFIG_NAME
from stoker.server.config.report import Report
from stoker.server.config.suggestions import allowed_names
from stoker.server.pb import model_config_pb2 as pb

_TYPES = (pb.TYPE_INT32, pb.TYPE_FP32)


def made_inputs(config: pb.ModelConfig) -> frozenset[str]:
    """The model's inputs that no request brings."""
    return frozenset(name for made in config.batch_input for name in made.target_name)


def scattered_outputs(config: pb.ModelConfig) -> frozenset[str]:
    """The outputs that are cut by the shapes of an input."""
    return frozenset(name for output in config.batch_output for name in output.target_name)


def check_ragged(config: pb.ModelConfig, backend: Backend, report: Report) -> None:
    """Notes what is wrong with `allow_ragged_batch`, `batch_input` and `batch_output` of a completed `config`."""
    fields = [f"input[{index}].allow_ragged_batch" for index, tensor in enumerate(config.input) if tensor.allow_ragged_batch]
    fields += [name for name in ("batch_input", "batch_output") if len(getattr(config, name))]
    if not fields:
        return
    if not backend.takes_ragged:
        report.error(fields[0], f"not supported by backend '{backend.name}'")
    if config.max_batch_size < 1:
        report.error(fields[0], "needs a max_batch_size of at least 1: without batches nothing is joined")
    for index, tensor in enumerate(config.input):
        if tensor.allow_ragged_batch and tensor.HasField("reshape"):
            report.error(f"input[{index}].reshape", "contradicts allow_ragged_batch: the model gets one vector")
    inputs = [tensor.name for tensor in config.input]
    taken = set(inputs)
    for index, made in enumerate(config.batch_input):
        at = f"batch_input[{index}]"
        if made.data_type not in _TYPES:
            report.error(f"{at}.data_type", f"takes TYPE_INT32 or TYPE_FP32, not {pb.DataType.Name(made.data_type)}")
        if not made.target_name:
            report.error(f"{at}.target_name", "must be written")
        for place, name in enumerate(made.target_name):
            if name in taken:
                report.error(f"{at}.target_name[{place}]", f"'{name}' is also another input")
            taken.add(name)
        _check_source(list(made.source_input), inputs, f"{at}.source_input", report)
    outputs = [tensor.name for tensor in config.output]
    for index, output in enumerate(config.batch_output):
        at = f"batch_output[{index}]"
        if not output.target_name:
            report.error(f"{at}.target_name", "must be written")
        for place, name in enumerate(output.target_name):
            if name not in outputs:
                report.error(f"{at}.target_name[{place}]", f"no such output{allowed_names(name, outputs)}")
        _check_source(list(output.source_input), inputs, f"{at}.source_input", report)


def _check_source(written: list[str], inputs: list[str], at: str, report: Report) -> None:
    if len(written) != 1:
        report.error(at, f"takes exactly one input, not {len(written)}")
    for name in written:
        if name not in inputs:
            report.error(at, f"no such input{allowed_names(name, inputs)}")


def batch_inputs(config: pb.ModelConfig) -> tuple[BatchInput, ...]:
    """`batch_input` as the rest of the server knows it. REQUIRES: `check_ragged` found nothing."""
    return tuple(
        BatchInput(
            BatchInputKind(pb.BatchInput.Kind.Name(made.kind)), name, BY_CONFIG_NAME[pb.DataType.Name(made.data_type)], made.source_input[0]
        )
        for made in config.batch_input
        for name in made.target_name
    )


def batch_outputs(config: pb.ModelConfig) -> tuple[BatchOutput, ...]:
    """`batch_output` likewise."""
    return tuple(BatchOutput(name, output.source_input[0]) for output in config.batch_output for name in output.target_name)

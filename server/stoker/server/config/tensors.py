"""Inputs, outputs, batch inputs and ragged inputs: completed from the model file, or compared with it.

The rules are Triton's. If the config writes both `input` and `output`, nothing is completed. Otherwise, if every tensor of the file has an
open first dimension, that is the batch dimension: an absent or zero max_batch_size becomes 32 (Triton: 4), or the largest batch that the
file declares, and `dims` omit the dimension.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from stoker.backends.api.backend import Backend
from stoker.backends.api.model import FileTensor, ModelFacts, TensorSpec
from stoker.backends.api.ragged import BatchInput, BatchInputKind, BatchOutput
from stoker.backends.api.tensor import BY_CONFIG_NAME
from stoker.server.config.checks import Tensor, check_row
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import DEFAULT_MAX_BATCH_SIZE, FROM_CODE, Findings, Report, allowed_names
from stoker.server.config.scheduling import own_inputs, own_outputs
from stoker.server.pb import model_config_pb2 as pb

_TYPES = (pb.TYPE_INT32, pb.TYPE_FP32)


def made_inputs(config: pb.ModelConfig) -> frozenset[str]:
    """The model's inputs that the server makes; no request has them."""
    return frozenset(name for made in config.batch_input for name in made.target_name)


def scattered_outputs(config: pb.ModelConfig) -> frozenset[str]:
    """The model's outputs that the server splits by the shapes of an input."""
    return frozenset(name for output in config.batch_output for name in output.target_name)


def check_ragged(config: pb.ModelConfig, backend: Backend, report: Report) -> None:
    """Reports the errors of `allow_ragged_batch`, `batch_input` and `batch_output` of a completed `config`."""
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
        for index, name in enumerate(made.target_name):
            if name in taken:
                report.error(f"{at}.target_name[{index}]", f"'{name}' is also another input")
            taken.add(name)
        _check_source(list(made.source_input), inputs, f"{at}.source_input", report)
    outputs = [tensor.name for tensor in config.output]
    for index, output in enumerate(config.batch_output):
        at = f"batch_output[{index}]"
        if not output.target_name:
            report.error(f"{at}.target_name", "must be written")
        for index, name in enumerate(output.target_name):
            if name not in outputs:
                report.error(f"{at}.target_name[{index}]", f"no such output{allowed_names(name, outputs)}")
        _check_source(list(output.source_input), inputs, f"{at}.source_input", report)


def _check_source(written: list[str], inputs: list[str], at: str, report: Report) -> None:
    if len(written) != 1:
        report.error(at, f"takes exactly one input, not {len(written)}")
    for name in written:
        if name not in inputs:
            report.error(at, f"no such input{allowed_names(name, inputs)}")


def batch_inputs(config: pb.ModelConfig) -> tuple[BatchInput, ...]:
    """`batch_input` as the server's own type. REQUIRES: `check_ragged` found nothing."""
    return tuple(
        BatchInput(
            BatchInputKind(pb.BatchInput.Kind.Name(made.kind)), name, BY_CONFIG_NAME[pb.DataType.Name(made.data_type)], made.source_input[0]
        )
        for made in config.batch_input
        for name in made.target_name
    )


def batch_outputs(config: pb.ModelConfig) -> tuple[BatchOutput, ...]:
    """`batch_output` as the server's own type. REQUIRES: `check_ragged` found nothing."""
    return tuple(BatchOutput(name, output.source_input[0]) for output in config.batch_output for name in output.target_name)


@dataclass(frozen=True, slots=True)
class TensorCompleter:
    """Completes the tensors of `message`, which starts as a copy of what was parsed. Confined to: one completion.

    Attributes:
        default_max_batch_size: The backend's default; 0: it has none.
    """

    parsed: ParsedConfig
    message: pb.ModelConfig
    facts: ModelFacts
    findings: Findings
    report: Report
    default_max_batch_size: int = 0

    @property
    def is_skipped(self) -> bool:
        """Whether the config is complete enough that Triton would not complete it."""
        return bool(self.parsed.message.input) and bool(self.parsed.message.output)

    def complete(self) -> None:
        """Fills `max_batch_size`, `input` and `output`; reports missing values and contradictions to the file."""
        self._choose_batching()
        # Clients do not see the tensors that the server itself feeds to the model or takes from it.
        hidden = made_inputs(self.message) | own_inputs(self.message)
        self._complete_side("input", self.message.input, _without(self.facts.inputs, hidden))
        written = {tensor.name for tensor in self.message.output}
        self._complete_side("output", self.message.output, _without(self.facts.outputs, own_outputs(self.message) - written))

    def _choose_batching(self) -> None:
        written = self.message.max_batch_size
        if written > 0:
            if self.parsed.is_completed_by_code("max_batch_size"):
                self.findings.inferred("max_batch_size", f"{written}, {FROM_CODE}")
            else:
                self.findings.written("max_batch_size", str(written))
            return
        is_explicit = self.parsed.is_written("max_batch_size")
        says_tensors = bool(self.message.input) or bool(self.message.output)
        if not self.is_skipped and not (is_explicit and says_tensors) and self._is_batchable():
            in_file = self.facts.max_batch_size
            most = self.parsed.batching_defaults.max_batch_size or self.default_max_batch_size or DEFAULT_MAX_BATCH_SIZE
            self.message.max_batch_size = in_file or most
            how = ", or 'input' and 'output' too to keep 0" if is_explicit else ""
            default = f"{most}: the default for a file whose first dimensions are all open; write max_batch_size for more"
            why = (f"{in_file}: the largest batch the file was made for" if in_file else default) + how
            self.findings.inferred("max_batch_size", why)
        elif is_explicit:
            self.findings.written("max_batch_size", "0: tensors have no batch dimension")
        elif self.parsed.is_described:
            self.findings.inferred("max_batch_size", f"0, {FROM_CODE}: tensors have no batch dimension")
        else:
            why = "not written beside 'input' and 'output'" if says_tensors else "the file has tensors without an open first dimension"
            self.findings.default("max_batch_size", f"0, tensors have no batch dimension: {why}")

    def _is_batchable(self) -> bool:
        tensors = [*(self.facts.inputs or ()), *(self.facts.outputs or ())]
        return bool(self.facts.inputs and self.facts.outputs) and all(tensor.shape and tensor.shape[0] == -1 for tensor in tensors)

    def _complete_side(self, side: str, tensors: Sequence[Tensor], known: tuple[FileTensor, ...] | None) -> None:
        if known is None:
            for index, tensor in enumerate(tensors):
                self._require(tensor, f"{side}[{index}]", "the model file does not state it")
            if not tensors:
                self.report.error(side, "must be written: the model file does not state it")
            return
        by_name = {in_file.name: in_file for in_file in known}
        for index, tensor in enumerate(tensors):
            at = f"{side}[{index}]"
            if tensor.name not in by_name:
                self.report.error(f"{at}.name", f"the model file has no {side} '{tensor.name}'{allowed_names(tensor.name, by_name)}")
                continue
            self._reconcile(tensor, at, by_name[tensor.name])
        names = {tensor.name for tensor in tensors}
        absent = [in_file for in_file in known if in_file.name not in names]
        if not self.is_skipped:
            for open_tensor in absent:
                added = self.message.input.add() if side == "input" else self.message.output.add()
                added.name = open_tensor.name
                self._reconcile(added, f"{side}[{len(tensors) - 1}]", open_tensor)
        elif side == "input":
            for needed in (in_file for in_file in absent if not in_file.optional):
                self.report.error(side, f"the model file also needs input '{needed.name}'")

    def _require(self, tensor: Tensor, at: str, why: str) -> None:
        if tensor.data_type == pb.TYPE_INVALID:
            self.report.error(f"{at}.data_type", f"must be written: {why}")
        if not tensor.dims:
            self.report.error(f"{at}.dims", f"must be written: {why}")
        if tensor.data_type and tensor.dims:
            if self.parsed.is_completed_by_code(f"{at}.dims"):
                self.findings.inferred(at, f"{_described(tensor)}, {FROM_CODE}")
            else:
                self.findings.written(at, _described(tensor))

    def _reconcile(self, tensor: Tensor, at: str, known: FileTensor) -> None:
        """Fills the open fields of `tensor` from the file, and compares the others with it."""
        was_open = tensor.data_type == pb.TYPE_INVALID or not tensor.dims
        if self.is_skipped and was_open:
            self._require(tensor, at, "a config with both 'input' and 'output' is not completed from the model file")
            return
        if self._forbids_batching(known, at.partition("[")[0]):
            return
        row = known.shape if known.shape is None or self.message.max_batch_size == 0 else known.shape[1:]
        if self._is_cut_by_batch(tensor):
            # One vector for the whole batch: its shape in the file is not that of a row.
            row = None
            if isinstance(tensor, pb.ModelInput) and known.shape not in (None, (-1,)):
                self.report.error(
                    f"{at}.allow_ragged_batch",
                    f"tensor '{tensor.name}': the model file takes shape {list(known.shape or ())}, but a ragged input reaches the "
                    "model as one vector of all requests' elements, shape [-1]; leave allow_ragged_batch out: without it, requests of "
                    "equal shapes are batched",
                )
                return
        in_file = known.datatype.config_name
        if tensor.data_type == pb.TYPE_INVALID:
            tensor.data_type = pb.DataType.Value(in_file)  # type: ignore[assignment] # the stubs want an instance no value is of
        elif pb.DataType.Name(tensor.data_type) not in (in_file, *(each.config_name for each in known.casts)):
            written = pb.DataType.Name(tensor.data_type)
            self.report.error(f"{at}.data_type", f"tensor '{tensor.name}': the config says {written}, the model file has {in_file}")
        if isinstance(tensor, pb.ModelInput):
            if tensor.optional and not known.optional:
                self.report.error(f"{at}.optional", f"tensor '{tensor.name}': the model file requires it")
            tensor.optional |= known.optional and not self.parsed.is_written(f"{at}.optional")
        self._reconcile_dims(tensor, at, row)
        if tensor.dims:
            note = self.findings.inferred if was_open else self.findings.written
            note(at, _described(tensor) + (", from the model file" if was_open else ""))

    def _is_cut_by_batch(self, tensor: Tensor) -> bool:
        """Whether `tensor` is one vector for all requests of the batch."""
        return tensor.allow_ragged_batch if isinstance(tensor, pb.ModelInput) else tensor.name in scattered_outputs(self.message)

    def _forbids_batching(self, known: FileTensor, side: str) -> bool:
        """Whether the config batches although this tensor cannot be batched; reports it."""
        if self.message.max_batch_size == 0 or known.shape is None or known.shape[:1] in ((-1,), (self.message.max_batch_size,)):
            return False
        self.report.error(
            "max_batch_size",
            f"{self.message.max_batch_size}, but {side} '{known.name}' of the file has shape {list(known.shape)}; "
            "batching needs an open first dimension (-1), or one fixed to max_batch_size; "
            "write max_batch_size: 0 and the whole shape as dims",
        )
        return True

    def _reconcile_dims(self, tensor: Tensor, at: str, row: tuple[int, ...] | None) -> None:
        if not tensor.dims:
            if row is None:
                self.report.error(f"{at}.dims", f"tensor '{tensor.name}': must be written, the model file does not state its shape")
            elif row:
                tensor.dims.extend(row)
                check_row(row, f"{at}.dims", self.report)
            else:
                # Clients cannot send a tensor without dims; Triton offers scalars as [1] and reshapes.
                tensor.dims.append(1)
                tensor.reshape.SetInParent()
            return
        wanted = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
        if row is None or _fits(wanted, row):
            return
        which = "reshape" if tensor.HasField("reshape") else "dims"
        hint = ""
        if not row and wanted == [1]:
            hint = "; add 'reshape { shape: [ ] }'"
        elif self.message.max_batch_size and wanted == [-1, *row]:
            hint = "; leave the batch dimension out, or write max_batch_size: 0"
        per_row = " beside the batch dimension" if self.message.max_batch_size else ""
        path = f"{at}.{'reshape.shape' if which == 'reshape' else 'dims'}"
        self.report.error(path, f"tensor '{tensor.name}': the config says {wanted}, the model file has {list(row)}{per_row}{hint}")


def specs(tensors: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    """Completed tensors as the server's own type."""
    return tuple(
        TensorSpec(
            name=tensor.name,
            datatype=BY_CONFIG_NAME[pb.DataType.Name(tensor.data_type)],
            dims=tuple(tensor.dims),
            reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") and tensor.reshape.shape != tensor.dims else None,
            optional=isinstance(tensor, pb.ModelInput) and tensor.optional,
            is_ragged=isinstance(tensor, pb.ModelInput) and tensor.allow_ragged_batch,
        )
        for tensor in tensors
    )


def _without(tensors: tuple[FileTensor, ...] | None, hidden: Set[str]) -> tuple[FileTensor, ...] | None:
    return tensors if tensors is None or not hidden else tuple(tensor for tensor in tensors if tensor.name not in hidden)


def _fits(wanted: Sequence[int], row: Sequence[int]) -> bool:
    """Whether the file accepts a shape of the config; a shape that is open where the file is fixed is too permissive."""
    return len(wanted) == len(row) and all(size in (-1, dim) for dim, size in zip(wanted, row, strict=True))


def _described(tensor: Tensor) -> str:
    reshape = f", reshape {list(tensor.reshape.shape)}" if tensor.HasField("reshape") else ""
    optional = ", optional" if isinstance(tensor, pb.ModelInput) and tensor.optional else ""
    return f"'{tensor.name}' {pb.DataType.Name(tensor.data_type)} {list(tensor.dims)}{reshape}{optional}"

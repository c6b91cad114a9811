"""Compiles the models of a `LoadRequest`. Modules that import OpenVINO are imported only through this one."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import openvino as ov

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.candidate import parameter_path
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts, ModelSignature, TensorSpec
from stoker.backends.openvino.comparison import Incomparable, differences
from stoker.backends.openvino.instance import (
    SHARED_FROM_BYTES,
    SHARED_OUTPUT_FROM_BYTES,
    CompiledModel,
    OpenVinoInstance,
    Port,
    unchanged_inputs,
)
from stoker.backends.openvino.integers import inexact_integers
from stoker.backends.openvino.model_source import RELEASE, graph_facts, ports_by_name, read_model
from stoker.backends.openvino.parameters import ModelParameters
from stoker.backends.openvino.runtime import OPENVINO_ERRORS, public_text, rejection_of

log = logging.getLogger("stoker.backends.openvino")

_DEVICE = "CPU"
#: Generated kernels ("snippets") that fuse several matrix products in eight bits give wrong results for batches below 16: seen with release
#: 2026.4 on a Xeon with AMX, with two products, whatever the quantiser. Without them ResNet-50 in INT8 is as fast.
_FOR_EIGHT_BITS = {"SNIPPETS_MODE": "DISABLE"}


class Loader:
    """Reads and compiles models. Safe to use from several threads, as `ov.Core` is."""

    def __init__(self) -> None:
        self._core = ov.Core()

    def graph_facts(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        """The declarations of a file of any format but ONNX."""
        return graph_facts(self._core, files, model_filename)

    def load(self, request: LoadRequest, parameters: ModelParameters, static_batch_size: int | None) -> OpenVinoInstance:
        """Compiles the model for each of its batch sizes.

        Args:
            request: What to load; the file agrees with its signature.
            parameters: Of the model, read.
            static_batch_size: The batch size the file is made for; None: open.

        Raises:
            ModelLoadError: OpenVINO does not read the file, or does not compile it for one of the batch sizes.
        """
        threads = parameters.threads or request.cpu_threads
        parameters = dataclasses.replace(parameters, precision=self._precision(parameters, request.instance_name))
        properties = {
            "INFERENCE_PRECISION_HINT": parameters.precision,
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": min(parameters.pipeline_depth, threads),
            # Pinned, the threads of all instances would sit on the same cores.
            "ENABLE_CPU_PINNING": False,
        }
        inexact = self._inexact_integers(request, parameters)
        models = {
            size: self._compiled(request, properties, size, parameters.pipeline_depth)
            for size in _sizes(request.signature, parameters, static_batch_size)
        }
        instance = OpenVinoInstance(
            models,
            request.signature,
            static_batch_size=static_batch_size,
            pipeline_depth=parameters.pipeline_depth,
            are_integers_inexact=bool(inexact),
        )
        instance.findings = tuple(
            f"model '{request.model_name}' version {request.version} computes integers inexactly, as its inexact_integers allows: {each}"
            for each in inexact
        )
        if parameters.is_compared:
            instance.findings += _findings(instance, request, parameters, threads)
        return instance

    def _inexact_integers(self, request: LoadRequest, parameters: ModelParameters) -> list[str]:
        """Operators that compute integers inexactly.

        Raises:
            ModelLoadError: there are some, and the configuration does not allow it.
        """
        inexact = inexact_integers(read_model(self._core, request.files, request.model_filename).model)
        if inexact and not parameters.are_integers_inexact:
            raise ModelLoadError(f"{parameter_path('inexact_integers')}: {rejection_of(inexact)}")
        return inexact

    def _precision(self, parameters: ModelParameters, instance_name: str) -> Literal["f32", "bf16"]:
        """The type that this host computes in: without instructions for it, bfloat16 would be emulated."""
        if parameters.precision == "bf16" and "BF16" not in self._core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES"):
            log.warning("%s: precision bf16 becomes f32, as this CPU has no bfloat16 instructions", instance_name)
            return "f32"
        return parameters.precision

    def _compiled(self, request: LoadRequest, properties: Mapping[str, object], size: int, requests: int) -> CompiledModel:
        signature, filename = request.signature, request.model_filename
        source = read_model(self._core, request.files, filename)
        model = source.model
        inputs = ports_by_name("input", source.inputs, [spec.name for spec in signature.inputs], filename)
        outputs = ports_by_name("output", source.outputs, [spec.name for spec in signature.outputs], filename)
        try:
            # With the sizes that are served, which may fix what the file leaves open.
            model.reshape({index: _shape(spec, signature, size) for spec in signature.inputs for index in (inputs[spec.name],)})
            settings = {**properties, **(_FOR_EIGHT_BITS if _is_quantised(model) else {})}
            compiled = self._core.compile_model(model, _DEVICE, settings)
            copied = unchanged_inputs(compiled)
            least_bytes = [math.inf if index in copied else SHARED_OUTPUT_FROM_BYTES for index in range(len(compiled.outputs))]
            return CompiledModel(
                compiled,
                _ports(compiled.inputs, inputs, signature.inputs, [SHARED_FROM_BYTES] * len(compiled.inputs)),
                _ports(compiled.outputs, outputs, signature.outputs, least_bytes),
                requests,
            )
        except OPENVINO_ERRORS as error:
            at = f" for batch size {size}" if size else ""
            raise ModelLoadError(
                f"OpenVINO {RELEASE} does not compile '{filename}'{at}: {public_text(error, request.files.root)}"
            ) from error


def _findings(instance: OpenVinoInstance, request: LoadRequest, parameters: ModelParameters, threads: int) -> tuple[str, ...]:
    """The differences from ONNX Runtime, which are also logged. What cannot be compared is served all the same, with a note."""
    what = f"model '{request.model_name}' version {request.version} in {parameters.precision}"
    try:
        found = differences(instance, request.signature, request.files.path(request.model_filename), threads=threads)
    except Incomparable as error:
        log.warning("%s was not compared with onnxruntime: %s", what, error)
        return (f"{what} was not compared with onnxruntime: {error}",)
    for each in found:
        log.info("%s: %s", what, each)
    return tuple(f"{what}: {each}" for each in found)


def _sizes(signature: ModelSignature, parameters: ModelParameters, static_batch_size: int | None) -> tuple[int, ...]:
    """Batch sizes to compile for; 0: as the signature leaves it."""
    if not signature.is_batched:
        return (0,)
    if static_batch_size is not None:
        return (static_batch_size,)
    varies = not all(spec.is_static for spec in signature.inputs)
    return parameters.buckets_for(signature.max_batch_size, has_variable_dims=varies) or (0,)


def _is_quantised(model: ov.Model) -> bool:
    """Whether it computes in eight bits; also what QuantizeLinear becomes is a FakeQuantize."""
    return any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())


def _shape(spec: TensorSpec, signature: ModelSignature, size: int) -> ov.PartialShape:
    batch = [size or -1] if signature.is_batched else []
    return ov.PartialShape([*batch, *spec.model_dims])


def _ports(
    ports: list[ov.Output], indices: Mapping[str, int], specs: tuple[TensorSpec, ...], shared_from_bytes: Sequence[float]
) -> dict[str, Port]:
    """The ports by name; `shared_from_bytes`: from which size on the tensors of each port are handed over, bytes."""
    places = [indices[spec.name] for spec in specs]
    return {
        spec.name: Port.of(place, ports[place], spec.datatype.numpy, shared_from_bytes[place])
        for spec, place in zip(specs, places, strict=True)
    }

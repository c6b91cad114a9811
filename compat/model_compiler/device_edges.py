"""Edges to what simulated devices run: an ONNX model in memory is converted, and compiled by the target that is installed for it."""

import dataclasses
import importlib.metadata
import logging
from collections.abc import Sequence
from typing import Any

import onnx

from model_compiler.edges import Job
from model_compiler.input_shapes import InputSizes, fed_inputs, input_sizes
from model_compiler.kinds import BuildFlag
from model_compiler.models import GcuEngine, OnnxModel, PopefExecutable
from model_compiler.request import CompileRequest
from model_compiler.serving import batched_border
from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.convert.source import checked
from stoker.compiler.errors import OptionError, ShapeError
from stoker.compiler.options import CompilerOptions, compiler_options
from stoker.compiler.target import Artefact, SourceModel, Target, find_target, refusals_of

logger = logging.getLogger(__name__)

GCU_TARGET, IPU_TARGET = "gcu", "ipu"
#: Adlik's platform string of models that run on TopsInference.
GCU_PLATFORM = "topsinference"
#: Keys of TopsInference's compile options that steer its own graph compiler.
_WITHOUT_EFFECT = frozenset({"hlir_options"})


def compile_engine(source: OnnxModel, job: Job) -> GcuEngine:
    """Compiles for a simulated GCU, for each batch size: those asked for; else the one that is fixed; else 1 and max_batch_size.

    A run takes as long as its compiled batch, however few samples are in it: one sample alone should not pay for max_batch_size.

    Raises:
        OptionError: an option is unknown, or the target is not installed.
        CompileError: the model cannot be compiled for it.
    """
    request = job.request
    target = find_target(GCU_TARGET)
    options = _gcu_options(request, target)
    model = checked(source.model, source.origin)
    with refusals_of(target, options):
        sizes = input_sizes(model, request)
        converted = [_converted(model, sizes, batch, "fp32", target) for batch in _batch_sizes(sizes, request)]
    described = _source_model(model, converted[-1], request)
    artefact = _export(target, dataclasses.replace(described, batches=converted), options, job)
    inputs, outputs = batched_border(model, converted[-1], artefact, request)
    config = {
        "platform": GCU_PLATFORM,
        "platform_version": importlib.metadata.version("stoker"),
        "max_batch_size": request.max_batch_size,
    }
    return GcuEngine(path=artefact.path, filename=artefact.path.name, config=config, inputs=inputs, outputs=outputs)


def _gcu_options(request: CompileRequest, target: Target) -> CompilerOptions:
    given = dict(request.compile_options)
    for name in _WITHOUT_EFFECT & set(given):
        logger.warning("compile_options %s has no effect on a simulated device", name)
        del given[name]
    unknown = [name for name in given if name not in target.build_options]
    if unknown:
        known = sorted(target.build_options | _WITHOUT_EFFECT)
        raise OptionError(
            f"compile_options: the GCU's compiler has no {', '.join(unknown)}{did_you_mean(unknown[0], known)}; it has {', '.join(known)}"
        )
    settings: dict[str, Any] = {}
    if request.build_flag is not None or request.enable_fp16:
        settings["build_flag"] = request.flag.value
    if request.resource_mode is not None:
        settings["resource_mode"] = request.resource_mode
    return compiler_options(given, {}, settings=settings, origin="compile_options")


def _batch_sizes(sizes: InputSizes, request: CompileRequest) -> tuple[int, ...]:
    fixed = sizes.model_batch if sizes.model_batch is not None else sizes.requested_batch
    if request.batch_sizes:
        _check_fixed_batch(sizes, request.batch_sizes, "batch_sizes")
        return request.batch_sizes
    if fixed is None:
        return tuple(sorted({1, request.max_batch_size}))
    if fixed > request.max_batch_size:
        raise ShapeError(f"max_batch_size {request.max_batch_size}: the engine's batch is fixed to {fixed}, and would never be full")
    return (fixed,)


def compile_popef(source: OnnxModel, job: Job) -> PopefExecutable:
    """Compiles for a simulated IPU, with max_batch_size as its micro-batch.

    Raises:
        OptionError: the request has options that only the GCU knows, or the target is not installed.
        CompileError: the model cannot be compiled for it.
    """
    request = job.request
    only_gcu = [name for name in ("batch_sizes", "resource_mode") if getattr(request, name)]
    only_gcu += [f"compile_options {name}" for name in ("build_flag", "resource_mode") if name in request.compile_options]
    if only_gcu:
        raise OptionError(f"{' and '.join(only_gcu)}: serving_type popef has none; an IPU executable takes batches of max_batch_size")
    if request.flag is BuildFlag.MIXED:
        raise OptionError("build_flag mixed: the IPU computes in fp32 or fp16")
    target = find_target(IPU_TARGET)
    options = compiler_options(request.compile_options, {}, settings={}, origin="compile_options")
    model = checked(source.model, source.origin)
    sizes = input_sizes(model, request)
    _check_fixed_batch(sizes, (request.max_batch_size,), "max_batch_size")
    converted = _converted(model, sizes, request.max_batch_size, request.flag.value, target)
    artefact = _export(target, _source_model(model, converted, request), options, job)
    inputs, outputs = batched_border(model, converted, artefact, request)
    return PopefExecutable(path=artefact.path, filename=artefact.path.name, config=dict(artefact.config), inputs=inputs, outputs=outputs)


def _check_fixed_batch(sizes: InputSizes, wanted: Sequence[int], field: str) -> None:
    for batch, who in ((sizes.model_batch, "the model"), (sizes.requested_batch, "input_shapes")):
        if batch is not None and any(size != batch for size in wanted):
            said = ", ".join(map(str, wanted))
            raise ShapeError(f"{field} {said}: {who} has the batch fixed to {batch}; say {batch}, or leave the batch variable")


def _converted(model: onnx.ModelProto, sizes: InputSizes, batch: int, precision: str, target: Target) -> onnx.ModelProto:
    options = ConversionOptions(input_shape=sizes.of_batch(batch), precision=precision, skip_passes=target.skip_passes)
    return Converter.of(options).convert_internal(model)


def _source_model(source: onnx.ModelProto, converted: onnx.ModelProto, request: CompileRequest) -> SourceModel:
    made = [value.name for value in fed_inputs(converted)]
    order = [value.name for value in source.graph.input if value.name in made]
    inputs = (*order, *(name for name in made if name not in order))
    return SourceModel(model=converted, name=request.model_name, inputs=inputs, source=source)


def _export(target: Target, source: SourceModel, options: CompilerOptions, job: Job) -> Artefact:
    artefact = target.export([source], options, job.workspace / target.artefact_filename)
    if not artefact.config.get("max_batch_size"):
        raise ShapeError(
            f"max_batch_size {job.request.max_batch_size}: the model takes no batches: an input or output lacks the batch as dimension 0, "
            "or the rows of a batch depend on each other; 'stoker compile' writes such a model with the shapes it has"
        )
    return artefact

"""`make_plan`: computes a `Plan`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version as installed_version
from pathlib import Path

import onnx
import onnx_ir as ir

from stoker.cli.plan.accuracy import accuracy_of
from stoker.cli.plan.conversions import Conversions, collected_warnings
from stoker.cli.plan.cpu import busy_note, installed_runtimes, measured
from stoker.cli.plan.load_plan import MOST_CURVES, plan_load
from stoker.cli.plan.model import Accuracy, Combination, LoadPlan, Plan, Porting, SourceInfo, TensorInfo
from stoker.cli.plan.porting import porting_of, porting_to_cpu
from stoker.cli.plan.progress import Progress
from stoker.cli.plan.recommendation import recommendation
from stoker.cli.plan.request import PlanRequest
from stoker.cli.plan.sizing import Sizing
from stoker.cli.plan.texts import one_line
from stoker.compiler.convert.free_batch import with_free_batch
from stoker.compiler.convert.opset import opset_of
from stoker.compiler.convert.source import read_onnx
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.passes.shape import ConstBatchSize, ConstInputShape
from stoker.compiler.precision.samples import check_names, inputs_of
from stoker.compiler.target import Target, fed_inputs

#: Arrivals below which a 99th percentile is the latency of the slowest request.
_LEAST_FOR_P99 = 100


def make_plan(request: PlanRequest) -> Plan:
    """Computes the plan.

    Raises:
        OptionError: the model does not have the inputs or dimensions of the request's shapes.
        CompileError: the model cannot be read, or has other inputs than the samples.
    """
    with collected_warnings() as warnings:
        plan = _Planner(request).plan()
    return replace(plan, recommendation=recommendation(plan), notes=(*plan.notes, *warnings))


class _Planner:
    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._notes: list[str] = []
        read = read_onnx(request.model)
        if request.samples is not None:
            check_names(inputs_of(ir.from_proto(read).graph), request.samples)
        self._source, self._batches = self._freed(read)
        self._is_freed = self._source is not read
        base = self._batches[0] if self._batches else None
        if request.shapes:
            _check_shapes(self._source, request.shapes, base)
        self._conversions = Conversions(self._source, request.shapes, base)

    def _freed(self, read: onnx.ModelProto) -> tuple[onnx.ModelProto, Sequence[int]]:
        """Returns the model with a variable batch, and the batch sizes; without a variable batch, the model and its own size."""
        try:
            return with_free_batch(read, self._request.batches), self._request.batches
        except ShapeError as error:
            self._notes.append(f"sized with the shapes that it has: {error}")
            return read, ()

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def plan(self) -> Plan:
        request = self._request
        if request.load is not None and (recorded := request.load.arrivals.count) is not None and recorded < _LEAST_FOR_P99:
            self._note(f"of {recorded} recorded arrivals, p99 is the latency of the slowest: record at least {_LEAST_FOR_P99}")
        devices = sum(len(each) for each in request.devices.values())
        ways = len(request.precisions) * max(len(self._batches), 1)
        steps = len(request.targets) * (1 + len(request.precisions)) + devices * ways + len(installed_runtimes())
        porting: list[Porting] = []
        accuracy: list[Accuracy] = []
        combinations: list[Combination] = []
        with Progress(steps) as progress:
            for name, target in request.targets.items():
                if name == "cpu":
                    measured_ways, unmeasured = self._measured(progress)
                    combinations += measured_ways
                    porting.append(porting_to_cpu(measured_ways, unmeasured))
                    continue
                progress.step(f"{name}: operators")
                porting.append(porting_of(target, self._conversions))
                accuracy += self._accuracy(target, progress)
                combinations += self._sized(target, progress)
            plan = Plan(
                model=_source_info(_name_of(request.model), self._source),
                targets=tuple(request.targets),
                porting=porting,
                accuracy=accuracy,
                combinations=combinations,
                notes=self._notes,
                version=installed_version("stoker"),
            )
            return replace(plan, load=self._load(plan, progress))

    def _load(self, plan: Plan, progress: Progress) -> LoadPlan | None:
        load = self._request.load
        if load is None:
            return None
        is_multi_size = {name: target.takes_batch_sizes or target.keeps_free_dimensions for name, target in self._request.targets.items()}
        progress.more(sum(each.fits for each in plan.combinations) + MOST_CURVES)
        return plan_load(plan, load, is_multi_size, progress.step)

    def _accuracy(self, target: Target, progress: Progress) -> list[Accuracy]:
        found = []
        for precision in self._request.precisions:
            progress.step(f"{target.name}: accuracy in {precision}")
            able = [each for each in self._request.devices[target.name] if precision in each.precisions]
            if able:
                found.append(accuracy_of(target, able[0], precision, self._conversions, self._request.samples))
        return found

    def _sized(self, target: Target, progress: Progress) -> list[Combination]:
        sizing = Sizing(target, self._conversions, self._request.precisions)
        devices = self._request.devices[target.name]
        found = []
        for device in devices:
            siblings = [each for each in devices if each.name == device.name]
            for precision in self._request.precisions:
                if precision not in device.precisions:
                    progress.step(f"{device.label}: no {precision}", steps=len(self._batches) or 1)
                    self._note(f"{device.name} has no {precision}")
                    continue
                for batch in self._batches or (None,):
                    progress.step(f"{device.label}: {precision}, batch {batch or 'of the model'}")
                    found.append(sizing.combination(device, siblings, precision, batch))
        return found

    def _measured(self, progress: Progress) -> tuple[list[Combination], str]:
        """Returns what each runtime did, and why none was measured."""
        progress.step("cpu", steps=1 + len(self._request.precisions))
        if "fp32" not in self._request.precisions:
            return [], "the CPU is measured in fp32, which --precisions does not name"
        if busy := busy_note():
            self._note(busy)
        found: list[Combination] = []
        for runtime in installed_runtimes():
            progress.step(f"cpu: measuring {runtime}")
            try:
                sized = self._conversions.of(next(iter(self._request.targets.values())), "fp32")
            except CompileError as error:
                return [], one_line(error)
            batches = self._batches or (sized.batch_size or 1,)
            found += measured(runtime, self._request.model, self._source, sized.model, batches, is_freed=self._is_freed)
        return found, "" if found else "no runtime is installed"


def _check_shapes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], batch: int | None) -> None:
    """Raises:
    OptionError: the model has no such input, or its dimensions, or the batch, are others.
    """
    checked = ir.from_proto(model)
    try:
        ConstInputShape(shapes, may_lack_batch=batch is not None).run(checked)
        if batch is not None:
            ConstBatchSize(batch).run(checked)
    except ShapeError as error:
        raise OptionError(f"--input-shape: {error}") from error


def _name_of(path: Path) -> str:
    """Returns the file's name; in Triton's layout, NAME/VERSION/model.onnx, that of the model's folder."""
    whole = path.absolute()
    return whole.parent.parent.name if whole.name == "model.onnx" and whole.parent.name.isdecimal() else path.name


def _source_info(name: str, model: onnx.ModelProto) -> SourceInfo:
    return SourceInfo(
        name=name,
        opset=opset_of(model),
        nodes=len(model.graph.node),
        parameter_bytes=sum(each.ByteSize() for each in model.graph.initializer),
        inputs=tuple(_tensor_info(each) for each in fed_inputs(model)),
        outputs=tuple(_tensor_info(each) for each in model.graph.output),
    )


def _tensor_info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim)
    return TensorInfo(name=value.name, datatype=onnx.TensorProto.DataType.Name(kind.elem_type), shape=shape)

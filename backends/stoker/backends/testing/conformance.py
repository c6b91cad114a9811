"""The conformance checks: what the server relies on, asked of a backend.

`CHECKS` holds the checks by name; each takes a backend, its samples and an empty folder, and raises `AssertionError` if the backend does
not keep the contract, or `NotApplicable` if the backend has no sample for it. `check_backend` runs all of them, `check_model` checks one
version folder on the disk.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.api.backend import Arrays, Backend, Instance, LoadRequest
from stoker.backends.api.batch import Array, BatchItem, BatchProcessor, Outcome, processor_for
from stoker.backends.api.candidate import Candidate
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import BackendSamples, Sample, values

Check = Callable[[Backend, BackendSamples, Path], None]

#: The checks by name.
CHECKS: dict[str, Check] = {}


class NotApplicable(Exception):
    """The backend has no sample that a check needs; the text says which."""


def check_backend(backend: Backend, samples: BackendSamples, folder: Path) -> Mapping[str, str]:
    """Runs all checks, each in a folder of its own below `folder`.

    Returns:
        The checks that do not apply to the backend, with the reason.

    Raises:
        AssertionError: the backend does not keep the contract; a note names the check.
    """
    skipped = {}
    for number, (name, check) in enumerate(CHECKS.items()):
        own = folder / str(number)
        own.mkdir(parents=True)
        try:
            check(backend, samples, own)
        except NotApplicable as reason:
            skipped[name] = str(reason)
        except BaseException as error:
            error.add_note(f"conformance check: {name}")
            raise
    return skipped


def check_model(
    backend: Backend,
    folder: Path,
    signature: ModelSignature,
    *,
    model_filename: str = "",
    parameters: Mapping[str, str] | None = None,
    tolerance: float = 0.0,
) -> None:
    """Checks one version folder: it is inspected, accepted and loaded, and a batch equals its requests run one by one.

    Args:
        backend: The backend.
        folder: The version's files.
        signature: The tensors to serve. Inputs are filled with small numbers; a dim that varies is 2.
        model_filename: The file to load; default: the backend's `default_model_filename`.
        parameters: config.pbtxt `parameters`.
        tolerance: Relative difference that is allowed between a request in a batch and the same request alone.

    Raises:
        AssertionError: the backend does not keep the contract.
        ModelLoadError: it cannot load the files.
    """
    sizes_bytes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    request = LoadRequest(
        model_name="model",
        version=1,
        files=ModelFiles(folder, sizes_bytes),
        model_filename=model_filename or backend.default_model_filename,
        signature=signature,
        parameters=parameters or {},
    )
    facts = backend.inspect(request.files, request.model_filename)
    found = list(backend.check(request.candidate(facts)))
    assert not found, f"`check` rejects the model: {found}"
    sample = Sample({}, request.model_filename, signature, request.parameters, tolerance=tolerance)
    names = tuple(spec.name for spec in signature.outputs)
    with contextlib.closing(backend.load(request)) as instance:
        processor = processor_for(instance, signature, SystemClock())
        rows = (1, 2, 1) if signature.is_batched and signature.max_batch_size >= 4 else (1,)
        items = [BatchItem(sample.inputs(count, seed), count, names) for seed, count in enumerate(rows)]
        together = [_outputs(outcome) for outcome in processor.process(items).outcomes]
        kept = [{name: array.copy() for name, array in outputs.items()} for outputs in together]
        for item, outputs in zip(items, together, strict=True):
            _compare(sample, outputs, _outputs(processor.process([item]).outcomes[0]), names)
        for before, after in zip(kept, together, strict=True):
            assert all(before[name].tolist() == after[name].tolist() for name in names), "a later batch overwrote outputs of an earlier one"


def _check(**cases: list[object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a check; with `cases`, once for each value of each keyword argument."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        name = function.__name__.strip("_").replace("_", " ")
        combinations: list[dict[str, object]] = [{}]
        for argument, choices in cases.items():
            combinations = [{**chosen, argument: choice} for chosen in combinations for choice in choices]
        for chosen in combinations:
            label = ", ".join(str(getattr(each, "value", each)) for each in chosen.values())
            CHECKS[f"{name} [{label}]" if label else name] = _bound(function, chosen)
        return function

    return register


def _bound(function: Callable[..., None], chosen: Mapping[str, object]) -> Check:
    def run(backend: Backend, samples: BackendSamples, folder: Path) -> None:
        threads = set(threading.enumerate())
        function(backend, samples, folder, **chosen)
        left = set(threading.enumerate()) - threads
        assert not left, f"threads are left after `close`: {sorted(thread.name for thread in left)}"

    return run


def _rejects(function: Callable[[], object]) -> ServingError:
    """The error with which `function` rejects a load."""
    try:
        function()
    except ModelLoadError as error:
        return error
    raise AssertionError("the backend accepts what it must reject with a ModelLoadError")


def _outputs(outcome: Outcome) -> Arrays:
    assert not isinstance(outcome, ServingError), f"the batch failed: {outcome}"
    return outcome


def _compare(sample: Sample, found: Mapping[str, Array], expected: Mapping[str, Array], names: tuple[str, ...]) -> None:
    """Compares the outputs `names` within the sample's tolerance; types must be those of the signature."""
    for name in names:
        spec = sample.signature.output(name)
        assert spec is not None
        assert found[name].dtype == spec.datatype.numpy, f"output '{name}' is {found[name].dtype}, not {spec.datatype.numpy}"
        if sample.tolerance and expected[name].dtype.kind == "f":
            arrays: tuple[Any, Any] = (found[name], expected[name])
            np.testing.assert_allclose(*arrays, rtol=sample.tolerance)
        else:
            assert found[name].tolist() == expected[name].tolist(), f"output '{name}' differs"


def _compare_reference(sample: Sample, inputs: Arrays, found: Mapping[str, Array], names: tuple[str, ...] = ("y",)) -> None:
    _compare(sample, found, sample.expected(inputs), names)


def _model(samples: BackendSamples, datatype: DataType, dims: tuple[int, ...], max_batch_size: int = 8) -> Sample:
    sample = samples.model(datatype, dims, max_batch_size) if datatype in samples.datatypes else None
    if sample is None:
        raise NotApplicable(f"the backend has no model of {datatype.value} {list(dims)} with max_batch_size {max_batch_size}")
    return sample


def _usual_datatype(samples: BackendSamples) -> DataType:
    """A number type that the backend serves."""
    order: tuple[DataType, ...] = (DataType.FP32, DataType.INT64, DataType.INT32, DataType.FP16, *DataType)
    return next(datatype for datatype in order if datatype in samples.datatypes)


@contextlib.contextmanager
def _loaded(backend: Backend, sample: Sample, folder: Path) -> Iterator[tuple[Instance, BatchProcessor]]:
    instance = backend.load(sample.request(folder))
    try:
        yield instance, BatchProcessor(instance, sample.signature, SystemClock())
    finally:
        instance.close()


def _item(datatype: DataType, shape: tuple[int, ...], seed: int) -> BatchItem:
    return BatchItem({"x": values(datatype, shape, seed)}, shape[0], ("y",))


@_check()
def _a_batched_model_of_some_datatype_exists(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    assert samples.model(_usual_datatype(samples), (2,), 8) is not None, "without it all checks of batching would be skipped"


@_check()
def _inspect_agrees_with_the_loaded_model(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    for number, sample in enumerate(samples.every_format):
        facts = backend.inspect(sample.request(folder / str(number)).files, sample.filename)
        assert (facts.inputs is None) == (facts.outputs is None)
        if facts.inputs is not None and facts.outputs is not None:
            for in_file, served in ((facts.inputs, sample.signature.inputs), (facts.outputs, sample.signature.outputs)):
                assert {(tensor.name, tensor.datatype) for tensor in in_file} == {(spec.name, spec.datatype) for spec in served}


@_check(datatype=list(DataType))
def _a_served_datatype_is_computed_and_any_other_rejected(
    backend: Backend, samples: BackendSamples, folder: Path, datatype: DataType
) -> None:
    sample = samples.model(datatype, (3,), 8)
    if sample is None:
        assert datatype not in samples.datatypes, "a served datatype needs a model"
    elif datatype not in samples.datatypes:
        request = sample.request(folder)
        _rejects(lambda: backend.load(request))
    else:
        with _loaded(backend, sample, folder) as (instance, _):
            inputs = {"x": values(datatype, (2, 3), 1)}
            _compare_reference(sample, inputs, instance.execute(inputs, ["y"]))


@_check(datatype=[DataType.FP32, DataType.INT64, DataType.BYTES, DataType.BF16], dims_and_row=[((3,), (3,)), ((-1, 2), (4, 2)), ((), ())])
def _a_batch_equals_its_requests(
    backend: Backend, samples: BackendSamples, folder: Path, datatype: DataType, dims_and_row: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    dims, row = dims_and_row
    sample = _model(samples, datatype, dims)
    with _loaded(backend, sample, folder) as (_, processor):
        items = [_item(datatype, (rows, *row), seed) for seed, rows in enumerate((1, 3, 2))]
        together = processor.process(items)
        assert together.executions == [6]
        for one, outcome in zip(items, together.outcomes, strict=True):
            _compare_reference(sample, one.inputs, _outputs(outcome))
            _compare_reference(sample, one.inputs, _outputs(processor.process([one]).outcomes[0]))


@_check()
def _a_bad_request_fails_alone(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    sample = samples.failing
    if sample is None:
        raise NotApplicable("no model of the backend fails on a request")
    with _loaded(backend, sample, folder) as (_, processor):
        arrays = [np.array([[1, 2]]), np.array([[3, 4], [13, 5]]), np.array([[6, 7]])]
        outcomes = processor.process([BatchItem({"x": array}, len(array), ("y",)) for array in arrays]).outcomes
        _compare_reference(sample, {"x": arrays[0]}, _outputs(outcomes[0]))
        assert isinstance(outcomes[1], ServingError), "the bad request did not fail"
        assert str(folder) not in outcomes[1].message, "the error shows a path of this host"
        _compare_reference(sample, {"x": arrays[2]}, _outputs(outcomes[2]))


@_check()
def _outputs_are_not_overwritten(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    datatype = _usual_datatype(samples)
    with _loaded(backend, _model(samples, datatype, (2,)), folder) as (instance, _):
        array = np.full((2, 2), 1, datatype.numpy)
        first = instance.execute({"x": array}, ["y"])["y"]
        kept = first.copy()
        array.fill(2)
        assert first.tolist() == kept.tolist(), "the output is a view of the input, whose memory the server uses again"
        instance.execute({"x": array}, ["y"])
    assert first.tolist() == kept.tolist(), "a later batch overwrote the output"


@_check()
def _every_choice_of_outputs_is_returned(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    for number, sample in enumerate(samples.every_format):
        names = [spec.name for spec in sample.signature.outputs]
        inputs = sample.inputs(1, 0)
        with _loaded(backend, sample, folder / str(number)) as (instance, _):
            for requested in (order for count in range(1, len(names) + 1) for order in permutations(names, count)):
                found = instance.execute(inputs, requested)
                assert set(requested) <= set(found)
                _compare_reference(sample, inputs, found, requested)


@_check(datatype=[DataType.FP32, DataType.BYTES, DataType.BF16], dims=[(0,), (-1,)])
def _tensors_without_elements_pass(
    backend: Backend, samples: BackendSamples, folder: Path, datatype: DataType, dims: tuple[int, ...]
) -> None:
    with _loaded(backend, _model(samples, datatype, dims), folder) as (_, processor):
        for outcome in processor.process([_item(datatype, (2, 0), 0), _item(datatype, (1, 0), 1)]).outcomes:
            found = _outputs(outcome)["y"]
            assert found.dtype == datatype.numpy
            assert found.shape in ((2, 0), (1, 0))


@_check(dims=[(), (3,), (2, 0)])
def _a_model_without_batch_dimension_is_served(backend: Backend, samples: BackendSamples, folder: Path, dims: tuple[int, ...]) -> None:
    datatype = _usual_datatype(samples)
    sample = _model(samples, datatype, dims, 0)
    with _loaded(backend, sample, folder) as (_, processor):
        inputs = {"x": values(datatype, dims, 3)}
        found = _outputs(processor.process([BatchItem(inputs, 1, ("y",))]).outcomes[0])
        assert found["y"].shape == dims
        _compare_reference(sample, inputs, found)


@_check()
def _padding_holds_zeros(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    """Checks that a single request is padded with zeros on an instance with a fixed batch size."""
    datatype = _usual_datatype(samples)
    sample = _model(samples, datatype, (2,))
    canary = 101
    with _loaded(backend, sample, folder) as (instance, _):
        padded = _Watched(instance)
        processor = BatchProcessor(padded, sample.signature, SystemClock())
        processor.process([BatchItem({"x": np.full((8, 2), canary, datatype.numpy)}, 8, ("y",))])
        processor.process([BatchItem({"x": np.full((4, 2), canary, datatype.numpy)}, 4, ("y",)) for _ in range(2)])
        alone = {"x": np.ones((1, 2), datatype.numpy)}
        _compare_reference(sample, alone, _outputs(processor.process([BatchItem(alone, 1, ("y",))]).outcomes[0]))
    assert [len(batch) for batch in padded.seen] == [8, 8, 8]
    assert canary not in padded.seen[-1]


class _Watched(Instance):
    """An instance behind a fixed batch size of 8 rows; records the inputs `x`."""

    static_batch_size = 8

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.seen: list[Array] = []

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        self.seen.append(inputs["x"].copy())
        return self._instance.execute(inputs, output_names)


@_check()
def _an_unreadable_folder_is_rejected(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    for number, (wrong, files) in enumerate(samples.unreadable.items()):
        sample = dataclasses.replace(samples.whole, files=files)
        own = folder / str(number)
        own.mkdir()
        request = sample.request(own)
        try:
            error = _rejects(lambda request=request: backend.load(request))  # type: ignore[misc]
            assert str(folder) not in error.message, "the error shows a path of this host"
            assert sample.filename in error.message, "the error does not name the file"
            _rejects(lambda request=request, name=sample.filename: backend.inspect(request.files, name))  # type: ignore[misc]
        except AssertionError as failed:
            failed.add_note(f"folder: {wrong}")
            raise


@_check()
def _a_model_that_loads_passes_check(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    for number, sample in enumerate(samples.every_format):
        request = sample.request(folder / str(number))
        facts = backend.inspect(request.files, request.model_filename)
        assert list(backend.check(request.candidate(facts))) == []


@_check()
def _a_wrong_signature_is_rejected_by_check_and_load(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    served = samples.whole.signature
    first = served.outputs[0]
    other = DataType.INT8 if first.datatype is not DataType.INT8 else DataType.FP32
    wrong = dataclasses.replace(served, outputs=(dataclasses.replace(first, datatype=other), *served.outputs[1:]))
    request = dataclasses.replace(samples.whole, signature=wrong).request(folder)
    facts = backend.inspect(request.files, request.model_filename)
    violations = list(backend.check(request.candidate(facts)))
    # A file that declares nothing without its device is compared by `load` alone.
    assert [violation.field for violation in violations] == ["output[0].data_type"] or (facts.outputs is None and not violations)
    assert f"'{first.name}'" in _rejects(lambda: backend.load(request)).message


@_check()
def _settings_are_checked_without_a_signature(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    request = samples.whole.request(folder)
    facts = backend.inspect(request.files, request.model_filename)
    assert list(backend.check(Candidate(facts=facts, signature=None, parameters=request.parameters))) == []


@_check()
def _an_instance_closes_after_any_number_of_batches(backend: Backend, samples: BackendSamples, folder: Path) -> None:
    for number, sample in enumerate(samples.every_format):
        backend.load(sample.request(folder / f"unused{number}")).close()
        with _loaded(backend, sample, folder / f"used{number}") as (instance, _):
            for seed in range(3):
                instance.execute(sample.inputs(1, seed), [sample.signature.outputs[0].name])

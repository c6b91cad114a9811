"""What the server relies on, asked of every backend that is installed (entry-point group `stoker.backends`)."""

import contextlib
import dataclasses
import importlib.util
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.backend import Arrays, Backend, Instance
from stoker.backends.api.batch import Array, BatchItem, BatchProcessor, Outcome
from stoker.backends.api.candidate import Candidate
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.api.tensor import DataType
from tests.conformance.sample_models import DECOUPLED_ONLY, SAMPLES, BackendSamples, Sample, values

REGISTRY = BackendRegistry()

Load = Callable[[Sample], tuple[Instance, BatchProcessor]]


def backend_named(name: str) -> Backend:
    """The backend; the test is skipped where it needs the package of an extra that is not installed."""
    if name in SAMPLES and SAMPLES[name].package and importlib.util.find_spec(SAMPLES[name].package) is None:
        pytest.skip(f"backend '{name}' needs the package '{SAMPLES[name].package}', an extra, which is not installed")
    return REGISTRY.get(name)


@pytest.fixture(params=REGISTRY.names())
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_named(request.param)


@pytest.fixture
def samples(backend: Backend) -> BackendSamples:
    if backend.name in DECOUPLED_ONLY:
        pytest.skip(f"backend '{backend.name}' serves decoupled models only, which have no batches")
    assert backend.name in SAMPLES, f"tests/conformance/sample_models.py has no samples of backend '{backend.name}'"
    return SAMPLES[backend.name]


def model_of(samples: BackendSamples, datatype: DataType, dims: tuple[int, ...], max_batch_size: int = 8) -> Sample:
    sample = samples.model(datatype, dims, max_batch_size) if datatype in samples.datatypes else None
    if sample is None:
        pytest.skip(f"this backend has no model of {datatype.value} {list(dims)} with max_batch_size {max_batch_size}")
    return sample


def usual_datatype(samples: BackendSamples) -> DataType:
    """A number type that the backend serves."""
    order = (DataType.FP32, DataType.INT64, DataType.INT32, DataType.FP16, *DataType)
    return next(datatype for datatype in order if datatype in samples.datatypes)


@pytest.fixture
def processor(backend: Backend, tmp_path: Path) -> Iterator[Load]:
    """Loads a sample into an instance that the test's end closes."""
    with contextlib.ExitStack() as loaded:

        def load(sample: Sample) -> tuple[Instance, BatchProcessor]:
            instance = backend.load(sample.request(tmp_path))
            loaded.callback(instance.close)
            return instance, BatchProcessor(instance, sample.signature, SystemClock())

        yield load


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def item(datatype: DataType, shape: tuple[int, ...], seed: int) -> BatchItem:
    return BatchItem({"x": values(datatype, shape, seed)}, shape[0], ("y",))


def answered(outcome: Outcome) -> Arrays:
    assert not isinstance(outcome, ServingError), outcome
    return outcome


def check_answer(sample: Sample, inputs: Arrays, found: Mapping[str, Array], names: tuple[str, ...] = ("y",)) -> None:
    """Holds the outputs `names` of `found` against the sample's reference."""
    expected = sample.expected(inputs)
    for name in names:
        spec = sample.signature.output(name)
        assert spec is not None
        assert found[name].dtype == spec.datatype.numpy
        if sample.tolerance and expected[name].dtype.kind == "f":
            np.testing.assert_allclose(found[name], expected[name], rtol=sample.tolerance)
        else:
            assert found[name].tolist() == expected[name].tolist()


def test_a_backend_names_itself(backend: Backend) -> None:
    assert backend.name
    assert backend.default_model_filename
    assert all(REGISTRY.get(spelling) is backend for spelling in (backend.name, *backend.platforms, *backend.aliases))


def test_a_backend_shows_a_batched_model_of_some_datatype(samples: BackendSamples) -> None:
    assert samples.model(usual_datatype(samples), (2,), 8) is not None, "all tests of batching would be skipped"


def test_inspect_agrees_with_what_loads_or_leaves_it_to_the_configuration(
    backend: Backend, samples: BackendSamples, tmp_path: Path
) -> None:
    sample = samples.whole
    facts = backend.inspect(sample.request(tmp_path).files, sample.filename)
    assert (facts.inputs is None) == (facts.outputs is None)
    if facts.inputs is not None and facts.outputs is not None:
        for in_file, served in ((facts.inputs, sample.signature.inputs), (facts.outputs, sample.signature.outputs)):
            assert {(tensor.name, tensor.datatype) for tensor in in_file} == {(spec.name, spec.datatype) for spec in served}


@pytest.mark.parametrize("datatype", list(DataType))
def test_every_served_datatype_is_computed_and_others_are_refused(
    backend: Backend, samples: BackendSamples, tmp_path: Path, datatype: DataType
) -> None:
    sample = samples.model(datatype, (3,), 8)
    if sample is None:
        assert datatype not in samples.datatypes, "a datatype that is served needs a model"
        return
    if datatype not in samples.datatypes:
        with pytest.raises(ModelLoadError):
            backend.load(sample.request(tmp_path))
        return
    instance = backend.load(sample.request(tmp_path))
    inputs = {"x": values(datatype, (2, 3), 1)}
    check_answer(sample, inputs, instance.execute(inputs, ["y"]))
    instance.close()


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.INT64, DataType.BYTES, DataType.BF16])
@pytest.mark.parametrize(("dims", "row"), [((3,), (3,)), ((-1, 2), (4, 2)), ((), ())])
def test_a_batch_is_its_requests_one_below_the_other(
    processor: Load, samples: BackendSamples, datatype: DataType, dims: tuple[int, ...], row: tuple[int, ...]
) -> None:
    sample = model_of(samples, datatype, dims)
    _, unit = processor(sample)
    items = [item(datatype, (rows, *row), seed) for seed, rows in enumerate((1, 3, 2))]
    together = unit.process(items)
    assert together.executions == [6]
    for one, outcome in zip(items, together.outcomes, strict=True):
        check_answer(sample, one.inputs, answered(outcome))
        check_answer(sample, one.inputs, answered(unit.process([one]).outcomes[0]))


def test_a_bad_request_fails_alone(processor: Load, samples: BackendSamples, tmp_path: Path) -> None:
    if samples.failing is None:
        pytest.skip("no model of this backend fails on a request")
    _, unit = processor(samples.failing)
    arrays = [np.array([[1, 2]]), np.array([[3, 4], [13, 5]]), np.array([[6, 7]])]
    outcomes = unit.process([BatchItem({"x": array}, len(array), ("y",)) for array in arrays]).outcomes
    check_answer(samples.failing, {"x": arrays[0]}, answered(outcomes[0]))
    assert isinstance(outcomes[1], ServingError)
    assert str(tmp_path) not in outcomes[1].message
    check_answer(samples.failing, {"x": arrays[2]}, answered(outcomes[2]))


def test_outputs_are_not_written_again(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    datatype = usual_datatype(samples)
    instance = backend.load(model_of(samples, datatype, (2,)).request(tmp_path))
    array = np.full((2, 2), 1, datatype.numpy)
    first = instance.execute({"x": array}, ["y"])["y"]
    kept = first.copy()
    array.fill(2)
    assert first.tolist() == kept.tolist(), "the output is a view on the input, which is the server's to use again"
    instance.execute({"x": array}, ["y"])
    instance.close()
    assert first.tolist() == kept.tolist()


def test_the_outputs_asked_for_are_there(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    sample = samples.whole
    instance = backend.load(sample.request(tmp_path))
    names = [spec.name for spec in sample.signature.outputs]
    inputs = sample.inputs(1, 0)
    for asked in (order for count in range(1, len(names) + 1) for order in permutations(names, count)):
        found = instance.execute(inputs, asked)
        assert set(asked) <= set(found)
        check_answer(sample, inputs, found, asked)
    instance.close()


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.BYTES, DataType.BF16])
@pytest.mark.parametrize("dims", [(0,), (-1,)])
def test_tensors_without_elements_pass(processor: Load, samples: BackendSamples, datatype: DataType, dims: tuple[int, ...]) -> None:
    _, unit = processor(model_of(samples, datatype, dims))
    for outcome in unit.process([item(datatype, (2, 0), 0), item(datatype, (1, 0), 1)]).outcomes:
        found = answered(outcome)["y"]
        assert found.dtype == datatype.numpy
        assert found.shape in ((2, 0), (1, 0))


@pytest.mark.parametrize("dims", [(), (3,), (2, 0)])
def test_a_model_without_batch_dimension(processor: Load, samples: BackendSamples, dims: tuple[int, ...]) -> None:
    datatype = usual_datatype(samples)
    sample = model_of(samples, datatype, dims, 0)
    _, unit = processor(sample)
    inputs = {"x": values(datatype, dims, 3)}
    found = answered(unit.process([BatchItem(inputs, 1, ("y",))]).outcomes[0])
    assert found["y"].shape == dims
    check_answer(sample, inputs, found)


def test_padding_shows_nothing_of_an_earlier_batch(processor: Load, samples: BackendSamples) -> None:
    """Padded to its full batch, as a device of fixed batch size is, the model sees zeros beside a lone request."""
    datatype = usual_datatype(samples)
    sample = model_of(samples, datatype, (2,))
    instance, unit = processor(sample)
    instance.static_batch_size = 8
    seen: list[np.ndarray] = []
    execute = instance.execute

    def watch(inputs: Arrays, output_names: tuple[str, ...]) -> Arrays:
        seen.append(inputs["x"].copy())
        return execute(inputs, output_names)

    instance.execute = watch  # type: ignore[assignment, method-assign]
    canary = 101
    unit.process([BatchItem({"x": np.full((8, 2), canary, datatype.numpy)}, 8, ("y",))])
    unit.process([BatchItem({"x": np.full((4, 2), canary, datatype.numpy)}, 4, ("y",)) for _ in range(2)])
    alone = {"x": np.ones((1, 2), datatype.numpy)}
    check_answer(sample, alone, answered(unit.process([BatchItem(alone, 1, ("y",))]).outcomes[0]))
    assert [len(batch) for batch in seen] == [8, 8, 8]
    assert canary not in seen[-1]


@pytest.mark.parametrize(
    ("backend_name", "wrong"), [(name, wrong) for name in REGISTRY.names() if name in SAMPLES for wrong in SAMPLES[name].unreadable]
)
def test_a_folder_that_cannot_be_served_is_refused(tmp_path: Path, backend_name: str, wrong: str) -> None:
    backend, samples = backend_named(backend_name), SAMPLES[backend_name]
    sample = dataclasses.replace(samples.whole, files=samples.unreadable[wrong])
    request = sample.request(tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        backend.load(request)
    assert str(tmp_path) not in caught.value.message
    assert sample.filename in caught.value.message
    with pytest.raises(ModelLoadError):
        backend.inspect(request.files, sample.filename)


def test_what_loads_passes_the_check(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    request = samples.whole.request(tmp_path)
    facts = backend.inspect(request.files, request.model_filename)
    assert list(backend.check(request.candidate(facts))) == []


def test_a_signature_the_model_cannot_keep_is_refused_by_check_and_load(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    served = samples.whole.signature
    first = served.outputs[0]
    other = DataType.INT8 if first.datatype is not DataType.INT8 else DataType.FP32
    wrong = dataclasses.replace(served, outputs=(dataclasses.replace(first, datatype=other), *served.outputs[1:]))
    request = dataclasses.replace(samples.whole, signature=wrong).request(tmp_path)
    violations = list(backend.check(request.candidate(backend.inspect(request.files, request.model_filename))))
    assert [violation.field for violation in violations] == ["output[0].data_type"]
    with pytest.raises(ModelLoadError, match=f"'{first.name}'"):
        backend.load(request)


def test_without_a_signature_the_settings_are_still_checked(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    request = samples.whole.request(tmp_path)
    facts = backend.inspect(request.files, request.model_filename)
    assert list(backend.check(Candidate(facts=facts, signature=None, parameters=request.parameters))) == []


def test_an_instance_closes_after_any_number_of_batches(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    sample = samples.whole
    backend.load(sample.request(tmp_path / "unused")).close()
    instance = backend.load(sample.request(tmp_path / "used"))
    for seed in range(3):
        instance.execute(sample.inputs(1, seed), [sample.signature.outputs[0].name])
    instance.close()

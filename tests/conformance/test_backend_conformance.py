"""What the server relies on, asked of every backend that is installed (entry-point group `stoker.backends`)."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from backends.api.backend import Arrays, Backend, Instance
from backends.api.batch import BatchItem, BatchProcessor, Outcome
from backends.api.clock import SystemClock
from backends.api.errors import ModelLoadError, ServingError
from backends.api.registry import BackendRegistry
from backends.api.tensor import DataType
from tests.conformance.sample_models import PAIR, SAMPLES, BackendSamples, Sample, values

REGISTRY = BackendRegistry()


@pytest.fixture(params=REGISTRY.names())
def backend(request: pytest.FixtureRequest) -> Backend:
    return REGISTRY.get(request.param)


@pytest.fixture
def samples(backend: Backend) -> BackendSamples:
    assert backend.name in SAMPLES, f"tests/conformance/sample_models.py has no samples of backend '{backend.name}'"
    return SAMPLES[backend.name]


def processor(backend: Backend, sample: Sample, folder: Path) -> tuple[Instance, BatchProcessor]:
    instance = backend.load(sample.request(folder))
    return instance, BatchProcessor(instance, sample.signature, SystemClock())


def item(datatype: DataType, shape: tuple[int, ...], seed: int) -> BatchItem:
    return BatchItem({"x": values(datatype, shape, seed)}, shape[0], ("y",))


def answered(outcome: Outcome) -> Arrays:
    assert not isinstance(outcome, ServingError), outcome
    return outcome


def test_a_backend_names_itself(backend: Backend) -> None:
    assert backend.name
    assert backend.default_model_filename
    assert all(REGISTRY.get(spelling) is backend for spelling in (backend.name, *backend.platforms, *backend.aliases))


def test_inspect_agrees_with_what_loads_or_leaves_it_to_the_configuration(
    backend: Backend, samples: BackendSamples, tmp_path: Path
) -> None:
    facts = backend.inspect(samples.pair.request(tmp_path).files, samples.pair.filename)
    assert (facts.inputs is None) == (facts.outputs is None)
    if facts.inputs is not None and facts.outputs is not None:
        assert {(tensor.name, tensor.datatype) for tensor in facts.inputs} == {(spec.name, spec.datatype) for spec in PAIR.inputs}
        assert {(tensor.name, tensor.datatype) for tensor in facts.outputs} == {(spec.name, spec.datatype) for spec in PAIR.outputs}


@pytest.mark.parametrize("datatype", list(DataType))
def test_every_served_datatype_comes_back_as_it_went_in(
    backend: Backend, samples: BackendSamples, tmp_path: Path, datatype: DataType
) -> None:
    if datatype not in samples.datatypes:
        with pytest.raises(ModelLoadError):
            backend.load(samples.echo(datatype, (3,), 8).request(tmp_path))
        return
    instance = backend.load(samples.echo(datatype, (3,), 8).request(tmp_path))
    array = values(datatype, (2, 3), 1)
    found = instance.execute({"x": array}, ["y"])["y"]
    assert found.dtype == datatype.numpy
    assert found.tolist() == array.tolist()
    instance.close()


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.INT64, DataType.BYTES, DataType.BF16])
@pytest.mark.parametrize(("dims", "row"), [((3,), (3,)), ((-1, 2), (4, 2)), ((), ())])
def test_a_batch_is_its_requests_one_below_the_other(
    backend: Backend, samples: BackendSamples, tmp_path: Path, datatype: DataType, dims: tuple[int, ...], row: tuple[int, ...]
) -> None:
    _, unit = processor(backend, samples.echo(datatype, dims, 8), tmp_path)
    items = [item(datatype, (rows, *row), seed) for seed, rows in enumerate((1, 3, 2))]
    together = unit.process(items)
    assert together.executions == [6]
    for one, outcome in zip(items, together.outcomes, strict=True):
        alone = answered(unit.process([one]).outcomes[0])["y"]
        assert answered(outcome)["y"].tolist() == alone.tolist() == one.inputs["x"].tolist()


def test_a_bad_request_fails_alone(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    _, unit = processor(backend, samples.failing, tmp_path)
    arrays = [np.array([[1, 2]]), np.array([[3, 4], [13, 5]]), np.array([[6, 7]])]
    outcomes = unit.process([BatchItem({"x": array}, len(array), ("y",)) for array in arrays]).outcomes
    assert answered(outcomes[0])["y"].tolist() == [[1, 2]]
    assert isinstance(outcomes[1], ServingError)
    assert str(tmp_path) not in outcomes[1].message
    assert answered(outcomes[2])["y"].tolist() == [[6, 7]]


def test_outputs_are_not_written_again(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    instance = backend.load(samples.echo(DataType.FP32, (2,), 8).request(tmp_path))
    array = np.full((2, 2), 1, np.float32)
    first = instance.execute({"x": array}, ["y"])["y"]
    array.fill(2)
    assert (first == 1).all(), "the output is a view on the input, which is the server's to use again"
    second = instance.execute({"x": array}, ["y"])["y"]
    instance.close()
    assert (first == 1).all()
    assert (second == 2).all()


@pytest.mark.parametrize("outputs", [("p",), ("q",), ("q", "p")])
def test_the_outputs_asked_for_are_there(backend: Backend, samples: BackendSamples, tmp_path: Path, outputs: tuple[str, ...]) -> None:
    instance = backend.load(samples.pair.request(tmp_path))
    inputs = {"a": np.full((1, 2), 1, np.float32), "b": np.full((1, 2), 2, np.float32)}
    found = instance.execute(inputs, outputs)
    assert set(outputs) <= set(found)
    assert {name: found[name].tolist() for name in outputs} == {name: [[1, 1]] if name == "p" else [[2, 2]] for name in outputs}


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.BYTES, DataType.BF16])
@pytest.mark.parametrize("dims", [(0,), (-1,)])
def test_tensors_without_elements_pass(
    backend: Backend, samples: BackendSamples, tmp_path: Path, datatype: DataType, dims: tuple[int, ...]
) -> None:
    _, unit = processor(backend, samples.echo(datatype, dims, 8), tmp_path)
    for outcome in unit.process([item(datatype, (2, 0), 0), item(datatype, (1, 0), 1)]).outcomes:
        found = answered(outcome)["y"]
        assert found.dtype == datatype.numpy
        assert found.shape in ((2, 0), (1, 0))


@pytest.mark.parametrize("dims", [(), (3,), (2, 0)])
def test_a_model_without_batch_dimension(backend: Backend, samples: BackendSamples, tmp_path: Path, dims: tuple[int, ...]) -> None:
    _, unit = processor(backend, samples.echo(DataType.FP32, dims, 0), tmp_path)
    array = values(DataType.FP32, dims, 3)
    found = answered(unit.process([BatchItem({"x": array}, 1, ("y",))]).outcomes[0])["y"]
    assert found.shape == dims
    assert found.tolist() == array.tolist()


def test_padding_shows_nothing_of_an_earlier_batch(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    """Padded to its full batch, as a device of fixed batch size is, the model sees zeros beside a lone request."""
    instance, unit = processor(backend, samples.echo(DataType.INT64, (2,), 8), tmp_path)
    instance.static_batch_size = 8
    seen: list[np.ndarray] = []
    execute = instance.execute

    def watch(inputs: Arrays, output_names: tuple[str, ...]) -> Arrays:
        seen.append(inputs["x"].copy())
        return execute(inputs, output_names)

    instance.execute = watch  # type: ignore[assignment, method-assign]
    canary = 0x5EC2E7
    unit.process([BatchItem({"x": np.full((8, 2), canary)}, 8, ("y",))])
    unit.process([BatchItem({"x": np.full((4, 2), canary)}, 4, ("y",)) for _ in range(2)])
    outcome = answered(unit.process([BatchItem({"x": np.ones((1, 2), np.int64)}, 1, ("y",))]).outcomes[0])
    assert outcome["y"].tolist() == [[1, 1]]
    assert [len(batch) for batch in seen] == [8, 8, 8]
    assert canary not in seen[-1]


@pytest.mark.parametrize(
    ("backend_name", "wrong"), [(name, wrong) for name in REGISTRY.names() if name in SAMPLES for wrong in SAMPLES[name].unreadable]
)
def test_a_folder_that_cannot_be_served_is_refused(tmp_path: Path, backend_name: str, wrong: str) -> None:
    backend, samples = REGISTRY.get(backend_name), SAMPLES[backend_name]
    sample = dataclasses.replace(samples.pair, files=samples.unreadable[wrong])
    request = sample.request(tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        backend.load(request)
    assert str(tmp_path) not in caught.value.message
    assert sample.filename in caught.value.message
    with pytest.raises(ModelLoadError):
        backend.inspect(request.files, sample.filename)


def test_a_signature_the_model_cannot_keep_is_refused(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    output = dataclasses.replace(PAIR.outputs[0], datatype=DataType.INT8)
    wrong = dataclasses.replace(PAIR, outputs=(output, PAIR.outputs[1]))
    with pytest.raises(ModelLoadError, match="'p'"):
        backend.load(dataclasses.replace(samples.pair, signature=wrong).request(tmp_path))


def test_an_instance_closes_after_any_number_of_batches(backend: Backend, samples: BackendSamples, tmp_path: Path) -> None:
    backend.load(samples.pair.request(tmp_path / "unused")).close()
    instance = backend.load(samples.pair.request(tmp_path / "used"))
    for _ in range(3):
        instance.execute({name: np.zeros((1, 2), np.float32) for name in ("a", "b")}, ["p"])
    instance.close()

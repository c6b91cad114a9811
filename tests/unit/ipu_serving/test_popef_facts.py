"""The declarations of a PopEF file and its name map, and the config.pbtxt that they allow."""

from collections.abc import Callable

import numpy as np
import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import FileTensor
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import same_in_and_out, signature
from tests.fakes.ipu_backend import Bench, output_of
from tests.fakes.ipu_programs import Part, adding, doubling
from tests.fakes.ipu_served import echo, halving, pair, popef

F32 = DataType.FP32
TWO_ROWS = same_in_and_out(F32, max_batch_size=2)


def test_facts_are_read_without_a_device(bench: Bench) -> None:
    facts = bench.facts(popef(halving((2, 3))), TWO_ROWS)
    casts = (DataType.FP32, DataType.FP64)
    assert facts.inputs == (FileTensor("x", DataType.FP16, (2, 3), casts=casts),)
    assert facts.outputs == (FileTensor("y", DataType.FP16, (2, 3), casts=casts),)
    assert list(bench.backend.figures()) == []
    assert list(bench.backend.notices()) == []


@pytest.mark.parametrize(
    ("options", "rows", "note"),
    [
        ({}, 2, "max_batch_size 2 = micro batch 2 x device iterations 1 x replicas 1"),
        ({"batches_per_step": 3}, 6, "max_batch_size 6 = micro batch 2 x device iterations 3 x replicas 1"),
        ({"replicas": 2}, 4, "max_batch_size 4 = micro batch 2 x device iterations 1 x replicas 2"),
        ({"replicas": 2, "batches_per_step": 3}, 12, "max_batch_size 12 = micro batch 2 x device iterations 3 x replicas 2"),
    ],
)
def test_batch_is_micro_batch_times_iterations_times_replicas(bench: Bench, options: dict[str, int], rows: int, note: str) -> None:
    file = popef(doubling((2, 3)), **options)
    served = same_in_and_out(F32, (3,), rows)
    assert note in bench.facts(file, served).notes
    instance = bench.load(file, served)
    for count in (1, rows - 1, rows):
        x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
        assert output_of(instance, x).tolist() == (x + x).tolist()
    assert [each.field for each in bench.violations(file, same_in_and_out(F32, (3,), rows + 1))] == ["max_batch_size"] * 2


def test_smaller_batch_does_not_wait_for_the_starvation_timeout(bench: Bench) -> None:
    instance = bench.load(popef(doubling((1, 2)), batches_per_step=4), same_in_and_out(F32, max_batch_size=4), timeout_ns="0")
    assert output_of(instance, np.ones((1, 2), np.float32)).tolist() == [[2, 2]]


def test_model_with_streams_of_different_first_dimensions_has_no_batch(bench: Bench) -> None:
    part = Part(nodes=pair((1,)).nodes, inputs={"a": (3, 2), "b": (2,)}, outputs={"p": (3, 2), "q": (2,)})
    served = signature({"a": (F32, (3, 2)), "b": (F32, (2,))}, {"p": (F32, (3, 2)), "q": (F32, (2,))}, 0)
    for iterations in (1, 2):
        file = popef(part, batches_per_step=iterations)
        assert "no batch dimension" in bench.facts(file, served).notes
        instance = bench.load(file, served)
        inputs = {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.array([7, 8], np.float32)}
        found = instance.execute(inputs, ["p", "q"])
        assert found["p"].tolist() == inputs["a"].tolist()
        assert found["q"].tolist() == [7, 8]


def test_scalars_are_served(bench: Bench) -> None:
    for iterations in (1, 3):
        instance = bench.load(popef(echo(()), batches_per_step=iterations), same_in_and_out(F32, (), 0))
        found = output_of(instance, np.array(5, np.float32))
        assert found.shape == ()
        assert found == 5


def test_input_with_data_in_the_file_may_be_omitted(bench: Bench) -> None:
    file = popef(adding((1, 2)), tensor_data={"b": np.array([[10, 20]], np.float32)})
    facts = bench.facts(file, TWO_ROWS)
    assert facts.inputs is not None
    assert [(tensor.name, tensor.optional) for tensor in facts.inputs] == [("a", False), ("b", True)]
    instance = bench.load(file, signature({"a": (F32, (2,))}, {"total": (F32, (2,))}, 1))
    assert instance.execute({"a": np.ones((1, 2), np.float32)}, ["total"])["total"].tolist() == [[11, 21]]


def test_anchors_are_served_under_the_names_of_the_map(bench: Bench) -> None:
    served = signature({"image": (F32, (2,))}, {"scores": (F32, (2,))}, 2)
    instance = bench.load(popef(doubling((2, 2))), served, name_map='{"x": "image", "y": "scores"}')
    assert instance.execute({"image": np.ones((1, 2), np.float32)}, ["scores"])["scores"].tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "'name_map.json' is no JSON in UTF-8"),
        ('["x"]', "holds a list, expected an object from anchor to name"),
        ('{"x": 3, "y": ""}', "anchor 'x' is mapped to 3, expected a name; anchor 'y' is mapped to \"\", expected a name"),
        ('{"x": "a", "x": "b"}', "anchor 'x' is named twice"),
        ('{"image": "x"}', "names anchor 'image', which the executable does not have; it has x, y"),
        ("[" * 100_000, "'name_map.json' is no JSON in UTF-8"),
    ],
)
def test_bad_name_map_is_refused_with_its_error(bench: Bench, text: str, complaint: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        bench.facts(popef(doubling((2, 2))), TWO_ROWS, name_map=text)
    assert complaint in caught.value.message


def test_two_anchors_of_one_name_are_refused(bench: Bench) -> None:
    with pytest.raises(ModelLoadError, match="two inputs of 'model' are served as 'a'"):
        bench.facts(popef(adding((1, 2))), TWO_ROWS, name_map='{"b": "a"}')


def test_another_compilers_executable_is_refused_with_both_hashes(bench: Bench) -> None:
    file = popef(doubling((2, 2)), hash_text="0123456789abcdef")
    (violation,) = bench.violations(file, TWO_ROWS)
    assert "package hash is 0123456789abcdef, this runtime's is " in violation.message
    with pytest.raises(ModelLoadError, match="0123456789abcdef"):
        bench.load(file, TWO_ROWS)
    assert output_of(bench.load(file, TWO_ROWS, check_package_hash="false"), np.ones((1, 2), np.float32)).tolist() == [[2, 2]]


def test_operator_may_disable_the_hash_check(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(check_package_hash="false")
    assert bench.violations(popef(doubling((2, 2)), hash_text="old"), TWO_ROWS) == []


@pytest.mark.parametrize("sub_graph", ["0", "graph0"])
def test_fused_executable_is_served_by_sub_graph(bench: Bench, sub_graph: str) -> None:
    file = popef(doubling((2, 2)), adding((4, 3)))
    assert bench.facts(file, TWO_ROWS).inputs is None
    instance = bench.load(file, TWO_ROWS, sub_graph=sub_graph)
    assert output_of(instance, np.ones((1, 2), np.float32)).tolist() == [[2, 2]]


def test_each_sub_graph_of_a_fused_executable_has_its_own_names_and_batch(bench: Bench) -> None:
    file = popef(doubling((2, 2)), adding((4, 3)))
    served = signature({"left": (F32, (3,)), "b": (F32, (3,))}, {"total": (F32, (3,))}, 4)
    instance = bench.load(file, served, sub_graph="1", name_map='{"graph1/a": "left"}')
    inputs = {"left": np.ones((3, 3), np.float32), "b": np.full((3, 3), 4, np.float32)}
    assert instance.execute(inputs, ["total"])["total"].tolist() == [[5, 5, 5]] * 3


@pytest.mark.parametrize(("given", "complaint"), [({}, "must be written"), ({"sub_graph": "2"}, "'2' chooses none")])
def test_unknown_sub_graph_is_refused_with_the_existing_ones(bench: Bench, given: dict[str, str], complaint: str) -> None:
    (violation,) = bench.violations(popef(doubling((2, 2)), adding((4, 3))), TWO_ROWS, **given)
    assert violation.field == 'parameters["sub_graph"]'
    assert complaint in violation.message
    assert violation.message.endswith("the executable's sub-graphs: 0 (graph0), 1 (graph1)")


def test_sub_graph_of_a_plain_executable_is_its_only_one(bench: Bench) -> None:
    file = popef(doubling((2, 2)))
    assert bench.violations(file, TWO_ROWS, sub_graph="0") == []
    assert [each.field for each in bench.violations(file, TWO_ROWS, sub_graph="1")] == ['parameters["sub_graph"]']


def test_corrupt_file_is_refused_with_blob_and_offset_and_without_a_path(bench: Bench) -> None:
    whole = popef(doubling((2, 2)), opaques={"note": b"read by nobody" * 10})
    for at in (20, 200, len(whole) // 2, whole.index(b"by nobody"), len(whole) - 5):
        broken = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        with pytest.raises(ModelLoadError, match=r"'executable\.popef'.*offset \d+") as caught:
            bench.load(broken, TWO_ROWS)
        assert str(bench.folder) not in caught.value.message

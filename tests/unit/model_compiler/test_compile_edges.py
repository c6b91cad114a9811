"""The shortest path from a source to a target, over graphs made for these tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_compiler.compiling import TARGETS, edges
from model_compiler.edges import EdgeGraph, Job, Model
from model_compiler.request import read_request
from model_compiler.sources import SOURCES, FrozenGraphFile, IrFile, KerasFile, PaddleFile, SavedModelFolder, TfliteFile

from stoker.compiler.errors import CompileError


@dataclass
class Step:
    """A model that records its conversions."""

    label: ClassVar[str] = ""
    way: list[str] = field(default_factory=list)


class A(Step):
    label = "A file"


class B(Step):
    label = "B in memory"


class C(Step):
    label = "C in memory"


class D(Step):
    label = "D device"


class E(Step):
    label = "E file"


@pytest.fixture
def job() -> Job:
    fields = {"serving_type": "d", "model_name": "m", "max_batch_size": 1, "input_model": "m", "export_path": "x"}
    return Job(read_request(fields), Path())


def joined(graph: EdgeGraph, *pairs: tuple[type[Step], type[Step]]) -> EdgeGraph:
    def edge(source: type[Step], target: type[Step]) -> Callable[[Step, Job], Step]:
        return lambda model, _job: target([*model.way, f"{source.__name__}{target.__name__}"])

    for source, target in pairs:
        graph.add(source, target, edge(source, target))
    return graph


def test_path_with_the_fewest_edges_is_chosen(job: Job) -> None:
    graph = joined(EdgeGraph(), (A, B), (B, C), (C, D), (B, D))
    assert graph.convert(A(), D, job).way == ["AB", "BD"]
    joined(graph, (A, D))
    assert graph.convert(A(), D, job).way == ["AD"]


def test_first_added_of_equally_short_paths_is_chosen(job: Job) -> None:
    assert joined(EdgeGraph(), (A, C), (A, B), (B, D), (C, D)).convert(A(), D, job).way == ["AC", "CD"]
    assert joined(EdgeGraph(), (A, B), (A, C), (B, D), (C, D)).convert(A(), D, job).way == ["AB", "BD"]


def test_circles_end_and_equal_ends_need_no_edge(job: Job) -> None:
    graph = joined(EdgeGraph(), (A, B), (B, A), (B, C), (C, B))
    assert graph.convert(A(), C, job).way == ["AB", "BC"]
    assert graph.convert(C(["made"]), C, job).way == ["made"]


def test_error_for_a_missing_conversion_names_both_ends() -> None:
    graph = joined(EdgeGraph(), (A, B), (B, C), (E, D))
    with pytest.raises(CompileError) as caught:
        graph.path(A, D)
    assert str(caught.value) == (
        "there is no way from A file to D device; from there ways lead to: B in memory, C in memory; there, ways lead from: E file"
    )
    with pytest.raises(CompileError, match="from there ways lead to: nowhere; there, ways lead from: A file, B in memory"):
        graph.path(D, C)


def test_edge_that_returns_another_format_is_an_internal_error(job: Job) -> None:
    graph = EdgeGraph()
    graph.add(A, B, lambda model, _job: model)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="an edge to B gave a A"):
        graph.convert(A(), B, job)


KINDS = (A, B, C, D, E)


@given(st.sets(st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS))), st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_chosen_path_is_the_shortest(pairs: set[tuple[type[Step], type[Step]]], source: type[Step], target: type[Step]) -> None:
    reached, edges_taken = {source}, 0
    while target not in reached and (further := reached | {end for start, end in pairs if start in reached}) != reached:
        reached, edges_taken = further, edges_taken + 1
    graph = joined(EdgeGraph(), *sorted(pairs, key=repr))
    if target not in reached:
        with pytest.raises(CompileError, match="there is no way"):
            graph.path(source, target)
        return
    way = graph.path(source, target)
    assert len(way) == edges_taken
    assert [source, *(edge.target for edge in way)] == [*(edge.source for edge in way), target]


_OF_ONNX = {"engine", "popef", "onnx", "openvino"}
#: Targets by source, where they are not those of ONNX.
_OTHER_TARGETS = {
    SavedModelFolder: _OF_ONNX | {"tf", "tflite"},
    FrozenGraphFile: _OF_ONNX | {"tf"},
    KerasFile: _OF_ONNX | {"tf", "tflite"},
    TfliteFile: _OF_ONNX | {"tflite"},
    PaddleFile: {"openvino", "paddle"},
    IrFile: {"openvino"},
}


@pytest.mark.parametrize("source", SOURCES)
def test_source_reaches_its_targets_in_three_steps_at_most(source: type[Model]) -> None:
    graph = edges()
    reached = set()
    for name, target in TARGETS.items():
        try:
            assert 1 <= len(graph.path(source, target)) <= 3
        except CompileError:
            continue
        reached.add(name)
    assert reached == _OTHER_TARGETS.get(source, _OF_ONNX)

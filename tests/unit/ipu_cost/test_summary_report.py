"""The summary report: its figures, its JSON, its page, and other batch sizes."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from stoker.backends.ipu.compile.compiler import as_source, compile_and_get_summary_report, compile_model
from stoker.backends.ipu.compile.report_page import render_page, write_report
from stoker.backends.ipu.compile.summary_report import SummaryReport, summary_report
from stoker.backends.ipu.compile.target import IpuTarget
from stoker.backends.ipu.timing import step_timing
from stoker.compiler.cli import main
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.lowering.rebatch import rebatch
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.options import CompilerOptions
from tests.fakes.graphs import parse

MLP = """g (float[4,32] x) => (float[4,16] y) {
[up] h = MatMul(x, w) [act] a = Relu(h) [down] y = MatMul(a, v) }"""
WEIGHTS = {"w": np.ones((32, 64), np.float32), "v": np.ones((64, 16), np.float32)}
#: They fit into the memory of four tiles, not of one.
HEAVY = {"w": np.ones((32, 6000), np.float32), "v": np.ones((6000, 16), np.float32)}


def mlp(text: str = MLP, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    return parse(text, WEIGHTS if weights is None else weights)


def report_of(model: onnx.ModelProto | None = None, **settings: Any) -> SummaryReport:
    return compile_and_get_summary_report(model or mlp(), options=CompilerOptions(**settings))


class Page(HTMLParser):
    """Checks that tags are balanced, and collects the resources that the page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.headings: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "!doctype"):
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] in (["h2"], ["h3"]):
            self.headings.append(data)


def test_report_contains_the_compiled_facts() -> None:
    options = CompilerOptions(batches_per_step=4, num_io_tiles=32)
    report = compile_and_get_summary_report(mlp(), options=options)
    program = compile_model(mlp(), options=options).program
    assert report.fits
    assert tuple(each.account for each in report.memory) == program.memory
    assert report.graphs[0].timing == step_timing(program)
    assert (report.weight_bytes, report.code_bytes) == (program.weight_bytes, program.code_bytes)


def test_operations_sum_to_the_schedule() -> None:
    graph = report_of().graphs[0]
    assert [run.node for run in graph.runs] == ["x", "up", "act", "down", "y"]
    assert sum(run.total_s for run in graph.runs) == pytest.approx(graph.timing.latency_s)
    assert [run.start_s for run in graph.runs] == pytest.approx(np.cumsum([0.0, *(run.total_s for run in graph.runs)])[:-1])
    assert graph.runs[1].flops == 2 * 4 * 32 * 64
    assert graph.runs[0].host_s > 0 == graph.runs[0].compute_s


def test_lanes_are_named_by_their_concurrent_work() -> None:
    assert report_of().graphs[0].lane_names == ("tiles",)
    overlapped = report_of(num_io_tiles=32).graphs[0]
    assert overlapped.lane_names == ("load", "tiles", "store")
    assert sum(overlapped.lane_s) == pytest.approx(overlapped.timing.latency_s)


def test_holders_explain_the_fullest_tile() -> None:
    (memory,) = report_of().memory
    form = r"code, with that of the exchange|((tensor|input|weight) '\w+' of|temporary data of) node '\w+' \(\w+\)"
    assert [what for what, _ in memory.holders if not re.fullmatch(form, what)] == []
    assert memory.fullest_bytes == sum(memory.account.by_category.values()) == sum(size for _, size in memory.holders)


def test_other_batch_sizes_are_planned_separately() -> None:
    batches = {each.batch: each for each in report_of().graphs[0].batches}
    assert set(batches) == {1, 2, 4, 8, 16, 32, 64, 128}
    for size in (1, 64):
        there = compile_model(mlp(MLP.replace("[4,", f"[{size},"))).program
        assert batches[size].latency_s == step_timing(there).latency_s
        assert batches[size].tile_bytes == max(there.memory[0].tile_bytes)


def test_batches_that_exceed_the_memory_are_reported_and_larger_ones_omitted() -> None:
    report = summary_report([as_source(mlp(weights=HEAVY))], CompilerOptions(tiles_per_ipu=4), batch_sizes=(4, 16384, 32768, 65536, 131072))
    found = [(each.batch, each.fits) for each in report.graphs[0].batches]
    assert found == [(4, True), (16384, False), (32768, False)]


def test_model_that_exceeds_the_memory_is_reported_with_the_compilers_error() -> None:
    options = CompilerOptions(tiles_per_ipu=1)
    model = mlp(weights=HEAVY)
    with pytest.raises(CompileError) as caught:
        compile_model(model, options=options)
    report = compile_and_get_summary_report(model, options=options)
    assert not report.fits
    assert report.out_of_memory.splitlines()[0] == str(caught.value).splitlines()[0]
    assert "Out of memory on tile 0: " in render_page(report)


def test_reshapes_follow_the_batch() -> None:
    text = """g (float[4,6,8] x) => (float[4,48] y) {
        s = Constant<value_ints=[24,8]>() t = Constant<value_ints=[4,48]>() a = Reshape(x, s) b = MatMul(a, w) y = Reshape(b, t) }"""
    model = typed_graph(parse(text, {"w": np.ones((8, 8), np.float32)}))
    rebatch(model, axis=0, old=4, new=10)
    assert {node.name or node.outputs[0].name: tuple(node.outputs[0].shape or ()) for node in model.graph}["b"] == (60, 8)
    assert tuple(model.graph.outputs[0].shape or ()) == (10, 48)


def test_token_for_every_row_is_repeated_for_every_row() -> None:
    text = """g (float[4,6,8] x) => (float[4,7,8] y) {
        s = Constant<value_ints=[4,1,8]>() t = Expand(token, s) y = Concat<axis=1>(t, x) }"""
    model = typed_graph(parse(text, {"token": np.ones((1, 1, 8), np.float32)}))
    rebatch(model, axis=0, old=4, new=9)
    assert tuple(model.graph.outputs[0].shape or ()) == (9, 7, 8)


def test_inputs_without_rows_are_unchanged() -> None:
    text = "g (float[4,3] x, float[9,3] table) => (float[4,3] y) { t = ReduceSum(table) y = Mul(x, t) }"
    model = typed_graph(parse(text))
    rebatch(model, axis=0, old=4, new=2)
    assert [tuple(value.shape or ()) for value in model.graph.inputs] == [(2, 3), (9, 3)]


def test_model_with_the_batch_in_its_constants_cannot_be_planned_for_another(caplog: pytest.LogCaptureFixture) -> None:
    model = parse("g (float[4,3] x) => (float[4,3] y) { y = Add(x, c) }", {"c": np.ones((4, 3), np.float32)})
    with pytest.raises(ShapeError, match="batch size 2 cannot be planned: output 'y' would have shape"):
        rebatch(typed_graph(model), axis=0, old=4, new=2)
    batches = {each.batch: each for each in report_of(model).graphs[0].batches}
    assert batches[4].fits
    assert batches[2].rows_per_s is None
    assert "batch size 2 cannot be planned" in batches[2].note


def test_model_without_a_batch_dimension_has_no_other_batches() -> None:
    model = parse("g (float[4] x) => (float y) { y = ReduceSum<keepdims=0>(x) }")
    report = report_of(model)
    assert report.graphs[0].batches == ()
    assert "no batch dimension" in render_page(report)


def test_json_is_labelled_and_complete() -> None:
    content = json.loads(report_of().to_json())
    assert content["simulated"] is True
    assert "no device was measured" in content["note"]
    assert content["fits"] is True
    assert content["hardware"]["system"] == "M2000"
    (graph,) = content["graphs"]
    assert graph["timing"]["latency_s"] > 0
    assert [run["op_type"] for run in graph["runs"]] == ["Stream", "MatMul", "Relu", "MatMul", "Stream"]
    assert len(content["memory"][0]["account"]["tile_bytes"]) == 1472


@pytest.mark.parametrize("settings", [{}, {"num_io_tiles": 32, "batches_per_step": 8}, {"replication_factor": 2}])
def test_page_is_complete_labelled_and_self_contained(settings: dict[str, Any]) -> None:
    text = render_page(report_of(**settings))
    page = Page(text)
    assert page.loaded == []
    assert re.search(r"<script|@import|url\(", text) is None
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r'class="tag">(\w+)<', text) == ["simulated"] * 3
    assert page.headings == [
        "Memory of IPU 0", "Fullest tile, at its fullest moment", "Tiles by bytes held", "What holds the fullest tile", "Time of g",
        "Time line of one micro-batch",
        *(["Lanes that work side by side: the first 4 micro-batches of a call"] if settings.get("num_io_tiles") else []),
        "By operator", "Longest operations (5 of 5)", "Other batch sizes, planned anew",
    ]  # fmt: skip
    assert text.count("<svg") == text.count("<table") - 1, "every plot has its table; what holds the fullest tile is a table alone"


def test_small_weights_are_reported_in_a_unit_that_shows_them() -> None:
    report = report_of()
    assert report.weight_bytes < 2**19
    assert f"<b>{report.weight_bytes / 1024:,.1f} KiB</b><span>weights</span>" in render_page(report)


def test_names_of_nodes_are_escaped_on_the_page() -> None:
    model = mlp()
    model.graph.node[0].name = "<b>&\"'"
    model.graph.name = "<script>alert(1)</script>"
    Page(render_page(report_of(model)))
    assert "<script" not in render_page(report_of(model))


def test_fused_models_have_a_part_each_and_share_the_memory() -> None:
    sources = [as_source(mlp()), as_source(parse("other (float[2,3] x) => (float[2,3] y) { y = Exp(x) }"))]
    report = summary_report(sources, CompilerOptions())
    assert [(graph.name, graph.micro_batch_size, graph.timing.rows) for graph in report.graphs] == [("graph0", 4, 0), ("graph1", 2, 0)]
    assert len(report.memory) == 1
    assert {what for what, _ in report.memory[0].holders} >= {"weights of model 'graph0'", "activations of the model that runs"}
    Page(render_page(report))


def test_files_are_written_completely_into_a_new_folder(tmp_path: Path) -> None:
    paths = write_report(report_of(), tmp_path / "a" / "b")
    assert [path.name for path in paths] == ["summary_report.json", "summary_report.html"]
    assert json.loads(paths[0].read_text())["fits"] is True
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="file"):
        write_report(report_of(), tmp_path / "file")


def test_options_are_checked_as_for_compiling() -> None:
    with pytest.raises(OptionError, match="partials_type is 'quarter'"):
        report_of(partials_type="quarter")
    with pytest.raises(OptionError, match="there is no model"):
        IpuTarget().report([], CompilerOptions(), Path())


def test_command_writes_the_report_beside_or_instead_of_an_executable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(mlp(), source)
    line = ["--target", "ipu", "-i", str(source), "--output_dir", str(tmp_path), "--report", str(tmp_path / "report")]
    assert main(line) == 0
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["summary_report.html", "summary_report.json"]
    assert not list(tmp_path.glob("*.popef"))
    assert f"wrote {tmp_path / 'report' / 'summary_report.html'}" in capsys.readouterr().out
    assert main([*line, "--export_popef"]) == 0
    assert (tmp_path / "executable.popef").exists()


def test_command_reports_a_model_that_then_fails_to_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(mlp(weights=HEAVY), source)
    line = ["--target", "ipu", "-i", str(source), "--output_dir", str(tmp_path), "--export_popef", "--report", str(tmp_path / "report")]
    assert main([*line, "--compiler_options", "tiles_per_ipu=1"]) == 1
    assert "Out of memory on tile 0: " in capsys.readouterr().err
    assert json.loads((tmp_path / "report" / "summary_report.json").read_text())["fits"] is False


def test_planning_does_not_change_the_model() -> None:
    model = mlp()
    before = model.SerializeToString(deterministic=True)
    report_of(model)
    assert model.SerializeToString(deterministic=True) == before

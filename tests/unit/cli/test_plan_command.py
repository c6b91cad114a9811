"""`stoker plan` compares devices for any model, and writes a table, JSON and a page."""

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest

from stoker.cli.plan import model as model_of_plan
from stoker.cli.plan.figures import Figure
from tests.fakes.graphs import parse

MODEL = parse("g (float[b,t,4] x) => (float[b,t,3] y) { y = MatMul(x, w) }", {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)})


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(MODEL, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


@pytest.mark.slow
def test_every_device_precision_and_batch_has_a_combination(stoker, model: str) -> None:
    words = ("--devices", "C600,gcu", "--precisions", "fp32,fp16,fp8", "--batch_sizes", "1,4", "--input_shape", "x=5,4", "--json")
    ran = stoker("plan", model, *words)
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    ways = [(each["device"], each["count"], each["precision"], each["batch"]) for each in plan["combinations"]]
    wide = [("C600", count, precision, batch) for count in (1, 2, 4) for precision in ("fp32", "fp16", "fp8") for batch in (1, 4)]
    assert ways[: len(wide)] == wide
    assert ways[len(wide) :] == [("i20", 1, precision, batch) for precision in ("fp32", "fp16") for batch in (1, 4)]
    assert "i20 has no fp8" in plan["notes"]
    for each in plan["combinations"]:
        if not each["fits"]:
            continue
        assert each["throughput"]["value"] == pytest.approx(each["batch"] / each["period"]["value"])
        for key in ("latency", "throughput"):
            assert each[key]["low"] < each[key]["value"] < each[key]["high"]
            assert each[key]["origin"] == "simulated"
        assert each["error_source"]
        assert 0 < each["memory"]["used_bytes"] < each["memory"]["capacity_bytes"]
    ratios = {(each["target"], each["precision"]): float(each["outputs"][0]["snr_db"]) for each in plan["accuracy"]}
    assert ratios["ipu", "fp32"] > 100 > ratios["ipu", "fp16"] > 40
    assert ratios["gcu", "fp32"] > 100 > ratios["gcu", "fp16"] > 40


@pytest.mark.slow
def test_cpu_is_measured_and_labelled_with_this_machine(stoker, model: str) -> None:
    ran = stoker("plan", model, "--devices", "cpu", "--batch-sizes", "1,2", "--input-shape", "x=5,4", "--json")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    ways = [each for each in plan["combinations"] if each["device"] == "CPU, onnxruntime"]
    assert [each["batch"] for each in ways] == [1, 2]
    for each in ways:
        assert each["fits"], each["problem"]
        assert each["latency"]["origin"] == "measured"
        assert each["latency"]["low"] <= each["latency"]["value"] <= each["latency"]["high"]
        assert "this machine" in each["error_source"]
    assert [(each["target"], each["ports"]) for each in plan["porting"]] == [("cpu", True)]


def test_cpu_that_was_not_measured_has_the_reason_and_no_verdict(stoker, model: str) -> None:
    ran = stoker("plan", model, "--devices", "cpu", "--precisions", "fp16", "--json")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    reason = "not measured: the CPU is measured in fp32, which --precisions does not name"
    assert [(each["ports"], each["problem"]) for each in plan["porting"]] == [(None, reason)]
    assert not any("does not port" in each for each in plan["recommendation"])
    assert f"cpu: {reason}\n" in stoker("plan", model, "--devices", "cpu", "--precisions", "fp16").out


class _Page(HTMLParser):
    """Checks that elements are closed in order, and collects what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.plots = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.loaded += [f"{tag} {name}" for name in ("src", "href", "xlink:href", "srcset") if name in names]
        if tag in ("script", "link", "iframe", "object"):
            self.loaded.append(tag)
        if tag == "svg":
            self.plots += 1
            assert names.get("aria-label") or names.get("aria-hidden") == "true"
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An empty element of SVG."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
def test_page_is_well_formed_and_loads_nothing(stoker, model: str, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    words = ("--devices", "C600", "--precisions", "fp32,fp16", "--batch-sizes", "1,4", "--input-shape", "x=5,4", "--html", str(page))
    ran = stoker("plan", model, *words)
    assert ran.code == 0, ran.err
    assert f"wrote {page}" in ran.out
    text = page.read_text(encoding="utf-8")
    assert "2 x C600: no sharded row is published" in text
    assert "note: 2 x C600: no sharded row is published" in " ".join(ran.out.split())
    parser = _Page()
    parser.feed(text.removeprefix("<!doctype html>"))
    assert (parser.open, parser.loaded) == ([], [])
    assert parser.plots >= 2
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--devices", "tpu"), "--devices: there is no device 'tpu'; did you mean ipu, cpu?; known: ipu, gcu, cpu, C600, M2000, Bow, i20"),
        (("--devices", ""), "--devices: name at least one; known: ipu, gcu, cpu, C600, M2000, Bow, i20"),
        (("--input-shape", "z=5,4"), "--input-shape: there is no input 'z' to give a shape to; the inputs are x"),
        (("--input-shape", "x=5,3"), "--input-shape: input 'x' dimension 2 is 4 in the model and cannot be changed to 3"),
        (("--input-shape", "x=5"), "--input-shape: input 'x' has 3 dimensions"),
        (("--input-shape", "x=2,5,4"), "--input-shape: input 'x' dimension 0 is 2"),
        (("--precisions", "fp64"), "--precisions: there is no precision 'fp64'"),
        (("--batch-sizes", "0"), "expected"),
        (("--batch-sizes", "5000"), "--batch-sizes: expected sizes from 1 to 4096, got 5000"),
        (("--input-shape", "x"), "expected NAME=d0,d1"),
    ],
)
def test_invalid_argument_is_a_usage_error_of_one_line(stoker, model: str, words: tuple[str, str], text: str) -> None:
    ran = stoker("plan", model, *words)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert ran.err.count("\n") == 1


def test_unreadable_model_is_an_error_of_one_line(stoker, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08no model")
    ran = stoker("plan", str(tmp_path / "m.onnx"))
    assert (ran.code, ran.out) == (1, "")
    assert "m.onnx" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "name"), [("mine/1/model.onnx", "mine"), ("mine/latest/model.onnx", "model.onnx"), ("mine/1/m.onnx", "m.onnx")]
)
def test_model_in_a_version_folder_has_the_name_of_its_folder(stoker, tmp_path: Path, path: str, name: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    onnx.save(MODEL, file)
    ran = stoker("plan", str(file), "--devices", "cpu", "--precisions", "fp16", "--json")
    assert json.loads(ran.out)["model"]["name"] == name


def test_missing_model_is_an_error_of_one_line(stoker, tmp_path: Path) -> None:
    ran = stoker("plan", str(tmp_path / "m.onnx"))
    assert (ran.code, ran.out, ran.err) == (1, "", f"stoker: error: there is no file {tmp_path / 'm.onnx'}\n")


@pytest.mark.slow
def test_model_that_does_not_port_has_the_reason(stoker, tmp_path: Path) -> None:
    model = parse("g (float[b,4] x) => (int64[2,n] y) { y = NonZero(x) }")
    onnx.save(model, tmp_path / "m.onnx")
    ran = stoker("plan", str(tmp_path / "m.onnx"), "--devices", "C600", "--precisions", "fp32", "--batch-sizes", "1", "--json")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    assert not plan["porting"][0]["ports"]
    assert any("does not port to ipu" in each for each in plan["recommendation"])


@pytest.mark.slow
def test_load_has_the_number_of_devices_and_the_latency(stoker, model: str, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    words = ("--devices", "C600", "--precisions", "fp16", "--batch-sizes", "4,16", "--input-shape", "x=5,4", "--html", str(page), "--json")
    ran = stoker("plan", model, *words, "--rate", "500", "--p99-ms", "5")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    load = plan["load"]
    assert load["load"] == {
        "arrivals": "poisson",
        "rate_per_s": 500.0,
        "rows": 1,
        "p99_goal_s": 0.005,
        "requests": 4000,
        "host_s": 0.0,
        "request_overhead_s": 0.0,
    }
    assert [plan["combinations"][each["combination"]]["batch"] for each in load["counts"]] == [4, 16]
    for each in load["counts"]:
        assert each["used"] == each["devices"]["value"] == 1
        assert each["p50"]["value"] <= each["p99"]["value"] <= 0.005
        assert each["p99"]["low"] < each["p99"]["value"] < each["p99"]["high"] <= 0.005
        assert 0 < each["utilisation"]["value"] < 1
    assert [each["devices"] for each in load["curves"]] == [1]
    assert "1 C600 in fp16 at batch 4 carries 500 requests/s with a p99 of" in plan["recommendation"][0]
    assert "goal: 5 ms" in page.read_text(encoding="utf-8")


def test_unreachable_goal_has_the_reason(stoker, model: str) -> None:
    words = ("--devices", "C600", "--precisions", "fp16", "--batch-sizes", "4", "--input-shape", "x=5,4", "--json")
    ran = stoker("plan", model, *words, "--rate", "500", "--p99-ms", "0.001")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    assert [each["devices"] for each in plan["load"]["counts"]] == [None]
    assert "on an idle device, more than the goal" in plan["load"]["counts"][0]["problem"]
    assert plan["recommendation"][0].startswith("No combination carries 500 requests/s with a p99 of at most 0.001 ms.")


@pytest.mark.slow
def test_recorded_arrivals_are_carried(stoker, model: str, tmp_path: Path) -> None:
    (tmp_path / "arrivals.csv").write_text("# seconds,rows\n" + "".join(f"{at / 1000},{1 + at % 3}\n" for at in range(300)))
    words = ("--devices", "C600", "--precisions", "fp16", "--batch-sizes", "4", "--input-shape", "x=5,4", "--json")
    ran = stoker("plan", model, *words, "--arrivals", str(tmp_path / "arrivals.csv"), "--p99-ms", "5")
    assert ran.code == 0, ran.err
    load = json.loads(ran.out)["load"]
    assert (load["load"]["arrivals"], load["load"]["rows"], load["load"]["requests"]) == ("recorded", 3, 300)
    assert load["counts"][0]["devices"]["value"] >= 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--rate", "500"), "a load needs a goal: give --p99-ms"),
        (("--p99-ms", "5"), "--p99-ms needs a load: give --rate or --arrivals"),
        (("--rate", "500", "--p99-ms", "0"), "--p99-ms is 0, expected 0.001 to 3,600,000"),
        (("--rate", "0", "--p99-ms", "5"), "error: --rate is 0, expected 0.000001 to 1,000,000 requests per second\n"),
        (("--rate", "5", "--rows", "0", "--p99-ms", "5"), "error: --rows is 0, expected 1 to 65,536\n"),
        (("--arrivals", "no.csv", "--p99-ms", "5"), "error: --arrivals no.csv cannot be read: No such file or directory\n"),
        (("--host-ms", "1"), "--host-ms and --request-overhead-ms need a load: give --rate or --arrivals"),
        (("--rate", "5", "--p99-ms", "5", "--host-ms", "10001"), "--host-ms is 10001, expected 0 to 10000"),
        (("--rate", "5", "--p99-ms", "5", "--request-overhead-ms", "nan"), "--request-overhead-ms is nan, expected 0 to 10000"),
        (("--arrivals", "no.csv", "--rate", "5", "--p99-ms", "5"), "--rate and --arrivals exclude each other"),
    ],
)
def test_invalid_load_is_a_usage_error_of_one_line(stoker, model: str, words: tuple[str, ...], text: str) -> None:
    ran = stoker("plan", model, *words)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("0.1\n0.2,two\n", "line 2 is '0.2,two', expected SECONDS or SECONDS,ROWS"),
        ("nan\n", "line 1 is 'nan', expected SECONDS or SECONDS,ROWS"),
        ("0.1\n\n0.2,0\n", "line 3 has 0 rows, expected 1 to 65,536"),
        ("# seconds\n0.2\n0.1\n", "line 3 is at 0.1 s, before the arrival ahead of it at 0.2 s"),
        ("# none\n", "the number of recorded times is 0, expected 1 to 5,000,000"),
    ],
)
def test_line_that_is_no_arrival_is_named(stoker, model: str, tmp_path: Path, lines: str, text: str) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(lines)
    ran = stoker("plan", model, "--arrivals", str(path), "--p99-ms", "5")
    assert (ran.code, ran.out, ran.err) == (2, "", f"stoker: error: --arrivals {path}: {text}\n")


def test_page_that_cannot_be_written_is_a_usage_error_before_the_work(stoker, model: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("stoker.cli.plan.planner.make_plan", None)
    ran = stoker("plan", model, "--html", str(tmp_path))
    assert (ran.code, ran.out, ran.err) == (2, "", f"stoker: error: --html: {tmp_path} is a folder, expected a file\n")
    ran = stoker("plan", model, "--html", f"{model}/plan.html")
    assert (ran.code, ran.out, ran.err) == (2, "", f"stoker: error: --html: cannot write to folder {model}: {model} is a file\n")


@pytest.mark.parametrize(("arrivals", "notes"), [(99, 1), (100, 0)])
def test_p99_of_few_recorded_arrivals_has_a_note(stoker, model: str, tmp_path: Path, arrivals: int, notes: int) -> None:
    (tmp_path / "arrivals.csv").write_text("".join(f"{at}\n" for at in range(arrivals)))
    words = ("--devices", "C600", "--precisions", "fp16", "--batch-sizes", "1", "--input-shape", "x=5,4", "--json")
    ran = stoker("plan", model, *words, "--arrivals", str(tmp_path / "arrivals.csv"), "--p99-ms", "5")
    assert ran.code == 0, ran.err
    text = "of 99 recorded arrivals, p99 is the latency of the slowest: record at least 100"
    assert json.loads(ran.out)["notes"].count(text) == notes


def test_recording_beyond_the_bound_is_rejected_with_the_bound(stoker, model: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("stoker.cli.plan.request.MOST_REQUESTS", 2)
    (tmp_path / "arrivals.csv").write_text("0.1\n0.2\n0.3\n")
    ran = stoker("plan", model, "--arrivals", str(tmp_path / "arrivals.csv"), "--p99-ms", "5")
    assert (ran.code, ran.out) == (2, "")
    assert "more than 2 arrivals" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(("target", "device", "name"), [("ipu", "C600", "step_cycles"), ("gcu", "i20", "launch_s")])
def test_measured_constants_and_their_error_replace_the_fitted_ones(
    stoker, model: str, tmp_path: Path, target: str, device: str, name: str
) -> None:
    error = {"median": 0.1, "worst": 0.25, "cases": 7}
    document = {"format": 1, "device": target, "source": "measured on a card", "constants": {name: 1e9}, "error": error}
    (tmp_path / "constants.json").write_text(json.dumps(document))
    words = ("--devices", device, "--precisions", "fp32", "--batch-sizes", "4", "--input-shape", "x=5,4", "--json")
    fitted, measured = (
        json.loads(stoker("plan", model, *words, *more).out)["combinations"][0]
        for more in ((), ("--cost-constants", str(tmp_path / "constants.json")))
    )
    assert measured["latency"]["value"] > 10 * fitted["latency"]["value"]
    assert measured["latency"]["low"] == pytest.approx(measured["latency"]["value"] / 1.25)
    assert measured["latency"]["high"] == pytest.approx(measured["latency"]["value"] / 0.75)
    assert "measured on a card" in measured["error_source"]
    assert measured["note"].startswith("constants and error bar are those of --cost-constants")


def test_constants_of_a_device_that_is_not_planned_are_a_usage_error(stoker, model: str, tmp_path: Path) -> None:
    document = {"format": 1, "device": "gcu", "source": "measured on a card", "constants": {}}
    (tmp_path / "constants.json").write_text(json.dumps(document))
    ran = stoker("plan", model, "--devices", "C600", "--cost-constants", str(tmp_path / "constants.json"))
    assert (ran.code, ran.out) == (2, "")
    assert "is for device 'gcu', which --devices does not name" in ran.err


@pytest.mark.slow
def test_outputs_are_compared_on_given_samples(stoker, model: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(1).standard_normal((6, 5, 4), dtype=np.float32))
    words = ("--devices", "C600", "--precisions", "fp16", "--batch-sizes", "2", "--input-shape", "x=5,4", "--json")
    ran = stoker("plan", model, *words, "--samples", str(tmp_path / "samples.npz"))
    assert ran.code == 0, ran.err
    [accuracy] = json.loads(ran.out)["accuracy"]
    assert accuracy["samples"] == "3 batches of the given samples"
    assert 40 < accuracy["outputs"][0]["snr_db"] < 100


def test_samples_of_an_unknown_input_are_a_usage_error(stoker, model: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", z=np.zeros((1, 4), np.float32))
    ran = stoker("plan", model, "--samples", str(tmp_path / "samples.npz"))
    assert (ran.code, ran.out) == (2, "")
    assert "--samples has nothing for input(s) x" in ran.err
    assert ran.err.count("\n") == 1


def test_unreadable_samples_are_a_usage_error(stoker, model: str, tmp_path: Path) -> None:
    ran = stoker("plan", model, "--samples", str(tmp_path / "samples.npz"))
    assert (ran.code, ran.out) == (2, "")
    assert "--samples" in ran.err


def test_keys_of_the_json_are_those_of_its_schema() -> None:
    def keys(kind: type) -> dict[str, list[str]]:
        return {kind.__name__: [each.name for each in dataclasses.fields(kind)]}

    kinds = (model_of_plan.Plan, model_of_plan.Porting, model_of_plan.OperatorSupport, model_of_plan.Accuracy, model_of_plan.Combination)
    more = (model_of_plan.Remedy, model_of_plan.Memory, model_of_plan.LoadPlan, model_of_plan.CardCount, Figure)
    found = {name: fields for kind in (*kinds, *more) for name, fields in keys(kind).items()}
    assert model_of_plan.SCHEMA == 1
    assert found == {
        "Plan": ["model", "targets", "porting", "accuracy", "combinations", "load", "recommendation", "notes", "version", "schema"],
        "Porting": ["target", "ports", "operators", "problem"],
        "OperatorSupport": ["operator", "support", "nodes", "count", "reason", "source"],
        "Accuracy": ["target", "precision", "outputs", "samples", "failures", "problem"],
        "Combination": [
            "target", "device", "unit", "count", "precision", "batch", "fits", "latency", "period", "throughput", "memory",
            "error_source", "problem", "remedy", "memory_levers", "note",
        ],
        "Remedy": ["change", "precision", "batch", "count", "latency", "throughput", "memory_levers"],
        "Memory": ["place", "used_bytes", "capacity_bytes", "by_category"],
        "LoadPlan": ["load", "counts", "curves"],
        "CardCount": [
            "combination", "label", "devices", "used", "p50", "p99", "utilisation", "capacity_share", "mean_batch_rows", "problem",
        ],
        "Figure": ["value", "low", "high", "origin"],
    }  # fmt: skip

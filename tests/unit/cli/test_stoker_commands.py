"""Each command's output, its exit code, and its one line of error."""

import json
import re
import subprocess
import sys
from importlib.metadata import version

import grpc
import numpy as np
import pytest

import stoker.cli.bench.run as bench_run
import stoker.cli.infer as infer_command
import stoker.cli.status as status_command
import stoker.server.main as server_main
from stoker.cli.bench.trial import run_level
from stoker.server.lifecycle.manager import CONTROL_REJECTED, CONTROL_REJECTED_NONE
from tests.fakes.fake_kserve import INDEX, STATISTICS, Failure, FakeKserve

DURATIONS = {
    "success": {"count": 4, "ns": 8_000_000},
    "fail": {"count": 1, "ns": 1},
    "queue": {"count": 4, "ns": 400_000},
    "compute_input": {"count": 4, "ns": 0},
    "compute_infer": {"count": 4, "ns": 4_000_000},
    "compute_output": {"count": 4, "ns": 0},
}
INFER_FOUR = ["infer", "echo", "--input", "x=[1, 2, 3, 4]"]


def test_models_are_listed_with_backend_and_reason(stoker, fake):
    ran = stoker("models")
    assert ran.code == 0
    header, *rows = [line.split() for line in ran.out.splitlines()]
    assert header == ["MODEL", "VERSION", "STATE", "BACKEND", "PLATFORM"]
    assert rows == [
        ["echo", "3", "READY", "-", "-"],  # version 3 has no config route in the fake: as if unloaded meanwhile
        ["broken", "-", "-", "-", "-"],
        ["broken:", "no", "such", "file"],
    ]


def test_models_as_json_contain_the_backend(stoker, fake):
    rows = json.loads(stoker("models", "--json", "--url", fake.grpc_url).out)
    assert rows[0] == {"model": "echo", "version": "3", "state": "READY", "reason": "", "backend": "fake", "platform": "fake_platform"}


def test_tables_on_a_terminal_are_drawn(stoker, fake, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    ran = stoker("models", "--url", fake.grpc_url)
    assert "echo" in ran.out
    assert "─" in ran.out


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_narrow_terminal_folds_neither_names_nor_headings(stoker, fake, monkeypatch, columns):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "a-model-with-a-name-of-forty-characters-"
    monkeypatch.setitem(STATISTICS, "name", name)
    ran = stoker("status", "--interval", "0")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ran.out)
    assert ["model", "version", "requests", "failed"] in [line.split()[:4] for line in plain.splitlines()]
    assert name in plain
    assert "left out for want of width: rows/s, rows" in ran.out


def test_control_characters_of_a_server_do_not_reach_the_terminal(stoker, fake):
    fake.failures.append(Failure(404, grpc.StatusCode.NOT_FOUND, "gone \x1b[2J\r\nreally"))
    ran = stoker("metadata", "echo")
    assert ran.code == 1
    assert "\x1b" not in ran.err
    assert len(ran.err.splitlines()) == 1


def test_status_shows_means_and_rates(stoker, fake, monkeypatch):
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(status_command, "monotonic", lambda: next(clock))
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        inference = STATISTICS["inference_stats"]
        assert isinstance(inference, dict)
        inference["success"] = {"count": 4 + 6, "ns": 20_000_000}

    monkeypatch.setattr(status_command, "sleep", sleep)
    monkeypatch.setitem(STATISTICS, "inference_stats", {key: dict(value) for key, value in DURATIONS.items()})
    ran = stoker("status", "--json", "--interval", "2")
    assert ran.code == 0
    facts = json.loads(ran.out)
    assert (facts["name"], facts["live"], facts["ready"]) == ("fake", True, True)
    assert slept == [2.0]
    assert facts["models"][0] == {
        "model": "echo",
        "version": "3",
        "requests": 10,
        "failed": 1,
        "rows": 7,
        "executions": 3,
        "rows_per_execution": pytest.approx(7 / 3),
        "request_ms": 2.0,
        "queue_ms": 0.1,
        "compute_ms": 1.0,
        "requests_per_s": 3.0,
        "rows_per_s": 0.0,
    }


def test_status_of_a_server_that_is_not_ready_exits_1(stoker, fake):
    fake.is_ready = False
    ran = stoker("status", "--interval=0")
    assert ran.code == 1
    assert "ready: no" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
def test_status_shows_why_a_model_is_not_ready(stoker, fake, over, monkeypatch):
    unloaded = {"name": "old", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    failed = {"name": "new", "version": "2", "state": "UNAVAILABLE", "reason": "no graph"}
    monkeypatch.setattr("tests.fakes.fake_kserve.INDEX", [*INDEX, unloaded, failed])
    words = ["status", "--interval=0", "--url", getattr(fake, over)]
    assert stoker(*words).out.splitlines()[-3:] == [
        "",
        "broken: not ready: no such file",
        "new version 2: not ready, UNAVAILABLE: no graph",
    ]
    assert json.loads(stoker(*words, "--json").out)["not_ready"][1] == {
        "model": "new",
        "version": "2",
        "state": "UNAVAILABLE",
        "reason": "no graph",
    }


def test_status_without_access_to_the_index_shows_the_counts(stoker, fake):
    fake.failures.extend([None, None, None, None, Failure(403, grpc.StatusCode.PERMISSION_DENIED, "restricted")])
    ran = stoker("status", "--interval=0")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith("echo")


def test_metadata_lists_inputs_and_outputs(stoker, fake):
    ran = stoker("metadata", "echo")
    assert "echo: version 1, 3, platform fake_platform" in ran.out
    assert ["input", "x", "FP32", "[-1,", "4]"] in [line.split() for line in ran.out.splitlines()]


def test_config_is_json(stoker, fake):
    assert json.loads(stoker("config", "echo").out)["max_batch_size"] == 8


def test_version_needs_no_server(stoker):
    assert json.loads(stoker("version", "--json").out).keys() == {"stoker", "stoker-client"}


def test_load_sends_config_and_files(stoker, fake, tmp_path):
    (tmp_path / "c.json").write_text('{"max_batch_size": 2}')
    (tmp_path / "m.onnx").write_bytes(b"\1\2")
    ran = stoker("load", "echo", "--config", str(tmp_path / "c.json"), "--file", f"1/model.onnx={tmp_path / 'm.onnx'}")
    assert (ran.code, ran.out) == (0, "model 'echo' is loaded: version 1, 3\n")
    assert json.loads(fake.bodies[0])["parameters"] == {"config": '{"max_batch_size": 2}', "file:1/model.onnx": "AQI="}


def test_unload_prints_the_model(stoker, fake):
    assert json.loads(stoker("unload", "echo", "--json").out) == {"model": "echo", "loaded": False}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["models", "--url", "bla"], 2, "does not say the protocol"),
        (["models", "--bogus"], 2, "No such option: --bogus"),
        (["modelz"], 2, "No such command"),
        (["infer", "echo"], 2, "Missing option '--input'"),
        (["load", "echo", "--file", "x"], 2, "--file x: expected PATH=LOCAL"),
        (["load", "echo", "--file", "x=/no/such/file"], 2, "cannot read /no/such/file"),
        (["load", "echo", "--config", "[1]"], 1, "JSON list"),
        (["metadata", "other"], 1, "no route /v2/models/other"),
        (["metadata", "echo", "--version", "-1"], 2, "--version"),
        (["unload", "other"], 1, "no model 'other' in the repository; it has broken, echo"),
        (["infer", "echo", "--input", "x=[[1], [1, 2]]"], 2, "--input x: lists of one level differ in length"),
        (
            ["infer", "echo", "--input", "x=5", "--protocol", "tfs"],
            2,
            "'--protocol': 'tfs' is not one of 'kserve-grpc', ",
        ),
        ([*INFER_FOUR, "--param", "sequence_id"], 2, "--param sequence_id: expected NAME=VALUE"),
        ([*INFER_FOUR, "--param", "a=1", "-p", "a=2"], 2, "--param a is given twice"),
        ([*INFER_FOUR, "--param", "a=1", "--protocol", "tfs-rest"], 2, "--param: protocol tfs-rest has no parameters"),
        (["bench", "echo", "--concurrency", "0"], 2, "--concurrency 0: expected numbers above 0"),
        (["bench", "echo", "--request-rate", "1:-4"], 2, "--request-rate 1:-4: expected numbers above 0"),
        (["infer", "echo", "--input", "x=5"], 2, "--input x: got a single value; the model takes FP32[-1, 4]"),
    ],
)
def test_failures_print_one_line_and_set_an_exit_code(stoker, fake, words, code, text):
    ran = stoker(*words)
    assert ran.code == code
    assert text in ran.err
    assert ran.err.startswith("stoker: error: ")
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_missing_server_exits_3(stoker, scheme):
    ran = stoker("status", "--url", f"{scheme}://127.0.0.1:1")
    assert ran.code == 3
    assert ran.err.startswith(f"stoker: error: cannot connect to {scheme}://127.0.0.1:1: ")


def test_refused_connection_suggests_to_start_the_server(stoker):
    for url in ("grpc://127.0.0.1:1", "http://127.0.0.1:1"):
        assert stoker("status", "--url", url).err == (
            f"stoker: error: cannot connect to {url}: connection refused; is the server running?\n"
        )


def test_scheme_that_does_not_match_the_port_is_named(stoker, fake):
    for url in (fake.grpc_url.replace("grpc", "http"), fake.http_url.replace("http", "grpc")):
        ran = stoker("status", "--url", url)
        assert ran.code == 3
        assert "the URL's scheme does not match the port" in ran.err


@pytest.mark.parametrize("command", [[], ["infer"], ["bench"], ["check"], ["unload"]])
def test_help_shows_no_value_type_for_boolean_flags(stoker, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    page = stoker(*command, "--help").out
    assert "<bool>" not in page
    assert "--json" in page
    if command != ["check"]:
        assert all(option in page for option in ("--url", "--api-key", "--header", "--timeout"))


@pytest.mark.parametrize("refused", [CONTROL_REJECTED, CONTROL_REJECTED_NONE])
def test_load_refused_by_the_control_mode_names_the_mode_that_allows_it(stoker, fake, refused):
    fake.failures.append(Failure(400, grpc.StatusCode.UNAVAILABLE, refused))
    assert stoker("load", "echo").err == f"stoker: error: {refused}; the server allows it with --model-control-mode=explicit\n"


def test_generated_request_id_is_not_shown(stoker, fake):
    fake.failures.append(Failure(400, grpc.StatusCode.INVALID_ARGUMENT, "[request id: <id_unknown>] bad"))
    assert stoker("metadata", "echo").err == "stoker: error: bad\n"


def test_model_without_versions_is_reported_with_its_reason(stoker, fake):
    text = "Request for unknown model: 'broken' has no available versions"
    fake.failures.append(Failure(400, grpc.StatusCode.UNAVAILABLE, text))
    assert stoker("metadata", "broken").err == f"stoker: error: {text}; no such file\n"


def test_reason_in_the_text_of_the_server_is_not_repeated(stoker, fake):
    text = "Request for unknown model: 'broken' has no available versions: no such file"
    fake.failures.append(Failure(400, grpc.StatusCode.UNAVAILABLE, text))
    assert stoker("metadata", "broken").err == f"stoker: error: {text}\n"


def test_common_options_are_accepted_before_the_command(stoker, fake, monkeypatch):
    monkeypatch.delenv("STOKER_URL")
    ran = stoker("--url", fake.http_url, "--api_key=k", "--json", "metadata", "echo")
    assert json.loads(ran.out)["name"] == "echo"
    assert fake.headers["authorization"] == "Bearer k"


def test_address_without_a_scheme_is_grpc(stoker, fake):
    assert stoker("metadata", "echo", "--url", fake.grpc_url.removeprefix("grpc://")).code == 0


def test_version_is_an_option_too(stoker):
    assert stoker("--version").out == f"stoker {version('stoker')}\n"


def test_json_output_has_no_nan_or_infinity(stoker, fake):
    ran = stoker("infer", "echo", "--input", "x=[NaN, Infinity, -Infinity, 1]", "--json")
    found = json.loads(ran.out, parse_constant=pytest.fail)
    assert found["outputs"]["x"]["data"] == [["NaN", "Infinity", "-Infinity", 1.0]]


def test_api_key_is_read_from_flag_or_environment(stoker, fake, monkeypatch):
    stoker("metadata", "echo", "--api_key", "flag")
    assert fake.headers["authorization"] == "Bearer flag"
    monkeypatch.setenv("STOKER_API_KEY", "environment")
    stoker("metadata", "echo")
    assert fake.headers["authorization"] == "Bearer environment"


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
@pytest.mark.parametrize(
    "words",
    [["metadata", "echo"], ["models"], ["status", "--interval=0"], ["load", "echo"], ["infer", "echo", "--input", "x=[1, 2, 3, 4]"]],
    ids=lambda words: words[0],
)
def test_headers_are_sent_with_every_call_of_every_command(stoker, fake, over, words):
    given = ["--header", "Admin-Key=a=b c", "--header=x_tenant=blue", "--api-key", "k", "--url", getattr(fake, over)]
    for line in ([*words, *given], [*given, *words]):
        fake.headers = {}
        assert stoker(*line).code == 0
        assert fake.headers.items() >= {"admin-key": "a=b c", "x_tenant": "blue", "authorization": "Bearer k"}.items()


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
def test_headers_are_sent_with_the_load_of_a_bench(stoker, fake, over):
    quick = ["--window=0.05", "--warmup=0", "--max-trials=3", "--max-requests=20"]
    assert stoker("bench", "echo", *quick, "--header", "key=secret", "--url", getattr(fake, over)).code == 0
    assert len(fake.calls) > 20
    assert fake.headers["key"] == "secret"


QUICK_BENCH = ["bench", "echo", "--window=0.05", "--warmup=0", "--max-trials=3", "--max-requests=20"]


@pytest.mark.parametrize(
    ("finished", "text"), [(0, "interrupted before a level was measured"), (2, "interrupted: levels measured are 2 of 3")]
)
def test_interrupted_bench_prints_the_finished_levels(stoker, fake, monkeypatch, tmp_path, finished, text):
    begun = []

    async def interrupted(level, *others):
        begun.append(level)
        if len(begun) > finished:
            raise KeyboardInterrupt
        return await run_level(level, *others)

    monkeypatch.setattr(bench_run, "run_level", interrupted)
    table = tmp_path / "figures.csv"
    ran = stoker(*QUICK_BENCH, "--concurrency=1,2,4", "--csv", str(table))
    assert (ran.code, ran.err) == (130, f"stoker: error: {text}\n")
    subject, _, *rows = ran.out.splitlines() or ["", ""]
    assert [row.split()[0] for row in rows if ":" not in row] == ["1", "2"][:finished]
    assert subject == (f"echo over kserve-http at {fake.http_url}, 1 row a request" if finished else "")
    assert table.exists() == bool(finished)


def test_bench_refuses_a_csv_file_that_it_cannot_write_before_it_measures(stoker, fake, tmp_path):
    refused = tmp_path / "no" / "figures.csv"
    ran = stoker(*QUICK_BENCH, "--csv", str(refused))
    assert (ran.code, ran.err) == (2, f"stoker: error: --csv {refused}: the folder does not exist\n")
    assert fake.calls == []


def test_headers_are_read_from_the_environment_too(stoker, fake, monkeypatch):
    monkeypatch.setenv("STOKER_HEADERS", "admin-key=secret x-tenant=blue")
    assert stoker("metadata", "echo").code == 0
    assert fake.headers.items() >= {"admin-key": "secret", "x-tenant": "blue"}.items()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--header", "secret"], "--header: expected NAME=VALUE"),
        (["--header", "bad name=secret"], "--header bad name: expected NAME=VALUE"),
        (["--header", "key-bin=secret"], "not ending in -bin"),
        (["--header", "key=secret\r\nx: y"], "--header key: its value must be printable ASCII"),
        (["--header", "Content-Length=secret"], "--header content-length: the protocol itself says this one"),
        (["--header", "key=secret", "--header", "Key=secret"], "--header key is given twice"),
        (["--header", "authorization=secret", "--api-key", "secret"], "not both"),
    ],
)
def test_unusable_headers_are_refused_without_their_values(stoker, fake, words, text):
    ran = stoker("metadata", "echo", *words)
    assert (ran.code, text in ran.err, "secret" in ran.err) == (2, True, False)
    assert fake.calls == []


def test_underscores_are_accepted_in_flags_and_kept_in_values(stoker, fake):
    assert stoker("metadata", "echo", "--api_key=a_b").code == 0
    assert fake.headers["authorization"] == "Bearer a_b"


def test_serve_passes_its_arguments_on_unchanged(stoker, monkeypatch):
    seen = []

    def serve_main(arguments):
        seen.append(list(arguments))
        raise SystemExit(7)

    monkeypatch.setattr(server_main, "main", serve_main)
    words = ["--model_base_path=a_b", "--exit_on_error", "false", "--", "--help"]
    assert stoker("serve", *words).code == 7
    assert seen == [words]


@pytest.mark.slow
def test_help_lists_every_command_and_imports_no_client():
    script = (
        "import sys\nfrom stoker.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'stoker_client', 'grpc', 'httpx', 'numpy', 'stoker.server', 'PIL'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, (code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("serve", "models", "status", "infer", "metadata", "config", "load", "unload", "version"):
        assert f" {name} " in done.stdout


def test_missing_command_prints_the_help(stoker):
    ran = stoker()
    assert ran.code == 0
    assert "Usage: stoker" in ran.out


def test_infer_adds_the_batch_dimension_and_prints_values(stoker, fake):
    ran = stoker(*INFER_FOUR)
    assert ran.code == 0
    assert ran.out.splitlines() == ["echo version 3", "x  FP32[1, 4]", "  [[1. 2. 3. 4.]]"]


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}", "grpc+unix:{}", "grpc+unix://{}"])
@pytest.mark.parametrize("words", [["metadata", "echo"], INFER_FOUR], ids=["metadata", "infer"])
def test_every_command_accepts_every_form_of_a_socket(stoker, tmp_path, form, words):
    socket = tmp_path / "grpc.sock"
    server = FakeKserve(socket=socket)
    try:
        assert stoker(*words, "--url", form.format(socket)).code == 0
    finally:
        server.close()


def test_infer_prints_json(stoker, fake):
    assert json.loads(stoker(*INFER_FOUR, "--json", "--top", "1").out) == {
        "model": "echo",
        "version": "3",
        "outputs": {
            "x": {"datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4]], "top": [{"row": 0, "place": 3, "value": 4.0}]},
        },
    }


REJECTED_DECOUPLED = Failure(
    501, grpc.StatusCode.UNIMPLEMENTED, "this endpoint doesn't support models with decoupled transaction policy: use ModelStreamInfer"
)
TWO_EVENTS = [{"model_name": "echo", "model_version": "3", "x": [n, 2, 3, 4]} for n in (1, 5)]


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
def test_infer_prints_each_response_of_a_decoupled_model(stoker, fake, over):
    fake.failures.extend([None, REJECTED_DECOUPLED])
    fake.events = TWO_EVENTS
    ran = stoker(*INFER_FOUR, "--url", getattr(fake, over))
    assert ran.code == 0, ran.err
    tensors = [line for n in (1, 5) for line in ("x  FP32[1, 4]", f"  [[{n}. 2. 3. 4.]]")]
    assert ran.out.splitlines() == ["echo version 3", *tensors]


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
def test_infer_prints_the_responses_of_a_decoupled_model_as_json_lines(stoker, fake, over, tmp_path):
    fake.failures.extend([None, REJECTED_DECOUPLED])
    fake.events = TWO_EVENTS
    ran = stoker(*INFER_FOUR, "--json", "--save", str(tmp_path), "--param", "p=1", "--url", getattr(fake, over))
    data = {"datatype": "FP32", "shape": [1, 4]}
    assert [json.loads(line) for line in ran.out.splitlines()] == [
        {"model": "echo", "version": "3", "outputs": {"x": {**data, "data": [[n, 2, 3, 4]]}}} for n in (1, 5)
    ]
    np.testing.assert_array_equal(np.load(tmp_path / "1" / "x.npy"), np.array([[5, 2, 3, 4]], np.float32))
    if over == "http_url":
        assert json.loads(fake.bodies[0]) == {"x": [1, 2, 3, 4], "parameters": {"p": 1}}


def test_error_of_a_decoupled_model_ends_the_responses_over_http(stoker, fake):
    fake.failures.extend([None, REJECTED_DECOUPLED])
    fake.events = [TWO_EVENTS[0], {"error": "no more"}]
    ran = stoker(*INFER_FOUR)
    assert (ran.code, ran.err) == (1, "stoker: error: no more\n")
    assert len(ran.out.splitlines()) == 3


def test_rejected_stream_over_http_is_an_error(stoker, fake):
    fake.failures.extend([None, REJECTED_DECOUPLED, Failure(400, grpc.StatusCode.INVALID_ARGUMENT, "bad prompt")])
    ran = stoker(*INFER_FOUR)
    assert (ran.code, ran.out, ran.err) == (1, "", "stoker: error: bad prompt\n")


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
def test_infer_shows_the_parameters_of_the_response(stoker, fake, over):
    words = [*INFER_FOUR, "--param", "share=0.5", "--param", "quick=true", "--url", getattr(fake, over)]
    assert stoker(*words).out.splitlines()[3:] == ["parameter quick: true", "parameter share: 0.5"]
    assert json.loads(stoker(*words, "--json").out)["parameters"] == {"share": 0.5, "quick": True}


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
def test_call_that_ends_at_the_limit_of_the_client_names_the_option(stoker, fake, over):
    fake.hold.clear()
    ran = stoker("metadata", "echo", "--timeout", "0.05", "--url", getattr(fake, over))
    fake.hold.set()
    assert ran.code == 1
    assert ran.err.endswith("; --timeout SECONDS sets the limit of a call\n")


def test_infer_shows_the_largest_values_of_each_row(stoker, fake):
    ran = stoker("infer", "echo", "--input", "x=[[1, 9, 3, 4], [7, 0, 8, 0]]", "--top", "2")
    assert ran.out.splitlines()[0] == "echo version 3"
    assert [line.split() for line in ran.out.splitlines()[2:]] == [
        ["x", "0", "1", "9"],
        ["x", "0", "3", "4"],
        ["x", "1", "2", "8"],
        ["x", "1", "0", "7"],
    ]


@pytest.mark.parametrize("over", ["grpc_url", "http_url"])
def test_infer_sends_parameters_with_their_types(stoker, fake, monkeypatch, over):
    results = []
    monkeypatch.setattr(infer_command._Shown, "print", lambda shown, result, count=None: results.append(result))
    given = ["sequence_id=7", "sequence_start=true", "share=0.5", "text=a=b", 'quoted="7"', "list=[1]", "nan=NaN", "id=007"]
    assert stoker(*INFER_FOUR, *(word for each in given for word in ("--param", each)), "--url", getattr(fake, over)).code == 0
    [result] = results
    sent = {"sequence_id": 7, "sequence_start": True, "share": 0.5, "text": "a=b", "quoted": "7", "list": "[1]", "nan": "NaN", "id": "007"}
    assert {name: (type(value), value) for name, value in result.parameters.items()} == {n: (type(v), v) for n, v in sent.items()}


def test_infer_saves_outputs(stoker, fake, tmp_path):
    assert stoker(*INFER_FOUR, "--save", str(tmp_path / "out")).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "x.npy"), np.array([[1, 2, 3, 4]], np.float32))

"""The console in headless Chromium, as people use it."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.browser import DROP, Console, browser, picture_of_one
from tests.fakes.server_process import SAMPLE_MODELS, ServerProcess, copy_models, running_server

#: How long a page may take until it shows something, milliseconds.
PATIENCE_MS = 30_000
REPEAT = """
backend: "repeat"
model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
"""
ECHO = """
backend: "identity"
max_batch_size: 4
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SAME" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def repository_at(root: Path) -> Path:
    """Two samples, a decoupled model, a model of texts, and one that cannot be loaded."""
    copy_models(SAMPLE_MODELS, root, ["simple", "digits"])
    for name, config, file in (("repeat", REPEAT, "model.repeat"), ("echo", ECHO, "model.identity"), ("broken", "", "model.onnx")):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / file).write_bytes(b"" if config else b"no model")
        (root / name / "config.pbtxt").write_text(config)
    return root


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Explicit control: clients may load and unload."""
    root = repository_at(tmp_path_factory.mktemp("models"))
    flags = (f"--model_base_path={root}", "--model-control-mode=explicit", "--load-model=*", "--strict-readiness=false")
    with running_server(*flags, at=tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture
def console(chrome: Any, served: ServerProcess) -> Iterator[Console]:
    """The console's first page; at the end, it has sent requests to its server only, and has logged no error."""
    opened = Console(chrome, f"http://{served.http}/ui")
    opened.page.set_default_timeout(PATIENCE_MS)
    opened.page.get_by_role("table").wait_for()
    yield opened
    opened.close()
    assert opened.hosts == {served.http}
    # Chromium logs each response with an error status, which some tests cause.
    assert [text for text in opened.messages if not text.startswith("Failed to load resource")] == []


def open_model(console: Console, name: str, tab: str = "try") -> Any:
    page = console.page
    page.goto(f"{page.url.split('#')[0]}#/models/{name}/-/{tab}")
    page.get_by_role("heading", name=name, level=1).wait_for()
    return page


def row_of(page: Any, name: str) -> Any:
    return page.locator("tr", has=page.get_by_role("rowheader", name=name, exact=True))


def test_overview_shows_states_and_reasons(console: Console):
    page = console.page
    assert "READY" in row_of(page, "digits").inner_text()
    broken = row_of(page, "broken")
    assert "FAILED" in broken.inner_text()
    broken.get_by_text("why").click()
    assert "not a readable ONNX file" in broken.locator(".reason p").inner_text()
    assert page.get_by_role("status").filter(has_text="ready").count() >= 1


def test_overview_shows_requests_as_they_come(console: Console, served: ServerProcess):
    tensors = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]
    for _ in range(20):
        served.json("/v2/models/simple/infer", {"inputs": tensors})
    # In one of the next samples.
    row_of(console.page, "simple").get_by_text(" ms").first.wait_for()


def test_dropped_picture_of_a_digit_gets_its_class(console: Console):
    page = open_model(console, "digits")
    encoded = base64.b64encode(picture_of_one()).decode()
    page.locator(".drop").evaluate(DROP, {"name": "one.png", "type": "image/png", "base64": encoded})
    page.get_by_role("img", name="The picture as the model gets it: 8 x 8 pixels").wait_for()
    page.get_by_label("Values").select_option(label="0 to a maximum")
    page.get_by_role("button", name="Run digits").click()
    bars = page.get_by_role("table", name="Highest values").get_by_role("row")
    bars.first.wait_for()
    assert bars.count() == 5
    assert bars.first.get_by_role("rowheader").inner_text() == "one"
    assert "queue" in page.get_by_text("Time:").locator("xpath=..").inner_text()


def test_choices_for_pictures_are_remembered(console: Console):
    page = open_model(console, "digits")
    page.get_by_label("Values").select_option("signed")
    page.get_by_label("Invert").check()
    page.reload()
    assert page.get_by_label("Values").input_value() == "signed"
    assert page.get_by_label("Invert").is_checked()


def test_keyboard_alone_runs_a_model(console: Console):
    page = console.page
    link = page.get_by_role("link", name="simple")
    for _ in range(40):
        page.keyboard.press("Tab")
        if link.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="simple", level=1).wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    run = page.get_by_role("button", name="Run simple")
    run.wait_for()
    for _ in range(30):
        page.keyboard.press("Tab")
        if run.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.press("Enter")
    output = page.locator("[aria-live] .output").first
    output.wait_for()
    assert "OUTPUT0" in output.inner_text()


def test_wrong_number_is_named_and_not_sent(console: Console):
    page = open_model(console, "simple")
    field = page.get_by_label("Numbers, separated").first
    field.fill("1, 2, three")
    alert = page.locator("#input-INPUT0-problem")
    alert.filter(has_text="three").wait_for()
    assert alert.inner_text() == 'INPUT0: element 3 is "three": expected a whole number'
    page.get_by_role("button", name="Run simple").click()
    page.get_by_role("alert").filter(has_text="Mend the input INPUT0 first.").wait_for()
    assert field.evaluate("element => element === document.activeElement")
    field.fill("1, 2, 3")
    alert.filter(has_text="3 elements do not fit 16").wait_for()


def test_error_of_the_server_is_shown(console: Console):
    page = open_model(console, "simple")
    for position in range(2):
        page.get_by_label("Numbers, separated").nth(position).fill(", ".join(["7"] * 160))
    page.get_by_role("button", name="Run simple").click()
    page.get_by_role("alert").filter(has_text="batch-size must be <= 8 for 'simple'").wait_for()


def test_text_and_bytes_go_through_unchanged(console: Console):
    page = open_model(console, "echo")
    page.get_by_label("Text", exact=True).fill("grüß dich, 世界")
    page.get_by_role("button", name="Run echo").click()
    page.locator(".output pre").get_by_text("grüß dich, 世界").wait_for()
    page.get_by_label("Give it as").select_option("bytes")
    page.get_by_label("Audio or any other file").set_input_files({"name": "a.wav", "mimeType": "audio/wav", "buffer": b"\xff\x00\xfe"})
    page.get_by_text("a.wav, 3 B").wait_for()
    page.get_by_role("button", name="Run echo").click()
    page.get_by_text("3 bytes that are no text").wait_for()


def test_csv_and_npy_files_become_rows(console: Console):
    page = open_model(console, "simple")
    rows = "\n".join([",".join(f"c{at}" for at in range(16)), ",".join(["5"] * 16), ",".join(["6"] * 16)])
    for position in range(2):
        page.get_by_label("Give it as").nth(position).select_option("csv")
        page.get_by_label("A CSV file").nth(position).set_input_files({"name": "x.csv", "mimeType": "text/csv", "buffer": rows.encode()})
    page.get_by_text("x.csv: 2 rows of 16").nth(1).wait_for()
    page.get_by_role("button", name="Run simple").click()
    page.locator(".output").get_by_text("INT32, 2 x 16").first.wait_for()
    bars = page.locator(".output").first.get_by_role("table", name="row 2").get_by_role("row").first
    assert bars.locator(".figure").inner_text() == "12"


def test_decoupled_model_streams_its_responses(console: Console):
    page = open_model(console, "repeat")
    page.get_by_label("Numbers, separated").fill("4 5 6")
    page.get_by_role("button", name="Run repeat").click()
    page.get_by_text("3 responses").wait_for()
    assert page.locator("ol.responses").first.get_by_role("listitem").all_inner_texts() == ["4", "5", "6"]


def test_call_with_the_data_of_the_form_gets_the_same_response(console: Console, tmp_path: Path):
    page = open_model(console, "digits")
    page.get_by_label("Give it as").select_option("numbers")
    page.get_by_label("Numbers, separated").fill(", ".join(str(at % 17) for at in range(64)))
    page.get_by_label("Client").select_option("curl-json")
    code = page.locator("pre.code")
    assert "@request.json" in code.inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save request.json").click()
    download.value.save_as(tmp_path / "request.json")
    done = subprocess.run(["sh", "-c", code.inner_text()], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    scores = json.loads(done.stdout)["outputs"][0]["data"]
    page.get_by_role("button", name="Run digits").click()
    highest = page.get_by_role("table", name="Highest values").get_by_role("row").first
    highest.wait_for()
    assert float(highest.locator(".figure").inner_text()) == pytest.approx(max(scores), rel=0.01)


def test_models_are_unloaded_and_loaded(console: Console):
    page = console.page
    page.get_by_role("button", name="unload echo").click()
    row_of(page, "echo").get_by_text("UNLOADED", exact=True).wait_for()
    page.get_by_role("button", name="load echo", exact=True).click()
    row_of(page, "echo").get_by_text("READY", exact=True).wait_for()


def test_failed_load_shows_the_reason(console: Console):
    page = console.page
    page.get_by_role("button", name="load broken").click()
    row_of(page, "broken").get_by_role("status").filter(has_text="failed to load 'broken'").wait_for()


def test_configuration_shows_origins(console: Console):
    page = open_model(console, "digits", "config")
    written = page.get_by_role("row").filter(has_text="max_batch_size").first
    written.wait_for()
    assert "config.pbtxt" in written.inner_text()
    assert "default" in page.get_by_role("row").filter(has_text="instance_group").first.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_their_window(chrome: Any, served: ServerProcess, width: int, scheme: str, tmp_path: Path):
    opened = Console(chrome, f"http://{served.http}/ui", width=width, scheme=scheme)
    page = opened.page
    page.get_by_role("table").wait_for()
    for name, tab in (("", ""), ("digits", "try"), ("digits", "load"), ("digits", "config")):
        if name:
            open_model(opened, name, tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} {tab} scrolls sideways"
        assert page.screenshot(path=tmp_path / f"{name}-{tab}.png", full_page=True)
    opened.close()


def test_control_is_explained_where_it_is_refused(chrome: Any, tmp_path: Path):
    copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    with running_server(f"--model_base_path={tmp_path / 'models'}", at=tmp_path / "run") as server:
        opened = Console(chrome, f"http://{server.http}/ui")
        opened.page.get_by_text("start it with --model-control-mode=explicit").wait_for()
        assert opened.page.get_by_role("button", name="load").count() == 0
        opened.close()


def test_page_asks_for_the_api_key_and_sends_it(chrome: Any, tmp_path: Path):
    copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    (tmp_path / "key").write_text("a-long-random-key-0123")
    flags = (f"--model_base_path={tmp_path / 'models'}", f"--api-key-file={tmp_path / 'key'}")
    with running_server(*flags, at=tmp_path / "run") as server:
        opened = Console(chrome, f"http://{server.http}/ui")
        opened.page.get_by_label("API key").fill("a-long-random-key-0123")
        opened.page.get_by_role("button", name="Use this key").click()
        opened.page.get_by_role("link", name="simple").click()
        opened.page.get_by_role("button", name="Run simple").click()
        opened.page.locator(".output").first.wait_for()
        opened.close()

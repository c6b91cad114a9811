"""A model's own OpenAPI document and calls: correct for its signature and any name."""

import ast
import json
import re
import shlex
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
from fastapi.openapi.models import OpenAPI

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.limits import Limits
from stoker.server.core.sequence import ControlInput, ControlKind, SequenceBatching
from stoker.server.core.state import IndexEntry, ModelDescription, VersionState
from stoker.server.protocols.kserve.generate_codec import Target, decode
from stoker.server.web.model_pages.calls import addresses, python_calls, shell_calls
from stoker.server.web.model_pages.documents import list_page, model_document, model_page
from stoker.server.web.model_pages.samples import sample
from stoker.server.web.settings import GrpcAddress
from tests.fakes.fake_engine import model, signature, simple

HOSTILE = """<script>alert(1)</script>'"`$(touch x)\\%s{0}&amp;é\n</pre>"""
HERE = addresses("localhost:8501", "http", GrpcAddress(8500))


def described(*inputs, outputs=None, max_batch_size=8, name="m", **changes):
    made = model(name, signature(inputs, outputs or inputs, max_batch_size), lambda given: given)
    return ModelDescription(made.config, changes.pop("version", 1), (1,))


def shell_words(text):
    """The words of a shell call, and the Python program in its here-document; None: there is none."""
    first, _, rest = text.partition("\n")
    if "<<'EOF'" not in first:
        return shlex.split(text), None
    program, end, after = rest.partition("\nEOF")
    assert (end, after) == ("\nEOF", "")
    return shlex.split(first), program


def calls_of(description, version=None, where=HERE):
    asked = sample(description, version)
    return [*shell_calls(asked, where, has_reflection=True), *python_calls(asked, where)]


@pytest.mark.parametrize("datatype", list(DataType))
@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_document_is_valid_openapi_for_every_datatype(datatype, max_batch_size):
    description = described(TensorSpec("x", datatype, (2, -1)), max_batch_size=max_batch_size)
    document = json.loads(json.dumps(model_document(description, sample(description, None))))
    assert document["openapi"] == "3.1.0"
    OpenAPI.model_validate(document)
    has_json = datatype not in (DataType.FP16, DataType.BF16)
    assert ("/v2/models/m/infer" in document["paths"]) == has_json
    shape = document["components"]["schemas"]["InferRequest"]["properties"]["inputs"]["items"]["oneOf"][0]["properties"]["shape"]
    assert shape["minItems"] == shape["maxItems"] == (3 if max_batch_size else 2)


@pytest.mark.parametrize(("datatype", "sequence_id"), [(DataType.BYTES, "1"), (DataType.UINT64, 1)])
def test_calls_have_a_sequence_id_of_the_models_type(datatype, sequence_id):
    description = described(TensorSpec("x", DataType.FP32, (2,)))
    batching = SequenceBatching(1, 1, (ControlInput(ControlKind.ID, "id", datatype),), ())
    description = replace(description, config=replace(description.config, sequences=batching))
    texts = {call.key: call.text for call in calls_of(description)}
    for key in ("curl-json", "curl-binary", "stoker-client"):
        assert f'"sequence_id": {json.dumps(sequence_id)}' in texts[key].replace("'1'", '"1"')
    assert f"sequence_id={sequence_id!r}" in texts["tritonclient-http"]
    asked = model_document(description, sample(description, None))["paths"]["/v2/models/m/infer"]["post"]["requestBody"]
    assert asked["content"]["application/json"]["example"]["parameters"]["sequence_id"] == sequence_id


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_calls_request_outputs_without_a_json_form_as_binary_data(datatype):
    description = described(TensorSpec("x", DataType.FP32, (2,)), outputs=[TensorSpec("y", datatype, (2,))])
    texts = {call.key: call.text for call in calls_of(description)}
    assert "curl-json" not in texts
    assert '"binary_data_output": true' in texts["curl-binary"]
    assert texts["curl-binary"].endswith(" -o response.bin")
    assert "/v2/models/m/infer" not in model_document(description, sample(description, None))["paths"]


def test_example_has_the_models_names_types_and_shapes():
    description = ModelDescription(simple().config, 3, (3,))
    document = model_document(description, sample(description, 3))
    body = document["paths"]["/v2/models/simple/versions/3/infer"]["post"]["requestBody"]["content"]["application/json"]
    assert [(each["name"], each["datatype"], each["shape"]) for each in body["example"]["inputs"]] == [
        ("INPUT0", "INT32", [1, 16]),
        ("INPUT1", "INT32", [1, 16]),
    ]
    assert document["servers"] == [{"url": "../../../../.."}]


def test_optional_inputs_are_in_the_schema_and_not_in_the_sample():
    description = described(TensorSpec("x", DataType.FP32, (2,)), TensorSpec("maybe", DataType.FP32, (2,), optional=True))
    schemas = model_document(description, sample(description, None))["components"]["schemas"]
    assert schemas["PredictRequest"]["properties"]["inputs"]["required"] == ["x"]
    assert (schemas["InferRequest"]["properties"]["inputs"]["minItems"], len(sample(description, None).inputs)) == (1, 1)


@pytest.mark.parametrize("datatype", list(DataType))
@pytest.mark.parametrize("size", [3, 5000])
def test_every_call_is_parsable_in_its_language(datatype, size):
    description = described(TensorSpec("x", datatype, (size,)))
    calls = calls_of(description)
    assert {call.key for call in calls} >= {"curl-binary", "stoker-client", "tritonclient-http", "tritonclient-grpc"}
    for call in calls:
        if call.language == "python":
            ast.parse(call.text)
        else:
            words, program = shell_words(call.text)
            assert words[0] in ("curl", "grpcurl", "python3", "{")
            assert (program is None) == (size == 3 or call.key == "curl-binary")
            ast.parse(program or "")
            assert max(map(len, call.text.splitlines())) < 200


def test_hostile_names_are_escaped_in_shell_python_and_html():
    description = described(TensorSpec(HOSTILE, DataType.INT32, (2,)))
    for call in calls_of(description):
        if call.language == "python":
            names = [node.value for node in ast.walk(ast.parse(call.text)) if isinstance(node, ast.Constant)]
            assert HOSTILE in names
        else:
            words, _ = shell_words(call.text)
            assert any(json.dumps(HOSTILE)[1:-1] in word for word in words), call.key
            assert not any(word.startswith(("$(", "touch", "`")) for word in words)
    page = model_page(description, None, calls_of(description))
    assert_is_plain(page)
    assert HOSTILE in unescape(page)


def test_program_in_a_call_escapes_hostile_names_and_prints_the_request():
    description = described(TensorSpec(f"{HOSTILE}\nEOF\n😀", DataType.BYTES, (5000,)))
    programs = {call.key: shell_words(call.text)[1] for call in calls_of(description) if call.language == "sh"}
    assert {key for key, program in programs.items() if program is not None} == {"curl-json", "curl-tfs", "grpcurl"}
    printed: dict[str, object] = {}
    for key, program in programs.items():
        if program is not None:
            exec(program, {"print": lambda text, key=key: printed.__setitem__(key, json.loads(text))})
    facts = {"name": f"{HOSTILE}\nEOF\n😀", "datatype": "BYTES", "shape": [1, 5000]}
    assert printed == {
        "curl-json": {"inputs": [{**facts, "data": ["text"] * 5000}]},
        "curl-tfs": {"inputs": {facts["name"]: [["text"] * 5000]}},
        "grpcurl": {"model_name": "m", "inputs": [{**facts, "contents": {"bytes_contents": ["dGV4dA=="] * 5000}}]},
    }


def test_call_for_an_image_is_a_short_program_and_a_command():
    description = described(TensorSpec("image", DataType.FP32, (3, 224, 224)), name="resnet")
    [call] = [each for each in calls_of(description) if each.key == "curl-json"]
    assert call.text == (
        "python3 - <<'EOF' | curl -s http://localhost:8501/v2/models/resnet/infer -d @-\n"
        "import json\n"
        'print(json.dumps({"inputs": [\n'
        '    {"name": "image", "datatype": "FP32", "shape": [1, 3, 224, 224], "data": [0.0] * 150528},\n'
        "]}))\n"
        "EOF"
    )


@pytest.mark.parametrize("size", [3, 5000])
def test_calls_contain_the_api_key_header_if_the_server_needs_one(size):
    description = described(TensorSpec("x", DataType.INT32, (size,)))
    for call in calls_of(description, where=replace(HERE, needs_key=True)):
        assert "STOKER_API_KEY" in call.text, call.key
        if call.language == "python":
            ast.parse(call.text)
        else:
            assert "-H 'Authorization: Bearer $STOKER_API_KEY'" in shlex.join(shell_words(call.text)[0])
    assert not [call.key for call in calls_of(description) if "STOKER_API_KEY" in call.text]


def test_hostile_model_name_is_escaped_in_the_list():
    entries = [
        IndexEntry(HOSTILE, None, None, f"broken: {HOSTILE}"),
        IndexEntry(f'"><img src=x onerror=alert(1)>{HOSTILE}', 1, VersionState.READY, "", "<b>"),
    ]
    page = list_page(entries)
    assert_is_plain(page)
    assert 'href="models/%22%3E%3Cimg' in page


def test_list_shows_an_unreadable_folder_as_unavailable():
    page = list_page([IndexEntry("broken", None, None, "config.pbtxt:1: no"), IndexEntry("idle", None, None)])
    assert '<td><span class="UNAVAILABLE">UNAVAILABLE</span></td>' in page
    assert '<td><span class="-">-</span></td>' in page
    assert "<th>reason</th>" in page


@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_decoupled_models_page_has_a_call_that_generate_accepts(max_batch_size):
    made = model("m", signature([TensorSpec("x", DataType.INT32, (2,)), TensorSpec("y", DataType.BYTES, (1,))], (), max_batch_size), dict)
    made.config = replace(made.config, signature=replace(made.config.signature, is_decoupled=True))
    [call] = [each for each in calls_of(ModelDescription(made.config, 1, (1,)), version=1) if each.key == "curl-generate-stream"]
    *_, url, _, body = shlex.split(call.text)
    assert url == "http://localhost:8501/v2/models/m/versions/1/generate_stream"
    request = decode(SignatureCheck("m", made.config.signature, Limits()), Target("m", 1, 0), body.encode(), Limits())
    lead = [1] if max_batch_size else []
    assert {name: list(array.shape) for name, array in request.inputs.items()} == {"x": [*lead, 2], "y": [*lead, 1]}


def test_only_the_last_column_of_a_table_breaks_within_words():
    # `anywhere` lets a browser shrink a column to one letter, in favour of a long text beside it.
    style = list_page([]).partition("<style>")[2].partition("</style>")[0]
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", style)
    cells = {selector.strip() for selector, body in rules if "overflow-wrap: anywhere" in body and re.match(r"\s*t[dh]\b", selector)}
    assert cells == {"td:last-child"}


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def assert_is_plain(page):
    elements = Elements()
    elements.feed(page)
    known = {"html", "head", "meta", "title", "style", "body", "nav", "h1", "h2", "p", "a", "div", "span", "pre", "code"}
    known |= {"table", "tr", "th", "td"}
    assert {tag for tag, _ in elements.seen} <= known
    attributes = {name for _, attributes in elements.seen for name in attributes}
    assert attributes <= {"lang", "charset", "name", "content", "href", "class", "id"}
    assert not [at["href"] for _, at in elements.seen if "href" in at and not re.match(r"[\w./%#-]+\Z", at["href"])]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("example.com:9000", "example.com:9000"),
        ("example.com", "example.com"),
        ("[::1]:8501", "[::1]:8501"),
        ("", "localhost:8501"),
        ("x'; rm -rf ~", "localhost:8501"),
        ("a b", "localhost:8501"),
        ("a:1\r\nx: y", "localhost:8501"),
        ("user@evil", "localhost:8501"),
    ],
)
def test_only_a_plain_host_header_is_shown(host, expected):
    found = addresses(host, "http", GrpcAddress(7))
    assert found.http == expected
    assert found.grpc is not None
    assert found.grpc.endswith(":7")


def test_calls_over_grpc_are_omitted_without_a_grpc_port():
    keys = {call.key for call in calls_of(ModelDescription(simple().config, 1, (1,)), where=addresses("h", "https", None))}
    assert keys == {"curl-json", "curl-binary", "curl-tfs", "stoker-client", "tritonclient-http"}

"""Served versions: whole or not at all, and in agreement with the config.pbtxt that is there."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker.compiler.repository_writer
from stoker.backends.api.tensor import DataType
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.output_files import make_folder, new_folder, written_whole
from stoker.compiler.pbtxt import Word, print_message, read_message
from stoker.compiler.repository_writer import ServedModel, ServedTensor, served_tensors, write_served_versions
from stoker.compiler.target import Artefact
from stoker.server.config.pbtxt import parse_pbtxt
from tests.fakes.graphs import parse

IMAGE = ServedTensor("image", "TYPE_FP32", (8, 8), "TYPE_FP16")
SCORES = ServedTensor("scores", "TYPE_FP32", (10,), "TYPE_FP16")
CONFIG: Mapping[str, object] = {"backend": "poplar", "max_batch_size": 32, "parameters": {"timeout_ns": "500000"}}


@pytest.fixture
def artefact(tmp_path: Path) -> Artefact:
    path = tmp_path / "draft"
    path.write_bytes(b"executable")
    return Artefact(path=path, config=CONFIG)


def write(repository: Path, artefact: Artefact, version: int | None = None, name: str = "digits") -> Path:
    model = ServedModel(name=name, config=artefact.config, inputs=[IMAGE], outputs=[SCORES])
    (path,) = write_served_versions(repository, [model], version, artefact.path, filename="executable.popef")
    return path


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_new_model_gets_a_config_and_version_1(tmp_path: Path, artefact: Artefact) -> None:
    repository = tmp_path / "repository"
    assert write(repository, artefact) == repository / "digits" / "1"
    assert names(repository) == ["digits", "digits/1", "digits/1/executable.popef", "digits/config.pbtxt"]
    assert (repository / "digits/1/executable.popef").read_bytes() == b"executable"


def test_server_reads_the_written_config(tmp_path: Path, artefact: Artefact) -> None:
    write(tmp_path, artefact)
    text = (tmp_path / "digits" / "config.pbtxt").read_text()
    message = parse_pbtxt(text, source="digits/config.pbtxt", model_name="digits").message
    assert (message.backend, message.max_batch_size, message.parameters["timeout_ns"].string_value) == ("poplar", 32, "500000")
    assert message.HasField("dynamic_batching")
    assert [(each.name, list(each.dims)) for each in message.input] == [("image", [8, 8])]
    assert [(each.name, list(each.dims)) for each in message.output] == [("scores", [10])]


def test_further_versions_are_numbered_on_and_keep_the_config(tmp_path: Path, artefact: Artefact) -> None:
    write(tmp_path, artefact, 7)
    config = tmp_path / "digits" / "config.pbtxt"
    config.write_text(config.read_text() + "# by hand\nversion_policy { all { } }\n")
    before = config.read_text()
    assert write(tmp_path, artefact).name == "8"
    assert config.read_text() == before


def test_version_is_never_overwritten(tmp_path: Path, artefact: Artefact) -> None:
    write(tmp_path, artefact, 3)
    with pytest.raises(OptionError, match=r"model_version 3: .* exists"):
        write(tmp_path, artefact, 3)
    assert [path.name for path in (tmp_path / "digits").iterdir() if path.is_dir()] == ["3"]


def test_version_created_concurrently_is_skipped(tmp_path: Path, artefact: Artefact, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, artefact)
    write(tmp_path, artefact)
    monkeypatch.setattr(stoker.compiler.repository_writer, "_versions", lambda _folder: [1])
    assert write(tmp_path, artefact).name == "3"


def parts(*, at: str = "1") -> list[ServedModel]:
    """The models of a fused executable."""
    settings = [{**CONFIG, "parameters": {"sub_graph": str(each)}} for each in (0, 1)]
    return [
        ServedModel(name=f"m_graph{each}", config=config, inputs=[IMAGE], outputs=[SCORES], files={"name_map.json": f'{{"{at}": "image"}}'})
        for each, config in enumerate(settings)
    ]


def test_models_of_one_executable_get_one_version_number(tmp_path: Path, artefact: Artefact) -> None:
    (tmp_path / "m_graph1" / "6").mkdir(parents=True)
    written = write_served_versions(tmp_path, parts(), None, artefact.path, filename="executable.popef")
    assert written == [tmp_path / "m_graph0" / "7", tmp_path / "m_graph1" / "7"]
    assert {path.name for path in written[0].iterdir()} == {"executable.popef", "name_map.json"}
    assert (written[1] / "name_map.json").read_text() == '{"1": "image"}'
    assert 'key: "sub_graph" value { string_value: "1" }' in (tmp_path / "m_graph1" / "config.pbtxt").read_text()


def test_no_model_is_written_if_one_of_them_fails(tmp_path: Path, artefact: Artefact) -> None:
    (tmp_path / "m_graph1").mkdir()
    (tmp_path / "m_graph1" / "config.pbtxt").write_text('name: "m_graph1"\nbackend: "poplar"\nmax_batch_size: 5\n')
    with pytest.raises(CompileError, match="max_batch_size is 5, the new version needs 32"):
        write_served_versions(tmp_path, parts(), None, artefact.path, filename="executable.popef")
    assert names(tmp_path) == ["draft", "m_graph1", "m_graph1/config.pbtxt"]


def test_model_without_config_gets_one(tmp_path: Path, artefact: Artefact) -> None:
    (tmp_path / "digits" / "1").mkdir(parents=True)
    assert write(tmp_path, artefact).name == "2"
    assert (tmp_path / "digits" / "config.pbtxt").exists()


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("max_batch_size: 32", "max_batch_size: 16", "max_batch_size is 16, the new version needs 32"),
        ("max_batch_size: 32", "", "max_batch_size is not written (0), the new version needs 32"),
        ('backend: "poplar"', 'backend: "onnxruntime"', "backend is onnxruntime, the new version needs poplar"),
        ('"image"', '"picture"', "inputs are picture, the new version has image"),
        ("dims: [10]", "dims: [ 11 ]", "output 'scores' has dims [11], the new version [10]"),
        ("dims: [8, 8]", "dims: 8", "input 'image' has dims [8], the new version [8, 8]"),
        ("TYPE_FP32 dims: [10]", "TYPE_INT32 dims: [10]", "output 'scores' is TYPE_INT32, the new version has TYPE_FP32"),
        ('"500000"', '"1"', "parameter timeout_ns is '1', the new version needs '500000'"),
    ],
)
def test_contradicting_config_is_reported_and_kept(tmp_path: Path, artefact: Artefact, old: str, new: str, difference: str) -> None:
    write(tmp_path, artefact)
    config = tmp_path / "digits" / "config.pbtxt"
    text = config.read_text().replace(old, new, 1)
    assert text != config.read_text()
    config.write_text(text)
    with pytest.raises(CompileError) as caught:
        write(tmp_path, artefact)
    assert difference in str(caught.value)
    assert config.read_text() == text
    assert names(tmp_path / "digits") == ["1", "1/executable.popef", "config.pbtxt"]


def test_config_with_device_types_or_reshape_agrees_too(tmp_path: Path, artefact: Artefact) -> None:
    write(tmp_path, artefact)
    config = tmp_path / "digits" / "config.pbtxt"
    text = config.read_text().replace("TYPE_FP32 dims: [10]", "TYPE_FP16 dims: [ 2, 5 ] reshape { shape: [ 10 ] }")
    config.write_text(text)
    assert write(tmp_path, artefact).name == "2"


def test_unreadable_config_is_reported(tmp_path: Path, artefact: Artefact) -> None:
    write(tmp_path, artefact)
    (tmp_path / "digits" / "config.pbtxt").write_text('name: "digits"\ninput [ {')
    with pytest.raises(CompileError, match=r"config\.pbtxt:2: "):
        write(tmp_path, artefact)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "with space", "x" * 129])
def test_invalid_model_names_are_refused(tmp_path: Path, artefact: Artefact, name: str) -> None:
    with pytest.raises(OptionError, match="model_name"):
        write(tmp_path / "repository", artefact, name=name)
    assert not (tmp_path / "repository").exists()


def test_failed_copy_leaves_nothing(tmp_path: Path, artefact: Artefact) -> None:
    gone = dataclasses.replace(artefact, path=tmp_path / "gone")
    with pytest.raises(CompileError, match="cannot write"):
        write(tmp_path / "repository", gone)
    assert names(tmp_path / "repository") == []


def test_files_appear_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"

    def fail_halfway() -> None:
        with written_whole(path) as draft:
            draft.write_text("half")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        fail_halfway()
    assert names(tmp_path) == ["made"]
    with written_whole(path) as draft:
        draft.write_text("whole")
    assert path.read_text() == "whole"
    with pytest.raises(FileExistsError), new_folder(path.parent) as folder:
        assert folder.is_dir()
    assert names(tmp_path) == ["made", "made/file"]


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="cannot make folder"):
        make_folder(tmp_path / "file" / "inner")


def test_config_has_one_items_dims_and_the_sources_types_if_the_server_casts() -> None:
    source = parse("g (float[n,3] x, int64[n] i) => (float[n,2] y) { y = Foo(x, i) }")
    converted = parse("g (float16[4,3] x, int32[4] i) => (float16[4,2] y) { y = Foo(x, i) }")
    halves, words = (DataType.FP16, DataType.FP32, DataType.FP64), (DataType.INT32, DataType.INT64)
    inputs, outputs = served_tensors(source, converted, is_batched=True, datatypes={"x": halves, "y": halves, "i": words})
    assert inputs == [ServedTensor("x", "TYPE_FP32", (3,), "TYPE_FP16"), ServedTensor("i", "TYPE_INT64", (), "TYPE_INT32")]
    assert outputs == [ServedTensor("y", "TYPE_FP32", (2,), "TYPE_FP16")]
    unbatched, _ = served_tensors(source, converted, is_batched=False)
    assert unbatched[0].dims == (4, 3)


def test_config_without_casts_has_the_types_of_the_artefact() -> None:
    source = parse("g (float[n,3] x) => (double[n,2] y) { y = Foo(x) }")
    converted = parse("g (float16[4,3] x) => (double[4,2] y) { y = Foo(x) }")
    inputs, outputs = served_tensors(source, converted, is_batched=True, datatypes={"y": (DataType.FP32,)})
    assert inputs == [ServedTensor("x", "TYPE_FP16", (3,), "TYPE_FP16")]
    assert outputs == [ServedTensor("y", "TYPE_FP32", (2,), "TYPE_FP32")]


def test_types_without_a_protocol_datatype_are_refused() -> None:
    model = parse("g (complex64[2] x) => (complex64[2] y) { y = Identity(x) }")
    with pytest.raises(CompileError, match="tensor 'x' is COMPLEX64, which no request can carry"):
        served_tensors(model, model, is_batched=False)


@given(st.text())
def test_text_round_trips_through_printing_and_parsing(text: str) -> None:
    assert read_message(print_message({"name": text}), "t") == {"name": [text]}


def test_messages_round_trip_through_printing_and_parsing() -> None:
    printed = print_message(
        {"a": 1, "b": True, "c": Word("TYPE_X"), "m": {"inner": {"x": 1.5}}, "l": [{"k": "v"}, {"k": "w"}], "d": [1, 2]}
    )
    assert read_message(printed, "t") == {
        "a": ["1"], "b": ["true"], "c": ["TYPE_X"], "m": [{"inner": [{"x": ["1.5"]}]}], "l": [{"k": ["v"]}, {"k": ["w"]}], "d": ["1", "2"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"), [("a: {", 1), ("a: }", 1), ("\n{ }", 2), ("a: \n", 2), ('a: "x', 1), ("a: [ 1\n", 2), ("1 : [ } ]", 1)]
)
def test_text_that_is_not_a_message_is_reported_with_its_line(text: str, line: int) -> None:
    with pytest.raises(CompileError, match=f"^t:{line}: "):
        read_message(text, "t")


@given(st.text(alphabet="ab:{}[]<>\"'\\ \n#,;1", max_size=40))
def test_parsing_returns_a_message_or_one_error(text: str) -> None:
    try:
        message = read_message(text, "t")
    except CompileError:
        return
    assert all(values for values in message.values()) or "[" in text


def test_scalar_is_one_element_for_clients(tmp_path: Path, artefact: Artefact) -> None:
    scalar = ServedTensor("scale", "TYPE_FP32", (), "TYPE_FP32")
    model = ServedModel(name="m", config={"backend": "poplar"}, inputs=[IMAGE, scalar], outputs=[SCORES])
    for version in ("1", "2"):  # the second is compared with what the first wrote
        (path,) = write_served_versions(tmp_path, [model], None, artefact.path, filename="executable.popef")
        assert path.name == version
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    served = parse_pbtxt(text, source="m/config.pbtxt", model_name="m").message.input[1]
    assert (list(served.dims), served.HasField("reshape"), list(served.reshape.shape)) == ([1], True, [])

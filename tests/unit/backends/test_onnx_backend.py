import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from stoker.backends.api.errors import BackendFailed, InvalidRequest, ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import FileTensor, ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.onnx.runtime_limits import RuntimeLimits, limits_of
from stoker.backends.testing.samples import same_in_and_out, signature, version_files
from tests.fakes.onnx_models import identity, load_request, model, onnx_files, pick, sum_and_difference, value

BACKEND = OnnxRuntimeBackend()


def inspect(folder: Path, proto: onnx.ModelProto) -> ModelFacts:
    return BACKEND.inspect(onnx_files(folder, proto), "model.onnx")


def test_inspect_returns_the_interface_and_the_versions(tmp_path: Path) -> None:
    facts = inspect(tmp_path, sum_and_difference(("n", 3)))
    assert facts.inputs == (FileTensor("a", DataType.FP32, (-1, 3)), FileTensor("b", DataType.FP32, (-1, 3)))
    assert facts.outputs == (FileTensor("sum", DataType.FP32, (-1, 3)), FileTensor("difference", DataType.FP32, (-1, 3)))
    assert facts.notes == ("IR version 10; opsets: ai.onnx 21", "written by stoker-tests")


def test_unknown_file_error_lists_the_existing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no file 'model.onnx'; it holds: other.txt"):
        BACKEND.inspect(version_files(tmp_path, {"other.txt": b""}), "model.onnx")


@pytest.mark.parametrize(
    ("element_type", "name"), [(TensorProto.FLOAT8E4M3FN, "FLOAT8E4M3FN"), (TensorProto.INT4, "INT4"), (TensorProto.COMPLEX64, "COMPLEX64")]
)
def test_types_without_a_protocol_datatype_are_refused_by_name(tmp_path: Path, element_type: int, name: str) -> None:
    proto = model([helper.make_node("Identity", ["x"], ["y"])], [value("x", (1,), element_type)], [value("y", (1,), element_type)])
    with pytest.raises(ModelLoadError, match=f"input 'x' has element type {name}, which cannot be served"):
        inspect(tmp_path, proto)


def test_sequence_output_is_refused(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        [value("x", (1,))],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
    )
    with pytest.raises(ModelLoadError, match="output 'y' is sequence; only dense tensors"):
        inspect(tmp_path, proto)


@pytest.mark.parametrize(("ir_version", "opset", "text"), [(14, 21, "IR version 14 and opset 21"), (10, 28, "IR version 10 and opset 28")])
def test_too_new_file_is_refused_with_the_versions_of_both_sides(tmp_path: Path, ir_version: int, opset: int, text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        inspect(tmp_path, identity(opset=opset, ir_version=ir_version))
    assert text in caught.value.message
    limits = limits_of(ort.__version__)
    assert limits is not None
    assert f"onnxruntime {ort.__version__} reads IR up to {limits.ir_version}, opset up to {limits.opset}" in caught.value.message


def test_limits_equal_those_of_the_installed_runtime(tmp_path: Path) -> None:
    """Loads just below and just above the table's row, past the server's check."""
    limits = limits_of(ort.__version__)
    assert limits is not None, "this onnxruntime is not in the table: measure it and add a row"
    options = ort.SessionOptions()
    options.log_severity_level = 4

    def loads(proto: onnx.ModelProto) -> bool:
        try:
            ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:
            return False
        return True

    assert loads(identity(ir_version=limits.ir_version))
    assert loads(identity(opset=limits.opset))
    assert not loads(identity(ir_version=limits.ir_version + 1))
    assert not loads(identity(opset=limits.opset + 1))
    machine_learning = identity()
    machine_learning.opset_import.append(helper.make_opsetid("ai.onnx.ml", limits.ml_opset))
    assert loads(machine_learning)
    machine_learning.opset_import[1].version += 1
    assert not loads(machine_learning)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("1.22.0", (10, 22)),
        ("1.23.2", (11, 23)),
        ("1.24.0", (13, 25)),
        ("1.31.1", (13, 26)),
        ("1.21.0", None),
        ("9.0.0", None),
        ("dev", None),
    ],
)
def test_limits_depend_on_the_release(release: str, expected: tuple[int, int] | None) -> None:
    limits = limits_of(release)
    assert (None if limits is None else (limits.ir_version, limits.opset)) == expected


def test_machine_learning_operators_have_a_separate_limit() -> None:
    limits = RuntimeLimits("1.31.1", 13, 26, 5)
    assert limits.complaint(13, {"ai.onnx": 26, "ai.onnx.ml": 5, "com.example": 99}) is None
    assert "ai.onnx.ml opset 6;" in (limits.complaint(13, {"ai.onnx.ml": 6}) or "")


def with_external_weight(location: str, offset: str = "0") -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, "offset": offset, "length": "8"}.items():
        weight.external_data.add(key=key, value=text)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", ("n", 2))], [value("y", ("n", 2))], [weight])


WEIGHT = np.array([1, 2], np.float32).tobytes()


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/etc/hostname", "external file '/etc/hostname', which leaves the version folder"),
        ("../secret.bin", "'../secret.bin', which leaves the version folder"),
        ("sub/../../secret.bin", "leaves the version folder"),
        ("gone.bin", "'gone.bin', which is not in the version folder; it holds: model.onnx, weights.bin"),
        ("*/_ORT_MEM_ADDR_/*", "not in the version folder"),
        ("", "no location is given"),
    ],
)
def test_external_data_outside_the_version_is_refused(tmp_path: Path, location: str, text: str) -> None:
    files = version_files(tmp_path, {"model.onnx": with_external_weight(location).SerializeToString(), "weights.bin": WEIGHT})
    with pytest.raises(ModelLoadError) as caught:
        BACKEND.inspect(files, "model.onnx")
    assert "tensor 'w'" in caught.value.message
    assert text in caught.value.message


def test_incomplete_external_data_is_refused(tmp_path: Path) -> None:
    files = version_files(tmp_path, {"model.onnx": with_external_weight("weights.bin", "4").SerializeToString(), "weights.bin": WEIGHT})
    with pytest.raises(ModelLoadError, match="bytes 4 to 12, but that file has 8: not copied whole"):
        BACKEND.inspect(files, "model.onnx")


@pytest.mark.parametrize("folder", ["", "deep/"])
def test_external_data_beside_the_model_is_used(tmp_path: Path, folder: str) -> None:
    files = version_files(
        tmp_path, {f"{folder}model.onnx": with_external_weight("./weights.bin").SerializeToString(), f"{folder}weights.bin": WEIGHT}
    )
    request = load_request(files, same_in_and_out())
    instance = BACKEND.load(dataclasses.replace(request, model_filename=f"{folder}model.onnx"))
    assert instance.execute({"x": np.zeros((1, 2), np.float32)}, ["y"])["y"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (model([helper.make_node("NoSuchOp", ["x"], ["y"])], [value("x", ("n", 2))], [value("y", ("n", 2))]), "NoSuchOp"),
        (model([helper.make_node("Add", ["x", "nowhere"], ["y"])], [value("x", ("n", 2))], [value("y", ("n", 2))]), "nowhere"),
    ],
)
def test_file_rejected_by_the_runtime_is_reported_with_versions_and_no_path(tmp_path: Path, proto: onnx.ModelProto, text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        BACKEND.load(load_request(onnx_files(tmp_path, proto), same_in_and_out()))
    assert caught.value.message.startswith(
        f"onnxruntime {ort.__version__} does not load 'model.onnx' (IR version 10; opsets: ai.onnx 21): "
    )
    assert text in caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert "onnxruntime_src" not in caught.value.message


def test_refusal_with_invalid_utf_8_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Nonesuch", ["x"], ["y"])
    proto = model([node], [value("x", ("n", 2))], [value("y", ("n", 2))]).SerializeToString().replace(b"Nonesuch", b"\xfbonesuch")
    files = version_files(tmp_path, {"model.onnx": proto})
    with pytest.raises(ModelLoadError, match=r"onnxruntime .* does not load 'model\.onnx' .*'utf-8' codec can't decode byte 0xfb"):
        BACKEND.load(load_request(files, same_in_and_out()))
    assert capfd.readouterr() == ("", "")


def test_configuration_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="input 'x' is TYPE_INT64 in the configuration and TYPE_FP32 in the model file"):
        BACKEND.load(load_request(onnx_files(tmp_path, identity()), same_in_and_out(DataType.INT64)))


def test_bad_parameter_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r'parameters\["intra_op_thread_count"\]: takes a whole number .* not .many.'):
        BACKEND.load(load_request(onnx_files(tmp_path, identity()), same_in_and_out(), intra_op_thread_count="many"))


@pytest.mark.parametrize("graph_level", [None, -1, 1, 2])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"execution_mode": "1", "intra_op_thread_count": "2"},
        {"enable_mem_arena": "0", "enable_mem_pattern": "0"},
        {"memory__enable_memory_arena_shrinkage": "cpu:0"},
        {"session__intra_op__allow_spinning": "1", "session__disable_prepacking": "1"},
    ],
)
def test_every_parameter_loads_and_computes_the_same(tmp_path: Path, parameters: dict[str, str], graph_level: int | None) -> None:
    request = load_request(
        onnx_files(tmp_path, sum_and_difference()),
        signature(dict.fromkeys(("a", "b"), (DataType.FP32, (2,))), dict.fromkeys(("sum", "difference"), (DataType.FP32, (2,)))),
        graph_level=graph_level,
        **parameters,
    )
    instance = BACKEND.load(request)
    array = np.array([[3, 4]], np.float32)
    found = instance.execute({"a": array, "b": array}, ["sum", "difference"])
    assert (found["sum"].tolist(), found["difference"].tolist()) == ([[6, 8]], [[0, 0]])
    instance.close()


def test_fixed_batch_makes_a_static_instance(tmp_path: Path) -> None:
    instance = BACKEND.load(load_request(onnx_files(tmp_path, identity(shape=(4, 2))), same_in_and_out(max_batch_size=4)))
    assert instance.static_batch_size == 4


def test_open_batch_makes_an_instance_of_any_size(tmp_path: Path) -> None:
    instance = BACKEND.load(load_request(onnx_files(tmp_path, identity()), same_in_and_out()))
    assert instance.static_batch_size is None


@pytest.mark.parametrize("dims", [(), (3,), (0,)])
def test_models_without_batch_dimension_get_unbatched_tensors(tmp_path: Path, dims: tuple[int, ...]) -> None:
    instance = BACKEND.load(load_request(onnx_files(tmp_path, identity(shape=dims)), same_in_and_out(dims=dims, max_batch_size=0)))
    found = instance.execute({"x": np.ones(dims, np.float32)}, ["y"])["y"]
    assert found.shape == dims
    assert isinstance(found, np.ndarray)


def test_strings_are_utf_8_bytes_in_and_out(tmp_path: Path) -> None:
    instance = BACKEND.load(load_request(onnx_files(tmp_path, identity(DataType.BYTES)), same_in_and_out(DataType.BYTES)))
    array = np.array([["Grüße".encode(), b""], [b"with\0zero", "猫".encode()]], dtype=object)
    assert instance.execute({"x": array}, ["y"])["y"].tolist() == array.tolist()


def test_text_that_is_not_utf_8_is_a_request_error(tmp_path: Path) -> None:
    instance = BACKEND.load(load_request(onnx_files(tmp_path, identity(DataType.BYTES)), same_in_and_out(DataType.BYTES)))
    with pytest.raises(InvalidRequest, match="input 'x' element 1 is not UTF-8"):
        instance.execute({"x": np.array([[b"fine", b"\xff"]], dtype=object)}, ["y"])


def test_bfloat16_preserves_every_bit(tmp_path: Path) -> None:
    instance = BACKEND.load(load_request(onnx_files(tmp_path, identity(DataType.BF16)), same_in_and_out(DataType.BF16)))
    bits = np.array([[0x3F80, 0x7FC1], [0x8000, 0xFF80]], np.uint16)
    found = instance.execute({"x": bits}, ["y"])["y"]
    assert found.dtype == np.uint16
    assert found.tolist() == bits.tolist()
    found[:] = 0


def mixed_with_bfloat16() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["h"], ["g"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["text"], ["same"]),
    ]
    inputs = [value("x", ("n", 2)), value("h", ("n", 2), TensorProto.BFLOAT16), value("text", ("n", 1), TensorProto.STRING)]
    outputs = [value("y", ("n", 2), TensorProto.BFLOAT16), value("g", ("n", 2)), value("same", ("n", 1), TensorProto.STRING)]
    return model(nodes, inputs, outputs)


MIXED_INPUTS = {"x": (DataType.FP32, (2,)), "h": (DataType.BF16, (2,)), "text": (DataType.BYTES, (1,))}


def test_bfloat16_inputs_beside_strings_are_accepted(tmp_path: Path) -> None:
    served = signature(MIXED_INPUTS, {"g": (DataType.FP32, (2,)), "same": (DataType.BYTES, (1,))})
    instance = BACKEND.load(load_request(onnx_files(tmp_path, mixed_with_bfloat16()), served))
    half, text = np.array([[0x3F80, 0xC000]], np.uint16), np.array([[b"t"]], dtype=object)
    inputs: dict[str, np.ndarray] = {"x": np.ones((1, 2), np.float32), "h": half, "text": text}
    found = instance.execute(inputs, ["same", "g"])
    assert found["g"].tolist() == [[1, -2]]
    assert found["same"].tolist() == [[b"t"]]


def test_bfloat16_outputs_beside_other_types_are_returned(tmp_path: Path) -> None:
    proto = mixed_with_bfloat16()
    del proto.graph.node[2], proto.graph.input[2], proto.graph.output[2]
    served = signature({name: MIXED_INPUTS[name] for name in ("x", "h")}, {"y": (DataType.BF16, (2,)), "g": (DataType.FP32, (2,))})
    instance = BACKEND.load(load_request(onnx_files(tmp_path, proto), served))
    inputs: dict[str, np.ndarray] = {"x": np.array([[1, -2]], np.float32), "h": np.array([[0x3F80, 0xC000]], np.uint16)}
    found = instance.execute(inputs, ["g", "y"])
    assert found["y"].tolist() == [[0x3F80, 0xC000]]
    assert found["g"].tolist() == [[1, -2]]


def test_string_inputs_with_bfloat16_outputs_are_refused_at_load(tmp_path: Path) -> None:
    served = signature(MIXED_INPUTS, {"y": (DataType.BF16, (2,))})
    with pytest.raises(ModelLoadError, match=r"output\[0\]\.data_type: string input\(s\) text beside bfloat16 output y"):
        BACKEND.load(load_request(onnx_files(tmp_path, mixed_with_bfloat16()), served))


def test_execution_error_names_the_node_and_no_source_file(tmp_path: Path) -> None:
    instance = BACKEND.load(
        load_request(onnx_files(tmp_path, pick()), signature({"x": (DataType.INT64, (2,))}, {"y": (DataType.FP32, (2,))}))
    )
    with pytest.raises(BackendFailed) as caught:
        instance.execute({"x": np.array([[0, 7]])}, ["y"])
    assert "Gather node. Name:'/head/Gather'" in caught.value.message
    assert "idx=7" in caught.value.message
    assert instance.execute({"x": np.array([[0, 2]])}, ["y"])["y"].tolist() == [[0, 20]]


def test_outputs_stay_valid_after_the_session_is_closed(tmp_path: Path) -> None:
    instance = BACKEND.load(load_request(onnx_files(tmp_path, identity()), same_in_and_out()))
    found = instance.execute({"x": np.full((8, 2), 5, np.float32)}, ["y"])["y"]
    instance.close()
    assert (found == 5).all()
    with pytest.raises(BackendFailed, match="closed"):
        instance.execute({"x": np.zeros((1, 2), np.float32)}, ["y"])


def test_weights_listed_as_inputs_are_not_required(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", ("n", 2)), value("w", (2,))], [value("y", ("n", 2))], [weight])
    instance = BACKEND.load(load_request(onnx_files(tmp_path, proto), same_in_and_out()))
    assert instance.execute({"x": np.zeros((1, 2), np.float32)}, ["y"])["y"].tolist() == [[1, 2]]


def test_failed_request_writes_nothing_to_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files: ModelFiles = onnx_files(tmp_path, pick())
    instance = BACKEND.load(load_request(files, signature({"x": (DataType.INT64, (2,))}, {"y": (DataType.FP32, (2,))})))
    with pytest.raises(BackendFailed):
        instance.execute({"x": np.array([[0, 7]])}, ["y"])
    assert capfd.readouterr().err == ""

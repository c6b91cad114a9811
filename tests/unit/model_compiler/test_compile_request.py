"""Requests: every field's forms, and all errors at once."""

import logging
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_compiler.request import NO_EFFECT, BuildFlag, Layout, read_request, request_fields

from stoker.compiler.errors import OptionError

USUAL: dict[str, Any] = {
    "serving_type": "engine",
    "model_name": "m",
    "max_batch_size": 8,
    "input_model": "m.onnx",
    "export_path": "models",
}


def test_minimal_request_has_adliks_defaults() -> None:
    request = read_request(USUAL)
    assert (request.version, request.input_formats, request.input_shapes, request.batch_sizes) == (None, (), (), ())
    assert request.flag is BuildFlag.FP32


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        read_request({"model_name": "../m", "max_batch_size": 0, "input_model": 3, "version": "one", "enable_int8": 1, "build_flag": "fp8"})
    lines = str(caught.value).splitlines()
    starts = {"model_name '../m'", "max_batch_size:", "input_model:", "version:", "enable_int8:", "build_flag:"}
    starts |= {"serving_type is missing", "export_path is missing"}
    assert len(lines) == len(starts)
    assert all(any(line.startswith(start) for line in lines) for start in starts)


@pytest.mark.parametrize("name", sorted(USUAL))
def test_each_missing_required_field_is_named(name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name} is missing$"):
        read_request({key: value for key, value in USUAL.items() if key != name})
    with pytest.raises(OptionError, match=rf"^{name} is missing$"):
        read_request({**USUAL, name: None})


@pytest.mark.parametrize(
    ("written", "flag"),
    [
        ("TopsInference.KDEFAULT", BuildFlag.FP32),
        ("TopsInference.KFP16", BuildFlag.FP16),
        ("TopsInference.KFP16_MIX", BuildFlag.MIXED),
        ("TTopsInference.KFP16_MIX", BuildFlag.MIXED),  # as Adlik's own code misspells it
        ("kfp16", BuildFlag.FP16),
        ("mixed", BuildFlag.MIXED),
        (1, BuildFlag.FP32),
        (4, BuildFlag.MIXED),
    ],
)
def test_build_flags_are_accepted_in_every_spelling(written: object, flag: BuildFlag) -> None:
    assert read_request({**USUAL, "build_flag": written}).flag is flag


def test_enable_fp16_is_the_build_flag_of_that_name() -> None:
    assert read_request({**USUAL, "enable_fp16": 1}).flag is BuildFlag.FP16
    assert read_request({**USUAL, "enable_fp16": "0"}).flag is BuildFlag.FP32
    with pytest.raises(OptionError, match="enable_fp16 and build_flag mixed contradict"):
        read_request({**USUAL, "enable_fp16": True, "build_flag": "KFP16_MIX"})


@pytest.mark.parametrize(
    ("written", "shapes"),
    [
        ([[1, 3, 4, 4], [1, 10]], ((1, 3, 4, 4), (1, 10))),
        ("[[1, 3, 4, 4], [1, 10]]", ((1, 3, 4, 4), (1, 10))),
        ("[1,3,4,4],[1,10]", ((1, 3, 4, 4), (1, 10))),
        ("1,3,4,4:1,10", ((1, 3, 4, 4), (1, 10))),
        ("[3, 4]", ((3, 4),)),
        ({"x": [1, 2]}, {"x": (1, 2)}),
        ('{"x": [1, 2]}', {"x": (1, 2)}),
        ([[]], ((),)),
    ],
)
def test_input_shapes_are_accepted_in_every_form(written: object, shapes: object) -> None:
    assert read_request({**USUAL, "input_shapes": written}).input_shapes == shapes


@pytest.mark.parametrize("written", [[3, 4], "a,b", "[[1,", [[0, 3]], [[-1, 3]], [["x"]], [[1.5]], 7, [[True]]])
def test_other_shapes_are_refused(written: object) -> None:
    with pytest.raises(OptionError, match=r"^input_shapes: "):
        read_request({**USUAL, "input_shapes": written})


@given(st.lists(st.lists(st.integers(1, 4096), min_size=1, max_size=8), min_size=1, max_size=4))
def test_shapes_round_trip_through_both_texts(shapes: list[list[int]]) -> None:
    wanted = tuple(tuple(shape) for shape in shapes)
    texts = (str(shapes), ":".join(",".join(map(str, shape)) for shape in shapes))
    assert [read_request({**USUAL, "input_shapes": text}).input_shapes for text in texts] == [wanted, wanted]


def test_formats_are_one_for_each_input_and_may_be_none() -> None:
    both = (Layout.CHANNELS_FIRST, None, Layout.CHANNELS_LAST)
    assert read_request({**USUAL, "input_formats": ["channels_first", None, "channels_last"]}).input_formats == both
    assert read_request({**USUAL, "input_formats": "channels_first,,CHANNELS_LAST"}).input_formats == both
    with pytest.raises(OptionError, match="input_formats: expected channels_first, channels_last or null for each input, got 'NCHW'"):
        read_request({**USUAL, "input_formats": ["NCHW"]})


def test_batch_sizes_are_sorted_and_below_the_largest() -> None:
    assert read_request({**USUAL, "batch_sizes": "8,1,1"}).batch_sizes == (1, 8)
    assert read_request({**USUAL, "batch_sizes": 4}).batch_sizes == (4,)
    with pytest.raises(OptionError, match=r"batch_sizes: 16, 32 above max_batch_size 8"):
        read_request({**USUAL, "batch_sizes": [1, 16, 32]})
    for wrong in ([], [0], "x", [2.5]):
        with pytest.raises(OptionError, match=r"^batch_sizes: "):
            read_request({**USUAL, "batch_sizes": wrong})


def test_compile_options_are_an_object_or_its_text() -> None:
    assert read_request({**USUAL, "compile_options": {"resource_mode": "1c"}}).compile_options == {"resource_mode": "1c"}
    assert read_request({**USUAL, "optimizer_options": '{"resource_mode": "1c"}'}).compile_options == {"resource_mode": "1c"}
    for wrong in ("{", "[1]", 3):
        with pytest.raises(OptionError, match=r"^compile_options: expected an object|^compile_options: expected a JSON object"):
            read_request({**USUAL, "compile_options": wrong})


def test_fields_for_other_devices_are_accepted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_request({**USUAL, **dict.fromkeys(NO_EFFECT, "x"), "job_id": "7", "callback": "http://host/"})
    assert {record.getMessage().partition(" ")[0] for record in caplog.records} == set(NO_EFFECT)


def test_unknown_field_is_a_warning_with_the_nearest_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_request({**USUAL, "input_shape": [[1]], "optimze_offline": True})
    assert "there is no field 'input_shape'; did you mean input_shapes" in caplog.text
    assert "there is no field 'optimze_offline'; did you mean optimize_offline" in caplog.text


@pytest.mark.parametrize("given", [None, [], "engine"])
def test_request_that_is_not_a_dictionary_is_refused(given: object) -> None:
    with pytest.raises(OptionError, match=f"expected a dictionary with serving_type, .*, got {type(given).__name__}"):
        read_request(given)  # type: ignore[arg-type] # which callers of Python are free to do


def test_two_names_of_one_field_are_a_contradiction() -> None:
    with pytest.raises(OptionError, match="model_path: 'input_model' says the same, give one of them"):
        read_request({**USUAL, "model_path": "other.onnx"})


def test_model_field_may_be_a_model_object() -> None:
    model = onnx.ModelProto()
    assert read_request({**USUAL, "input_model": model}).input_model is model


def test_environment_variables_make_the_same_request() -> None:
    environment = {
        "SERVING_TYPE": "engine",
        "MODEL_NAME": "m",
        "MAX_BATCH_SIZE": "8",
        "EXPORT_PATH": "models",
        "ONNX_PATH": "m.onnx",
        "INPUT_SHAPES": "[1,3],[1,4]",
        "INPUT_FORMATS": "channels_first,",
        "BUILD_FLAG": "TopsInference.KFP16",
        "VERSION": "",
        "PATH": "/bin",
    }
    fields = {"framework": "onnx", "input_shapes": [[1, 3], [1, 4]], "input_formats": ["channels_first", None], "build_flag": "KFP16"}
    assert read_request(request_fields(environment)) == read_request({**USUAL, **fields})


def test_environment_names_one_source() -> None:
    assert request_fields({"TORCH_PATH": "m.pt2"}) == {"input_model": "m.pt2", "framework": "torch"}
    assert request_fields({"INPUT_MODEL": "m.onnx"}) == {"input_model": "m.onnx"}
    with pytest.raises(OptionError, match="ONNX_PATH and TORCH_PATH are set: give one source"):
        request_fields({"ONNX_PATH": "a", "TORCH_PATH": "b"})
    with pytest.raises(OptionError, match=r"CHECKPOINT_PATH: no such source can be read here; those that can: .*ONNX_PATH"):
        request_fields({"CHECKPOINT_PATH": "m"})

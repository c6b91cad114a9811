import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.backend import Instance
from stoker.backends.api.errors import ErrorCode, ModelLoadError, ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import BY_CONFIG_NAME
from stoker.backends.python.describe import describe
from tests.fakes.python_models import FakeCalls, Item, Sink, load, processor, run, run_one, text_of


def described(folder: Path, source: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """The configuration that the annotations of `source` make."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(textwrap.dedent(source))
    payload = {"folder": str(folder), "filename": "model.py", "model_name": "m", "version": 1, "config": config or {"name": "m"}}
    found: dict[str, Any] = json.loads(json.dumps(describe(payload)))["config"]
    return found


def served(config: dict[str, Any]) -> ModelSignature:
    """The signature of a described configuration."""

    def specs(side: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                tensor["name"],
                BY_CONFIG_NAME[tensor["data_type"]],
                tuple(tensor["dims"]),
                tuple(tensor["reshape"]["shape"]) if "reshape" in tensor else None,
                tensor.get("optional", False),
            )
            for tensor in config[side]
        )

    decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
    return ModelSignature(specs("input"), specs("output"), config["max_batch_size"], decoupled)


def loaded(folder: Path, source: str, **options: Any) -> tuple[Instance, ModelSignature]:
    """The model of `source`, as its annotations say."""
    signature = served(described(folder, source))
    return load(folder, source, signature, **options), signature


DOUBLE = """
from stoker.models import Array, batched, float32

@batched(max=8, delay_ms=2.5)
def predict(image: Array["n", 2, float32]) -> Array["n", 2, float32]:
    CALLS.append(len(image))
    return image * 2

CALLS = []
"""


def test_annotations_make_the_configuration(tmp_path: Path):
    assert described(tmp_path, DOUBLE) == {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "image", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "output", "data_type": "TYPE_FP32", "dims": [2]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 2500},
    }


@pytest.mark.parametrize(
    ("annotation", "data_type", "dims"),
    [
        ('Array["n", 8, 8, float32]', "TYPE_FP32", [-1, 8, 8]),
        ('Array["h", "w", 3, uint8]', "TYPE_UINT8", [-1, -1, 3]),
        ('Array["n", str]', "TYPE_STRING", [-1]),
        ("Array[4, bytes]", "TYPE_STRING", [4]),
        ("Array[4, bfloat16]", "TYPE_BF16", [4]),
        ('Array[4, np.dtype("int16")]', "TYPE_INT16", [4]),
        ('Array["n", bool]', "TYPE_BOOL", [-1]),
        ("int", "TYPE_INT64", [1]),
        ("float", "TYPE_FP64", [1]),
        ("bool", "TYPE_BOOL", [1]),
        ("str", "TYPE_STRING", [1]),
        ("bytes", "TYPE_STRING", [1]),
        ("float16", "TYPE_FP16", [1]),
        ("list[str]", "TYPE_STRING", [-1]),
    ],
)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_annotation_of_an_input_gives_type_and_dims(tmp_path: Path, annotation: str, data_type: str, dims: list[int], future: str):
    source = f"{future}import numpy as np\nfrom stoker.models import *\n\ndef predict(x: {annotation}) -> int:\n    return 1\n"
    assert described(tmp_path, source)["input"] == [{"name": "x", "data_type": data_type, "dims": dims}]


@pytest.mark.parametrize(
    ("definition", "annotation", "value", "names"),
    [
        ("class R(NamedTuple):\n    a: Array[2, float32]\n    b: str", "R", "R(np.ones(2, np.float32), 'é')", ["a", "b"]),
        ("@dataclass\nclass R:\n    a: Array[2, float32]\n    b: str", "R", "R(np.ones(2, np.float32), 'é')", ["a", "b"]),
        ("class R(TypedDict):\n    a: Array[2, float32]\n    b: str", "R", "{'a': np.ones(2, np.float32), 'b': 'é'}", ["a", "b"]),
        ("", "{'a': Array[2, float32], 'b': str}", "{'a': [1.0, 1.0], 'b': 'é'}", ["a", "b"]),
        ("", "tuple[Array[2, float32], str]", "(np.ones(2), 'é')", ["output_0", "output_1"]),
    ],
)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_several_outputs_are_named_by_their_annotation(
    tmp_path: Path, definition: str, annotation: str, value: str, names: list[str], future: str
):
    source = (
        f"{future}from dataclasses import dataclass\nfrom typing import NamedTuple, TypedDict\nimport numpy as np\n"
        f"from stoker.models import Array, float32\n\n{definition}\n\ndef predict(x: int) -> {annotation}:\n    return {value}\n"
    )
    instance, signature = loaded(tmp_path, source)
    outcome = run_one(instance, signature, inputs={"x": np.array([1])})
    assert not isinstance(outcome, ServingError), outcome
    assert list(outcome) == names
    assert [outcome[name].tolist() for name in names] == [[1, 1], ["é".encode()]]


def test_batched_function_gets_the_rows_of_all_requests_in_one_call(tmp_path: Path):
    instance, signature = loaded(tmp_path, DOUBLE)
    items = [Item({"image": np.full((rows, 2), rows, np.float32)}, ("output",), rows) for rows in (1, 3)]
    first, second = run(instance, signature, items)
    assert (first["output"].tolist(), second["output"].tolist()) == ([[2, 2]], [[6, 6]] * 3)  # type: ignore[index]
    assert instance._module.CALLS == [4]  # type: ignore[attr-defined]


def test_bad_request_of_a_batch_fails_alone(tmp_path: Path):
    source = """
    from stoker.models import Array, BadRequest, batched, float32
    @batched(max=8)
    def predict(x: Array["n", float32]) -> Array["n", float32]:
        if (x < 0).any():
            raise BadRequest("x is negative")
        return x
    """
    instance, signature = loaded(tmp_path, source)
    good, bad = run(instance, signature, [Item({"x": np.full((1, 1), value, np.float32)}, ("output",)) for value in (1, -1)])
    assert good["output"].tolist() == [[1]]  # type: ignore[index]
    assert isinstance(bad, ServingError)
    assert (bad.code, bad.message) == (ErrorCode.INVALID_REQUEST, "x is negative")


def test_other_exception_is_a_failure_of_the_model_with_its_text(tmp_path: Path):
    instance, signature = loaded(tmp_path, "def predict(x: int) -> int:\n    return 1 // x\n")
    outcome = run_one(instance, signature, inputs={"x": np.array([0])})
    assert isinstance(outcome, ServingError)
    assert (outcome.code, outcome.message) == (ErrorCode.BACKEND_FAILED, "ZeroDivisionError: integer division or modulo by zero")


def test_returned_input_does_not_change_with_the_next_batch(tmp_path: Path):
    source = "from stoker.models import *\n@batched(max=8)\ndef predict(x: Array['n', int64]) -> Array['n', int64]:\n    return x\n"
    instance, signature = loaded(tmp_path, source)
    runner = processor(instance, signature)
    first = runner.process([Item({"x": np.array([[1]])}, ("output",)), Item({"x": np.array([[2]])}, ("output",))]).outcomes
    runner.process([Item({"x": np.array([[8]])}, ("output",)), Item({"x": np.array([[9]])}, ("output",))])
    assert [outcome["output"].tolist() for outcome in first] == [[[1]], [[2]]]  # type: ignore[index]


def test_default_value_makes_an_input_optional(tmp_path: Path):
    source = "def predict(x: int, k: int = 5, s: str | None = None) -> str:\n    return f'{x} {k} {s}'\n"
    instance, signature = loaded(tmp_path, source)
    assert [spec.optional for spec in signature.inputs] == [False, True, True]
    first = run_one(instance, signature, inputs={"x": np.array([1])})
    second = run_one(instance, signature, inputs={"x": np.array([1]), "k": np.array([2]), "s": np.array([b"t"], dtype=object)})
    assert [outcome["output"].tolist() for outcome in (first, second)] == [[b"1 5 None"], [b"1 2 t"]]  # type: ignore[index]


def test_dims_of_one_name_have_one_size_in_a_request(tmp_path: Path):
    source = """
    from stoker.models import Array, int64
    def predict(a: Array["k", int64], b: Array["k", int64]) -> Array["k", int64]:
        return a[:1] + b[:1]
    """
    instance, signature = loaded(tmp_path, source)
    wrong = run_one(instance, signature, inputs={"a": np.zeros(2, np.int64), "b": np.zeros(3, np.int64)})
    assert isinstance(wrong, ServingError)
    assert (wrong.code, wrong.message) == (ErrorCode.INVALID_REQUEST, "input 'b' has 3 as its size 'k', another input has 2")
    short = run_one(instance, signature, inputs={"a": np.zeros(2, np.int64), "b": np.zeros(2, np.int64)})
    assert text_of(short) == "predict returned 'output' of shape [1], its annotation says [k] with k = 2"


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ("int", "1.5", "predict returned 'output' as float64, its annotation says INT64"),
        ("int", "'a text'", "predict returned 'output' as text, its annotation says INT64"),
        ("int", "[1, 2]", "predict returned 'output' of shape [2], its annotation says [1]"),
        ("uint8", "300", "predict returned 'output' with a value that UINT8 does not have"),
        ("Array[2, 2, float32]", "np.zeros((2, 3))", "predict returned 'output' of shape [2, 3], its annotation says [2, 2]"),
        ("tuple[int, int]", "(1,)", "predict returned an object of class tuple, its annotation says a tuple of 2"),
        ("{'a': int}", "{}", "predict returned an object of class dict without 'a', which its annotation has"),
        ("{'a': int}", "None", "predict returned None without 'a', which its annotation has"),
    ],
)
def test_returned_value_that_contradicts_its_annotation_is_a_failure(tmp_path: Path, annotation: str, value: str, expected: str):
    source = f"import numpy as np\nfrom stoker.models import *\ndef predict(x: int) -> {annotation}:\n    return {value}\n"
    instance, signature = loaded(tmp_path, source)
    assert text_of(run_one(instance, signature, inputs={"x": np.array([1])})) == expected


def test_text_that_is_not_utf8_is_a_bad_request(tmp_path: Path):
    instance, signature = loaded(tmp_path, "def predict(x: str) -> str:\n    return x\n")
    outcome = run_one(instance, signature, inputs={"x": np.array([b"\xff"], dtype=object)})
    assert text_of(outcome) == "input 'x' holds text that is not UTF-8, at byte 0 of an element"


def test_class_gets_its_context_and_is_closed(tmp_path: Path):
    source = """
    from stoker.models import Context
    class Model:
        def __init__(self, context: Context) -> None:
            self.context = context
            self.text = (context.folder / "data.txt").read_text()
        def predict(self, x: int) -> str:
            return f"{self.text} {self.context.model_name} {self.context.parameters['k']} {x}"
        def close(self) -> None:
            (self.context.folder / "closed").touch()
    """
    signature = served(described(tmp_path, source))
    instance = load(tmp_path, source, signature, files={"data.txt": "data"}, parameters={"k": "v"})
    outcome = run_one(instance, signature, inputs={"x": np.array([3])})
    assert outcome["output"].tolist() == [b"data m v 3"]  # type: ignore[index]
    instance.close()
    assert (tmp_path / "closed").exists()


def test_class_may_do_without_a_context_and_be_batched_itself(tmp_path: Path):
    source = """
    from stoker.models import Array, batched, float32
    @batched(max=4)
    class Model:
        def predict(self, x: Array["n", 2, float32]) -> Array["n", float32]:
            return x.sum(axis=1)
    class _Helper:
        def predict(self): ...
    """
    instance, signature = loaded(tmp_path, source)
    assert signature.max_batch_size == 4
    assert run_one(instance, signature, inputs={"x": np.ones((1, 2), np.float32)})["output"].tolist() == [[2]]  # type: ignore[index]


def test_context_calls_other_models(tmp_path: Path):
    source = """
    class Model:
        def __init__(self, context):
            self.context = context
        def predict(self, x: int) -> str:
            if x:
                return " ".join(str(outputs["Y"][0]) for outputs in self.context.stream("many", X=x))
            return str(self.context.call("many", X=x)["Y"][0])
    """
    calls = FakeCalls({"many": lambda inputs: ({"Y": np.array([number])} for number in range(int(str(inputs["X"])) + 1))})
    signature = served(described(tmp_path, source))
    instance = load(tmp_path, source, signature, calls=calls)
    found = [run_one(instance, signature, inputs={"x": np.array([x])})["output"].tolist() for x in (0, 2)]  # type: ignore[index]
    assert found == [[b"0"], [b"0 1 2"]]


STREAM = """
from collections.abc import Iterator
STATE = []
def predict(text: str, times: int = 2) -> Iterator[str]:
    try:
        for index in range(times):
            yield f"{text}{index}"
    finally:
        STATE.append("closed")
"""
ASYNC_STREAM = STREAM.replace("Iterator", "AsyncIterator").replace("def predict", "async def predict")


@pytest.mark.parametrize(("source", "depth"), [(STREAM, 1), (ASYNC_STREAM, 16)])
def test_generator_responds_once_for_each_item(tmp_path: Path, source: str, depth: int):
    instance, signature = loaded(tmp_path, source)
    assert signature.is_decoupled
    assert instance.pipeline_depth == depth
    sink = Sink()
    assert run_one(instance, signature, inputs={"text": np.array([b"a"], dtype=object)}, responses=sink) == {}
    assert [response["output"].tolist() for response in sink.taken] == [[b"a0"], [b"a1"]]
    instance.close()


@pytest.mark.parametrize("source", [STREAM, ASYNC_STREAM])
def test_generator_is_closed_when_the_client_is_gone(tmp_path: Path, source: str):
    instance, signature = loaded(tmp_path, source)
    sink = Sink(most=1)
    inputs = {"text": np.array([b"a"], dtype=object), "times": np.array([1000])}
    run_one(instance, signature, inputs=inputs, responses=sink)
    assert instance._module.STATE == ["closed"]  # type: ignore[attr-defined]
    assert len(sink.taken) == 1
    instance.close()


def test_parameter_sets_the_number_of_streams(tmp_path: Path):
    signature = served(described(tmp_path, STREAM))
    assert load(tmp_path, STREAM, signature, parameters={"streams": "4"}).pipeline_depth == 4
    for wrong in ("0", "257", "x"):
        with pytest.raises(ModelLoadError, match="takes a whole number from 1 to 256"):
            load(tmp_path, STREAM, signature, parameters={"streams": wrong})


def test_async_function_is_awaited(tmp_path: Path):
    source = "import asyncio\nasync def predict(x: int) -> int:\n    await asyncio.sleep(0)\n    return x + 1\n"
    instance, signature = loaded(tmp_path, source)
    assert run_one(instance, signature, inputs={"x": np.array([1])})["output"].tolist() == [2]  # type: ignore[index]
    instance.close()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def predict(\n    x: int,\n    y,\n) -> int:\n    return 1\n", "model.py:3: predict takes 'y' with no annotation"),
        ("def predict(x: dict) -> int:\n    return 1\n", "model.py:1: predict takes 'x' with dict: expected"),
        ("def predict(x: int):\n    return 1\n", "model.py:1: predict needs the annotation of what it returns"),
        ("\ndef predict(x: int) -> complex:\n    return 1\n", "model.py:2: predict returns 'output' with complex: expected"),
        ("def predict(*x: int) -> int:\n    return 1\n", "model.py:1: predict cannot have the parameter '*x: int'"),
        ("def predict() -> int:\n    return 1\n", "model.py:1: predict needs at least one input"),
        ("def predict(x: int) -> int:\n    yield 1\n", "model.py:1: predict needs the annotation of `Iterator[...]` around what it yields"),
        (
            "from stoker.models import *\n\ndef predict(\n    x: Array[float32],\n) -> int:\n    return 1\n",
            "model.py:4: importing model.py raised TypeError: Array[...] needs dims before its element type",
        ),
        ("from stoker.models import *\n\ndef predict(x: Array['n', 8]) -> int: ...\n", "model.py:3: importing model.py raised"),
        ("from stoker.models import *\ndef predict(x: Array[0, int64]) -> int:\n    return 1\n", "is a number above 0, or a name"),
        ("from stoker.models import *\ndef predict(x: Array) -> int:\n    return 1\n", "model.py:2: 'x' needs dims and an element type"),
        (
            "from stoker.models import *\n@batched(max=4)\ndef predict(x: int) -> Array['n', int64]:\n    return 1\n",
            "model.py:3: 'x' of a @batched model must be an Array whose first dim is \"n\", the batch dimension",
        ),
        ("from stoker.models import *\n@batched(max=0)\ndef predict(x: int) -> int: ...\n", "batched: max takes a whole number from 1"),
        ("from __future__ import annotations\ndef predict(x: Nope) -> int: ...\n", "model.py:2: the annotation of 'x' cannot be read"),
        (
            "import numpy\ndef predict(x: numpy.ndarray) -> int: ...\n",
            "predict takes 'x' with numpy.ndarray: expected Array[dims, dtype], such as Array[\"n\", 4, float32], or bool",
        ),
        ("def predict(x: Array['n', 4]) -> int: ...\n", "'Array' is not defined; write `from stoker.models import Array, float32`"),
        (
            "from __future__ import annotations\nfrom stoker.models import *\ndef predict(x: Array['n', floot32]) -> int: ...\n",
            "model.py:3: the annotation of 'x' cannot be read: NameError: name 'floot32' is not defined; did you mean float32?",
        ),
        ("import stoker.model\n", "No module named 'stoker.model'; did you mean stoker.models?"),
        ("import numpy.wholly_absent\n", "package 'numpy' is installed, but has no module 'wholly_absent'"),
        ("import wholly_absent\n", "the model's interpreter has no package 'wholly_absent'"),
        ("x = 1\n", "one class with a method 'predict', or a class TritonPythonModel; found neither"),
        ("class A:\n    def predict(self): ...\nclass B:\n    def predict(self): ...\n", "found the classes A, B"),
    ],
)  # fmt: skip
def test_error_in_the_annotations_names_the_line(tmp_path: Path, source: str, expected: str):
    with pytest.raises(ModelLoadError) as caught:
        described(tmp_path, source)
    assert expected in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_all_wrong_annotations_are_reported_at_once(tmp_path: Path):
    source = "from __future__ import annotations\ndef predict(\n    x: dict,\n    y: Nope,\n    *z: int,\n) -> complex:\n    return 1\n"
    with pytest.raises(ModelLoadError) as caught:
        described(tmp_path, source)
    parts = caught.value.message.split("; model.py:")
    assert [part.removeprefix("model.py:")[:2] for part in parts] == ["4:", "3:", "5:", "6:"]
    assert [part for part in parts if "NameError: name 'Nope' is not defined" in part] == parts[:1]


def test_written_configuration_has_precedence_over_annotations(tmp_path: Path):
    written = {
        "name": "m",
        "max_batch_size": 4,
        "input": [{"name": "image", "data_type": "TYPE_FP32", "dims": [2]}],
        "sequence_batching": {},
    }
    found = described(tmp_path, DOUBLE, written)
    assert found["max_batch_size"] == 4
    assert found["input"] == written["input"]
    assert "dynamic_batching" not in found
    assert found["output"][0]["name"] == "output"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"max_batch_size": 0}, "predict is @batched, but max_batch_size is 0"),
        ({"inputs": ()}, "predict needs input 'image', which the configuration does not have"),
        ({"inputs": (TensorSpec("img", BY_CONFIG_NAME["TYPE_FP32"], (2,)),)}, "predict has no input 'img'"),
        (
            {"inputs": (TensorSpec("image", BY_CONFIG_NAME["TYPE_FP32"], (3,)),)},
            "input 'image' is FP32 [2] in the annotations, FP32 [3] in the configuration",
        ),
        ({"is_decoupled": True}, "predict yields nothing, but it is decoupled"),
    ],
)
def test_load_rejects_a_configuration_that_contradicts_the_annotations(tmp_path: Path, change: dict[str, Any], expected: str):
    signature = replace(served(described(tmp_path, DOUBLE)), **change)
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path, DOUBLE, signature)
    assert expected in caught.value.message

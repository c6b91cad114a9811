import sys
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, ErrorCode, ModelLoadError, ServingError
from tests.fakes.python_models import Item, Mark, load, processor, run, run_one, signature, text_of

DOUBLE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * 2)])
            for request in requests
        ]
"""
SERVED = signature({"X": ("FP32", [2])}, {"Y": ("FP32", [2])}, 8)


def returning(expression: str, before: str = "") -> str:
    return f"""
import numpy as np
import triton_python_backend_utils as pb_utils

def response(array, name="Y"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])

class TritonPythonModel:
    def execute(self, requests):
        {before or "pass"}
        return {expression}
"""


def items(*rows: int) -> list[Item]:
    return [Item({"X": np.full((count, 2), index + 1, np.float32)}, ("Y",), count) for index, count in enumerate(rows)]


def test_execute_gets_the_requests_of_a_batch_as_a_list_and_each_gets_its_response(tmp_path: Path):
    instance = load(tmp_path, DOUBLE, SERVED)
    result = processor(instance, SERVED).process(items(1, 3))
    assert [outcome["Y"].tolist() for outcome in result.outcomes if not isinstance(outcome, ServingError)] == [[[2, 2]], [[4, 4]] * 3]
    assert result.executions == [4]


def test_initialize_gets_its_arguments_as_text_and_finalize_is_called(tmp_path: Path):
    source = """
    import json
    from pathlib import Path
    class TritonPythonModel:
        def initialize(self, args):
            self.folder = Path(args["model_repository"])
            (self.folder / "args").write_text(json.dumps(args))
        def execute(self, requests):
            return []
        def finalize(self):
            (self.folder / "finalized").touch()
    """
    load(
        tmp_path / "1",
        source,
        SERVED,
        model_dir=tmp_path,
        config_json='{"name": "m"}',
        kind="KIND_GPU",
        device_id=3,
    ).close()
    text = (tmp_path / "args").read_text()
    assert '"model_config": "{\\"name\\": \\"m\\"}"' in text
    for expected in (
        '"model_instance_kind": "GPU"',
        '"model_instance_device_id": "3"',
        '"model_version": "1"',
        '"model_instance_name": "m_0"',
    ):
        assert expected in text
    assert (tmp_path / "finalized").exists()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("None", "execute must return a list of InferenceResponse objects, not NoneType"),
        ("[]", "execute returned 0 responses for 1 requests: it must return one for each, in order"),
        ("[7]", "execute returned int for the request instead of an InferenceResponse"),
        ("[None]", "execute returned None for the request, and took no response sender for it"),
        ("[pb_utils.InferenceResponse([])]", "the model did not return output(s) Y; it returned: none"),
        ("[response(np.zeros((1, 2), np.float32), 'Z')]", "the model returned output 'Z', which its configuration does not have: Y"),
        ("[response(np.zeros((1, 3), np.float32))]", "the model returned output 'Y' of shape [1, 3], expected [batch] and [2]"),
        ("[response(np.zeros((1, 2), np.int32))]", "the model returned output 'Y' as INT32, the configuration says FP32"),
    ],
)
def test_wrong_result_of_execute_fails_with_its_reason(tmp_path: Path, expression: str, expected: str):
    outcome = run(load(tmp_path, returning(expression), SERVED), SERVED, items(1))[0]
    assert text_of(outcome) == expected
    assert isinstance(outcome, BackendFailed)


def test_wrong_response_fails_its_own_request_only(tmp_path: Path):
    source = returning("[response(np.zeros((1, 5), np.float32)), response(np.ones((2, 2), np.float32))]")
    first, second = run(load(tmp_path, source, SERVED), SERVED, items(1, 2))
    assert "shape [1, 5]" in text_of(first)
    assert not isinstance(second, ServingError)
    assert second["Y"].tolist() == [[1, 1], [1, 1]]


def test_exception_of_execute_fails_all_requests_of_the_batch_and_they_do_not_run_again(tmp_path: Path):
    source = returning("self.calls.append(1) or 1 / 0", "self.calls = getattr(self, 'calls', [])")
    instance = load(tmp_path, source, SERVED)
    outcomes = run(instance, SERVED, items(1, 1))
    assert [text_of(outcome) for outcome in outcomes] == ["ZeroDivisionError: division by zero"] * 2
    assert outcomes[0] is outcomes[1], "the log has the failure of a batch once"
    assert len(instance._model.calls) == 1  # type: ignore[attr-defined]


def test_model_exception_reaches_the_client_as_its_text_alone(tmp_path: Path):
    source = returning("None", "raise pb_utils.TritonModelException('no weights')")
    assert text_of(run(load(tmp_path, source, SERVED), SERVED, items(1))[0]) == "no weights"


def test_system_exit_of_a_model_is_a_failure_of_its_batch(tmp_path: Path):
    source = returning("None", "raise SystemExit(3)")
    assert text_of(run(load(tmp_path, source, SERVED), SERVED, items(1))[0]) == "SystemExit: 3"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("INVALID_ARG", ErrorCode.INVALID_REQUEST),
        ("NOT_FOUND", ErrorCode.NOT_FOUND),
        ("UNAVAILABLE", ErrorCode.UNAVAILABLE),
        ("UNSUPPORTED", ErrorCode.UNSUPPORTED),
        ("ALREADY_EXISTS", ErrorCode.CONFLICT),
        ("CANCELLED", ErrorCode.CANCELLED),
        ("INTERNAL", ErrorCode.BACKEND_FAILED),
        ("UNKNOWN", ErrorCode.BACKEND_FAILED),
    ],
)
def test_code_of_an_error_response_is_kept(tmp_path: Path, code: str, expected: ErrorCode):
    source = returning(f"[pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.{code}))]")
    outcome = run(load(tmp_path, source, SERVED), SERVED, items(1))[0]
    assert isinstance(outcome, ServingError)
    assert (outcome.code, outcome.message) == (expected, "no")


def test_numbers_of_another_width_are_converted_if_no_integer_changes(tmp_path: Path):
    served = signature({"X": ("FP32", [2])}, {"Y": ("INT32", [1]), "Z": ("FP32", [1])})
    source = """
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            big = int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([7 << big])), pb_utils.Tensor("Z", np.array([0.5]))])]
    """
    instance = load(tmp_path, source, served)
    outcome = run_one(instance, served, inputs={"X": np.zeros(2, np.float32)})
    assert not isinstance(outcome, ServingError)
    assert (outcome["Y"].dtype, outcome["Y"].tolist(), outcome["Z"].dtype) == (np.int32, [7], np.float32)
    too_big = run_one(instance, served, inputs={"X": np.full(2, 40, np.float32)})
    assert text_of(too_big) == "the model returned output 'Y' as INT64, the configuration says INT32; a value does not fit"


def test_request_has_the_attributes_that_the_client_sent(tmp_path: Path):
    source = returning(
        """[response(np.array([repr((request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
            request.priority(), request.parameters(), request.requested_output_names(), request.is_cancelled()))], dtype=object))
            for request in requests]"""
    )
    served = signature({"X": ("FP32", [1])}, {"Y": ("BYTES", [1])})
    outcome = run_one(
        load(tmp_path, source, served),
        served,
        inputs={"X": np.zeros(1, np.float32)},
        request_id="r7",
        sequence=Mark(42, is_start=True, is_end=True),
        timeout_us=9,
        priority=2,
        parameters={"k": "v", "n": 3},
    )
    assert not isinstance(outcome, ServingError)
    assert outcome["Y"][0] == b"('r7', 42, 3, 9, 2, '{\"k\": \"v\", \"n\": 3}', ['Y'], False)"


def test_input_may_be_changed_in_place_although_the_message_is_read_only(tmp_path: Path):
    source = """
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            array = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
            array += 1
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])]
    """
    received = np.zeros((1, 2), np.float32)
    received.flags.writeable = False
    outcome = run_one(load(tmp_path, source, SERVED), SERVED, inputs={"X": received})
    assert not isinstance(outcome, ServingError)
    assert outcome["Y"].tolist() == [[1, 1]]
    assert received.tolist() == [[0, 0]]


def test_async_execute_runs_in_its_own_event_loop(tmp_path: Path):
    source = DOUBLE.replace("def execute", "async def execute").replace(
        "        return [", "        import asyncio; await asyncio.sleep(0)\n        return ["
    )
    instance = load(tmp_path, source, SERVED)
    outcome = run(instance, SERVED, items(2))[0]
    instance.close()
    assert not isinstance(outcome, ServingError)
    assert outcome["Y"].tolist() == [[2, 2], [2, 2]]


def test_optional_input_that_the_client_left_out_is_none(tmp_path: Path):
    source = returning("[response(np.array([float(pb_utils.get_input_tensor_by_name(requests[0], 'X') is None)], np.float32))]")
    served = signature({"X": ("FP32", [1]), "W": ("FP32", [1])}, {"Y": ("FP32", [1])})
    outcome = run_one(load(tmp_path, source, served), served, inputs={"W": np.zeros(1, np.float32)})
    assert not isinstance(outcome, ServingError)
    assert outcome["Y"].tolist() == [1]


def test_strings_arrive_as_bytes_and_text_is_returned_as_utf8(tmp_path: Path):
    served = signature({"X": ("BYTES", [-1])}, {"Y": ("BYTES", [-1])})
    source = returning("[response(np.array([x.decode() + 'é' for x in requests[0].inputs()[0].as_numpy()] + [b'raw', 5], dtype=object))]")
    outcome = run_one(load(tmp_path, source, served), served, inputs={"X": np.array([b"a"], dtype=object)})
    assert not isinstance(outcome, ServingError)
    assert outcome["Y"].tolist() == ["aé".encode(), b"raw", b"5"]


def test_sibling_modules_of_two_models_in_one_process_do_not_clash(tmp_path: Path):
    source = """
    import helper
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full((1, 2), helper.VALUE, np.float32))]) for _ in requests]
    """
    first = load(tmp_path / "a", source, SERVED, files={"helper.py": "VALUE = 1"})
    second = load(tmp_path / "b", source, SERVED, files={"helper.py": "VALUE = 2"})
    values = [run(instance, SERVED, items(1))[0]["Y"][0, 0] for instance in (first, second)]  # type: ignore[index]
    assert values == [1, 2]


def test_model_imports_its_neighbours_relatively_and_modules_of_the_models_folder(tmp_path: Path):
    source = """
    from . import helper
    from .inner.deep import DEEP
    import shared
    import numpy as np
    import triton_python_backend_utils as pb_utils
    class TritonPythonModel:
        def execute(self, requests):
            values = np.array([[helper.VALUE, DEEP + shared.VALUE]], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", values)]) for _ in requests]
    """
    found = []
    before = (list(sys.path), set(sys.modules), sys.dont_write_bytecode)
    for number, name in enumerate(("a", "b")):
        (tmp_path / name / "1" / "inner").mkdir(parents=True)
        (tmp_path / name / "1" / "inner" / "deep.py").write_text("DEEP = 10")
        (tmp_path / name / "shared.py").write_text(f"VALUE = {number}")
        instance = load(tmp_path / name / "1", source, SERVED, files={"helper.py": f"VALUE = {number}"}, model_dir=tmp_path / name)
        found.append(run(instance, SERVED, items(1))[0]["Y"].tolist())  # type: ignore[index]
        instance.close()
    assert found == [[[0, 10]], [[1, 11]]]
    assert (sys.path, sys.dont_write_bytecode) == (before[0], before[2])
    assert set(sys.modules) - before[1] <= {"triton_python_backend_utils"}
    assert not list(tmp_path.rglob("__pycache__"))


def test_each_model_has_its_own_folder_in_its_utilities(tmp_path: Path):
    source = returning("[response(np.array([pb_utils.get_model_dir()], dtype=object))]")
    served = signature({"X": ("FP32", [1])}, {"Y": ("BYTES", [1])})
    loaded = [load(tmp_path / name, source, served) for name in ("a", "b")]
    found = [run_one(instance, served, inputs={"X": np.zeros(1, np.float32)})["Y"][0] for instance in loaded]  # type: ignore[index]
    assert found == [str(tmp_path / "a").encode(), str(tmp_path / "b").encode()]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def broken(:\n", "model.py:1: syntax error: invalid syntax"),
        ("x = 1\nraise RuntimeError('no')\n", "model.py:2: importing model.py raised RuntimeError: no"),
        ("import no_such_package\n", "package 'no_such_package': name it in requirements.txt"),
        ("class TritonPythonModel:\n    pass\n", "class TritonPythonModel has no method 'execute'"),
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n        raise OSError('gone')\n    def execute(self, _): ...\n",
            "model.py:3: TritonPythonModel.initialize raised OSError: gone",
        ),
    ],
)
def test_load_of_a_broken_model_names_the_line(tmp_path: Path, source: str, expected: str):
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path, source, SERVED)
    assert expected in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_model_cannot_run_on_the_event_loop(tmp_path: Path):
    with pytest.raises(ModelLoadError, match="cannot run 'inline': write process or thread"):
        load(tmp_path, DOUBLE, SERVED, parameters={"execution": "inline"})


def test_execute_works_without_a_batch_processor_too(tmp_path: Path):
    instance = load(tmp_path, DOUBLE, SERVED)
    assert instance.execute({"X": np.ones((2, 2), np.float32)}, ["Y"])["Y"].tolist() == [[2, 2], [2, 2]]
    with pytest.raises(BackendFailed):
        load(tmp_path / "b", returning("None"), SERVED).execute({"X": np.ones((2, 2), np.float32)}, ["Y"])


def test_requests_that_run_apart_stop_after_the_first_failure(tmp_path: Path):
    source = returning("[response(requests[0].inputs()[0].as_numpy()) if requests[0].inputs()[0].as_numpy()[0, 0] < 2 else None]")
    waiting = iter(items(1, 1, 1)[1:])
    result = processor(load(tmp_path, source, SERVED), SERVED).process_apart(items(1)[0], lambda: next(waiting, None))
    assert [isinstance(outcome, ServingError) for outcome in result.outcomes] == [False, True]
    assert result.apart_ns is not None
    assert len(result.apart_ns) == 2


def test_output_of_another_number_of_rows_fails_its_request_alone(tmp_path: Path):
    source = returning("[response(np.ones((len(r.inputs()[0].as_numpy()) - i, 2), np.float32)) for i, r in enumerate(requests)]")
    first, second = run(load(tmp_path, source, SERVED), SERVED, items(2, 2))
    assert isinstance(first, dict)
    assert text_of(second) == "the model returned output 'Y' with 1 rows for a request of 2"

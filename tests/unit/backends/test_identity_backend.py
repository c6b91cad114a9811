import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.candidate import Candidate
from stoker.backends.api.errors import BackendFailed, ModelLoadError
from stoker.backends.api.model import ModelFacts, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.identity.backend import IdentityBackend, IdentityInstance
from stoker.backends.testing.samples import signature, version_files

FP32, INT32, BYTES = DataType.FP32, DataType.INT32, DataType.BYTES
PAIR = signature({"a": (FP32, (2,)), "b": (BYTES, (-1,))}, {"p": (FP32, (2,)), "q": (BYTES, (-1,))})


def request(folder: Path, parameters: Mapping[str, str] | None = None, *, served: ModelSignature = PAIR) -> LoadRequest:
    files = version_files(folder, {"model.identity": b""})
    return LoadRequest(
        model_name="unit", version=1, files=files, model_filename="model.identity", signature=served, parameters=parameters or {}
    )


def test_outputs_are_the_inputs_in_their_order(tmp_path: Path) -> None:
    instance = IdentityBackend().load(request(tmp_path))
    a, b = np.array([[1, 2]], np.float32), np.array([[b"x", b"y", b"z"]], dtype=object)
    found = instance.execute({"b": b, "a": a}, ["q", "p"])
    assert list(found) == ["q", "p"]
    assert found["p"].tolist() == a.tolist()
    assert found["q"].tolist() == b.tolist()
    assert not np.shares_memory(found["p"], a)


def test_backend_needs_no_file_and_infers_no_tensors(tmp_path: Path) -> None:
    for content, name in (({"model.identity": b"anything"}, "model.identity"), ({".gitkeep": b""}, "")):
        facts = IdentityBackend().inspect(version_files(tmp_path, content), name)
        assert (facts.inputs, facts.outputs) == (None, None)


def test_each_batch_takes_the_delay() -> None:
    slept: list[float] = []
    instance = IdentityInstance(PAIR, delay_s=0.25, sleep=slept.append)
    for _ in range(2):
        instance.execute({"a": np.zeros((3, 2), np.float32), "b": np.empty((3, 0), object)}, ["p"])
    assert slept == [0.25, 0.25]


def test_delay_is_in_milliseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    monkeypatch.setattr("stoker.backends.identity.backend.IdentityInstance", lambda served, *, delay_s, fail_on: made.append(delay_s))
    IdentityBackend().load(request(tmp_path, {"execute_delay_ms": "1.5"}))
    IdentityBackend().load(request(tmp_path))
    assert made == [0.0015, 0.0]


def test_batch_with_the_fail_value_fails(tmp_path: Path) -> None:
    instance = IdentityBackend().load(request(tmp_path, {"fail_on": "13"}))
    text = np.array([[b"13"]], dtype=object)
    with pytest.raises(BackendFailed, match="input 'a' holds 13"):
        instance.execute({"a": np.array([[1, 13]], np.float32), "b": text}, ["p"])
    assert instance.execute({"a": np.array([[1, 1]], np.float32), "b": text}, ["p"])["p"].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("served", "text"),
    [
        (signature({"a": (FP32, (2,))}, {}), "1 inputs and 0 outputs"),
        (
            signature({"a": (FP32, (2,))}, {"p": (INT32, (2,))}),
            "output 'p' is TYPE_INT32 [2], but the input of its place, 'a', is TYPE_FP32 [2]",
        ),
        (signature({"a": (FP32, (2,))}, {"p": (FP32, (3,))}), "output 'p' is TYPE_FP32 [3]"),
        (ModelSignature((TensorSpec("a", FP32, (2,), optional=True),), (TensorSpec("p", FP32, (2,)),), 8), "input 'a' is optional"),
    ],
)
def test_signature_with_different_inputs_and_outputs_is_refused(tmp_path: Path, served: ModelSignature, text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        IdentityBackend().load(request(tmp_path, served=served))
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"execute_delay_ms": "soon"}, "parameters[\"execute_delay_ms\"]: takes a number of milliseconds from 0 to 3600000, not 'soon'"),
        ({"execute_delay_ms": "-1"}, "from 0 to 3600000, not '-1'"),
        ({"execute_delay_ms": "1e99"}, "not '1e99'"),
        ({"fail_on": "nan"}, "parameters[\"fail_on\"]: takes a number, not 'nan'"),
    ],
)
def test_bad_parameter_is_refused_by_name(tmp_path: Path, parameters: dict[str, str], text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        IdentityBackend().load(request(tmp_path, parameters))
    assert text in caught.value.message


def test_checking_names_every_bad_field_without_loading() -> None:
    served = signature({"a": (FP32, (2,)), "b": (FP32, (2,))}, {"p": (INT32, (2,)), "q": (FP32, (3,))})
    candidate = Candidate(
        facts=ModelFacts(inputs=None, outputs=None), signature=served, parameters={"execute_delay_ms": "soon", "fail_on": "x"}
    )
    fields = [violation.field for violation in IdentityBackend().check(candidate)]
    assert fields == ['parameters["execute_delay_ms"]', 'parameters["fail_on"]', "output[0].data_type", "output[1].dims"]
    without_signature = dataclasses.replace(candidate, signature=None)
    assert [violation.field for violation in IdentityBackend().check(without_signature)] == fields[:2]

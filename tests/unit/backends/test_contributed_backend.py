"""The backend that CONTRIBUTING.md walks through works as the page describes."""

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.backend import Backend, LoadRequest
from stoker.backends.api.candidate import Candidate
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.conformance import check_backend, check_model
from stoker.backends.testing.samples import BackendSamples, Sample, same_in_and_out, version_files

PAGE = Path(__file__).resolve().parents[3] / "CONTRIBUTING.md"


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the page's Python blocks define: the backend, its instance, and its samples."""
    written = [textwrap.dedent(block) for block in re.findall(r"   ```python\n(.*?)   ```", PAGE.read_text(), re.DOTALL)]
    names: dict[str, Any] = {
        "SAMPLES": {}, "BackendSamples": BackendSamples, "DataType": DataType, "Sample": Sample, "same_in_and_out": same_in_and_out,
    }  # fmt: skip
    exec("\n".join(written[:3]), names)
    return names


@pytest.fixture
def backend(page: dict[str, Any]) -> Backend:
    made = page["DoubleBackend"]()
    assert isinstance(made, Backend)
    return made


def test_documented_backend_passes_the_conformance_checks(backend: Backend, page: dict[str, Any], tmp_path: Path) -> None:
    skipped = check_backend(backend, page["SAMPLES"]["double"], tmp_path)
    assert skipped["a bad request fails alone"] == "no model of the backend fails on a request"


def test_model_folder_of_the_documented_backend_passes_the_check(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "model.double").touch()
    check_model(backend, tmp_path, same_in_and_out())


def test_documented_backend_doubles_its_input(backend: Backend, tmp_path: Path) -> None:
    files = version_files(tmp_path, {"model.double": b""})
    request = LoadRequest(model_name="m", version=1, files=files, model_filename="model.double", signature=same_in_and_out())
    found = backend.load(request).execute({"x": np.array([[1, 2]], np.float32)}, ["y"])
    assert found["y"].tolist() == [[2, 4]]
    with pytest.raises(ModelLoadError, match=r"no file 'model\.double'"):
        backend.load(LoadRequest(model_name="m", version=1, files=version_files(tmp_path, {}), model_filename="model.double",
                                 signature=same_in_and_out()))  # fmt: skip


def test_documented_backend_checks_its_tensors(backend: Backend) -> None:
    candidate = Candidate(facts=ModelFacts(inputs=None, outputs=None), signature=same_in_and_out(DataType.INT64))
    assert [violation.field for violation in backend.check(candidate)] == ["input[0].data_type", "output[0].data_type"]

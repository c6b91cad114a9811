"""The conformance checks find a backend that breaks the contract."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.backend import Arrays, Instance, LoadRequest
from stoker.backends.testing.conformance import CHECKS, check_model
from stoker.backends.testing.fake_backend import FakeBackend, FakeInstance, fake_signature
from stoker.backends.testing.samples import same_in_and_out


class _Overwriting(FakeBackend):
    """Returns the same array for every batch."""

    def load(self, request: LoadRequest) -> Instance:
        kept = np.zeros((8, 2), np.float32)

        def compute(inputs: Arrays, output_names: Sequence[str]) -> Arrays:
            rows = len(inputs["x"])
            kept[:rows] = inputs["x"]
            return {"y": kept[:rows]}

        return FakeInstance(request.signature, compute=compute)


class _RowDependent(FakeBackend):
    """Adds the number of rows of the batch to each element."""

    def load(self, request: LoadRequest) -> Instance:
        return FakeInstance(request.signature, compute=lambda inputs, names: {"y": np.add(inputs["x"], np.float32(len(inputs["x"])))})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.fake").touch()
    return tmp_path


def test_model_of_a_correct_backend_passes(folder: Path) -> None:
    backend = FakeBackend()
    check_model(backend, folder, fake_signature(2))
    assert [instance.closed for instance in backend.instances] == [True]


@pytest.mark.parametrize("backend", [_Overwriting(), _RowDependent()], ids=["overwrites outputs", "depends on its batch"])
def test_model_of_a_wrong_backend_fails_and_its_instance_is_closed(backend: FakeBackend, folder: Path) -> None:
    with pytest.raises(AssertionError):
        check_model(backend, folder, same_in_and_out())


def test_every_check_has_a_descriptive_name() -> None:
    assert len(CHECKS) > 30
    assert all("_" not in name.partition(" [")[0] for name in CHECKS)

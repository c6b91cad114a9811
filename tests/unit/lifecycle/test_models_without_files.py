"""Backends that need no model file serve empty version folders, and folders that hold anything else."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.lifecycle.check import check_repository
from stoker.server.lifecycle.loader import VersionLoader, VersionSource
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.settings import LoaderSettings
from stoker.server.observability.metrics import Metrics
from tests.fakes.puppet_worker import HandTimers

IDENTITY = """backend: "identity" max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
REPEAT = """platform: "repeat" model_transaction_policy { decoupled: true }
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def load(root: Path, area: Path) -> str:
    """Loads version 1 of model `m`, and closes it; the file it was loaded from."""
    listing = ModelRepository([root]).scan().models["m"]
    assert listing.config is not None
    clock = FakeClock()
    settings = LoaderSettings(cpu_threads=1, max_queue_size=8)
    loader = VersionLoader(BackendRegistry(), clock=clock, timers=HandTimers(), recorder=Metrics(clock), area=area, settings=settings)
    part = listing.versions[1]
    source = VersionSource(name="m", version=1, model_dir=listing.directory, version_dir=part.directory, parsed=listing.config)

    async def load_and_close() -> str:
        servable = await loader.load(source)
        await servable.close()
        return servable.config.model_filename

    return asyncio.run(load_and_close())


@pytest.mark.parametrize("config", [IDENTITY, REPEAT])
@pytest.mark.parametrize("files", [[], [".gitkeep"], ["model.py", "anything.bin"]])
def test_version_folder_may_be_empty_or_contain_anything(tmp_path: Path, config: str, files: Sequence[str]) -> None:
    root, area = tmp_path / "models", tmp_path / "area"
    area.mkdir()
    version = root / "m" / "1"
    version.mkdir(parents=True)
    (root / "m" / "config.pbtxt").write_text(config)
    for name in files:
        (version / name).touch()
    assert load(root, area) == ""
    report = check_repository([root], BackendRegistry())
    assert report.is_good
    assert "default_model_filename" not in report.models[0].versions[0].suggestion

"""Loading from a folder: refusals before a device is used, and log lines."""

import asyncio
import hashlib
import logging
import os
import platform
import threading
from pathlib import Path

import pytest

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.fake_backend import FakeBackend
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.caching.response_store import LocalStore
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.config.report import ConfigError
from stoker.server.lifecycle.loader import VersionLoader, VersionSource
from stoker.server.lifecycle.settings import LoaderSettings
from stoker.server.observability.metrics import Metrics
from tests.fakes.puppet_worker import HandTimers

TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: 2 }\noutput { name: "y" data_type: TYPE_FP32 dims: 2 }\n'


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def load(
    folder: Path,
    config: str,
    registry: BackendRegistry | None = None,
    metrics: Metrics | None = None,
    *,
    complete_configs: bool = True,
    is_tuned: bool = True,
) -> list[str]:
    """Loads an identity model of that config, and closes it; the kinds of its workers."""
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.identity").touch()
    clock, timers = FakeClock(), HandTimers()
    settings = LoaderSettings(cpu_threads=1, max_queue_size=8, complete_configs=complete_configs)
    loader = VersionLoader(
        registry or BackendRegistry(),
        clock=clock,
        timers=timers,
        recorder=metrics or Metrics(clock),
        area=folder,
        settings=settings,
        is_tuned=is_tuned,
    )
    parsed = parse_pbtxt(config, source="m/config.pbtxt", model_name="m")
    source = VersionSource(name="m", version=1, model_dir=folder / "m", version_dir=version, parsed=parsed)

    async def load_and_close() -> list[str]:
        servable = await loader.load(source)
        kinds = [type(worker).__name__ for worker in servable.scheduler.workers]  # type: ignore[attr-defined]
        await servable.close()
        return kinds

    return asyncio.run(load_and_close())


def test_warning_names_its_position_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "stoker.lifecycle"):
        load(tmp_path, TENSORS + parameter("foo", "1"))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("m/config.pbtxt:3: parameters[\"foo\"]: backend 'identity' does not read it")
    assert record.getMessage().count("foo") == 1
    assert (record.model, record.version) == ("m", 1)  # type: ignore[attr-defined]


def test_refused_load_names_every_bad_parameter_and_logs_its_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = TENSORS + parameter("execute_delay_ms", "soon") + parameter("foo", "1") + parameter("fail_on", "x")
    with caplog.at_level(logging.WARNING, "stoker.lifecycle"), pytest.raises(ConfigError) as caught:
        load(tmp_path, config)
    assert caught.value.message == (
        "m/config.pbtxt:3: parameters[\"execute_delay_ms\"]: takes a number of milliseconds from 0 to 3600000, not 'soon'; "
        "m/config.pbtxt:5: parameters[\"fail_on\"]: takes a number, not 'x'"
    )
    assert ["foo" in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [True]


def test_configuration_must_be_complete_if_completion_is_disabled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "open", "max_batch_size: 2", complete_configs=False)
    expected = "must be written: --disable-auto-complete-config completes nothing from the model file"
    assert [part.split(": ", 1)[1] for part in caught.value.message.split("; ")] == [
        f"{field}: {expected}" for field in ("backend", "input", "output")
    ]
    assert load(tmp_path / "whole", 'backend: "identity"\n' + TENSORS, complete_configs=False)


def test_warm_up_time_is_recorded_if_there_is_a_warm_up(tmp_path: Path) -> None:
    sample = 'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }\n'
    for folder, config, count in ((tmp_path / "warm", TENSORS + sample, 1), (tmp_path / "cold", TENSORS, 0)):
        metrics = Metrics(FakeClock())
        folder.mkdir()
        load(folder, config, metrics=metrics)
        warmed = b':tensorflow:serving:model_warmup_latency_count{model_path="m/1",status="OK"} 1\n'
        assert metrics.render_serving().count(warmed) == count


@pytest.mark.slow
def test_worker_process_runs_the_warm_up_samples_when_it_starts(tmp_path: Path) -> None:
    sample = 'model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }\n'
    config = TENSORS + sample + parameter("execution", "process")
    metrics = Metrics(FakeClock())
    (tmp_path / "good").mkdir()
    assert load(tmp_path / "good", config, metrics=metrics) == ["ProcessWorker"]
    assert b':tensorflow:serving:model_warmup_latency_count{model_path="m/1",status="OK"} 1\n' in metrics.render_serving()
    (tmp_path / "bad").mkdir()
    with pytest.raises(ModelLoadError, match="model_warmup 'w' failed: "):
        load(tmp_path / "bad", config + parameter("fail_on", "0"))


class Cards(FakeBackend):
    """Of devices 0 and 3."""

    default_model_filename = "model.identity"
    instance_kinds = ("KIND_GPU", "KIND_CPU")

    def device_ids(self) -> tuple[int, ...]:
        return (0, 3)


def test_instances_are_created_for_each_device_of_their_group(tmp_path: Path) -> None:
    backend = Cards()
    groups = 'instance_group [ { name: "all" count: 2 }, { name: "one" gpus: 3 }, { name: "any" kind: KIND_CPU } ]'
    load(tmp_path, TENSORS + groups, BackendRegistry((backend,)))
    assert [(each.instance_name, each.device_id, each.siblings) for each in backend.requests] == [
        ("all_0", 0, 2),
        ("all_1", 0, 2),
        ("all_2", 3, 3),
        ("all_3", 3, 3),
        ("one_0", 3, 3),
        ("any_0", None, 1),
    ]


@pytest.mark.parametrize(
    ("parameters", "worker"),
    [
        ({}, "AutoWorker"),
        ({"execution": "auto"}, "AutoWorker"),
        ({"execution": "auto", "execute_delay_ms": "1"}, "ThreadWorker"),
        ({"execution": "thread"}, "ThreadWorker"),
        ({"nice": "0"}, "AutoWorker"),
        ({"nice": "5"}, "ThreadWorker"),
        ({"execution": "inline"}, "InlineWorker"),
    ],
)
def test_execution_setting_selects_loop_or_thread_and_waiting_models_use_a_thread(
    tmp_path: Path, parameters: dict[str, str], worker: str
) -> None:
    assert load(tmp_path, TENSORS + "".join(parameter(key, value) for key, value in parameters.items())) == [worker]


def test_quick_model_without_tuning_runs_in_its_thread(tmp_path: Path) -> None:
    assert load(tmp_path, TENSORS, is_tuned=False) == ["ThreadWorker"]


@pytest.mark.skipif(platform.system() != "Linux", reason="threads have nice values of their own on Linux only")
def test_threads_started_by_the_load_of_a_nice_model_have_its_niceness(tmp_path: Path) -> None:
    class Niceness(Cards):
        def load(self, request: LoadRequest) -> Instance:
            thread = threading.Thread(target=lambda: values.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
            thread.start()
            thread.join()
            return super().load(request)

    values: list[int] = []
    here = os.getpriority(os.PRIO_PROCESS, 0)
    load(tmp_path, TENSORS + parameter("nice", "5"), BackendRegistry((Niceness(),)))
    assert set(values) == {min(19, here + 5)}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == here


def test_only_a_shared_cache_keeps_the_responses_of_the_same_files_and_configuration(tmp_path: Path) -> None:
    store = LocalStore(1000)
    keys: dict[str, list[bytes]] = {}

    def key_of(content: bytes, config: str, *, is_shared: bool) -> bytes:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        version = folder / "m" / "1"
        version.mkdir(parents=True)
        (version / "model.identity").write_bytes(content)
        clock = FakeClock()
        store.is_shared = is_shared
        loader = VersionLoader(
            BackendRegistry(),
            clock=clock,
            timers=HandTimers(),
            recorder=Metrics(clock),
            area=folder,
            settings=LoaderSettings(cpu_threads=1, max_queue_size=8),
            responses=store,
        )
        parsed = parse_pbtxt(config, source="m/config.pbtxt", model_name="m")

        async def identity() -> bytes:
            servable = await loader.load(VersionSource(name="m", version=1, model_dir=folder / "m", version_dir=version, parsed=parsed))
            found: bytes = servable.scheduler._identity_now()  # type: ignore[attr-defined]
            await servable.close()
            return found

        return asyncio.run(identity())

    cached = TENSORS + "response_cache { enable: true }\n"
    other = cached + parameter("execute_delay_ms", "1")
    keys["shared"] = [key_of(b"a", cached, is_shared=True) for _ in range(2)]
    keys["changed"] = [key_of(b"b", cached, is_shared=True), key_of(b"a", other, is_shared=True)]
    keys["local"] = [key_of(b"a", cached, is_shared=False) for _ in range(2)]
    assert keys["shared"][0] == keys["shared"][1]
    assert len({keys["shared"][0], *keys["changed"], *keys["local"]}) == 5


def agent(**files: bytes) -> str:
    """The checksum agent with the MD5 or SHA256 of the content of each file."""
    entries = []
    for name, content in files.items():
        algorithm, _, path = name.partition(":")
        digest = hashlib.new(algorithm.lower(), content).hexdigest().upper()
        entries.append(f'parameters {{ key: "{algorithm}:{path}" value: "{digest}" }}')
    return f'model_repository_agents {{ agents {{ name: "checksum" {" ".join(entries)} }} }}\n'


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"MD5:1/model.identity": b""}, None),
        ({"SHA256:1/model.identity": b"", "MD5:2/model.identity": b"of another version"}, None),
        ({"MD5:1/model.identity": b"other"}, "MD5:1/model.identity: the checksum of the file is d41d8cd98f00b204e9800998ecf8427e"),
        ({"MD5:1/missing": b""}, "version folder has no file 'missing'"),
        ({"MD5:labels.txt": b""}, "MD5:labels.txt"),
    ],
)
def test_version_loads_only_if_its_files_have_the_checksums_of_the_configuration(
    tmp_path: Path, files: dict[str, bytes], error: str | None
) -> None:
    if error is None:
        assert load(tmp_path, TENSORS + agent(**files))
        return
    with pytest.raises(ServingError) as caught:
        load(tmp_path, TENSORS + agent(**files))
    assert error in caught.value.message

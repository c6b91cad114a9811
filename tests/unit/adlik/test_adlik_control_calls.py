"""getModelMeta, tasks, server status and the services' surroundings over gRPC."""

import dataclasses

import grpc
import pytest
from grpc_health.v1 import health_pb2

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.model_config import AllVersions, DynamicBatching, InstanceGroup, LatestVersions, NoVersions, SpecificVersions
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.pb.adlik import model_pb2, operate_pb2, predict_pb2
from stoker.server.protocols.adlik.service import config_message, version_states
from tests.fakes.adlik_calls import SERVICES, Caller, run
from tests.fakes.both_transports import transport  # noqa: F401 - a fixture
from tests.fakes.fake_engine import FakeEngine, model, signature, simple

Code = grpc.StatusCode


def meta(name: str, version: int | None = None) -> predict_pb2.GetModelMetaRequest:
    request = predict_pb2.GetModelMetaRequest()
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    return request


def test_metadata_contains_the_configuration_and_version_states():
    found = simple()
    found.versions = (1, 4)

    async def scenario(caller: Caller) -> None:
        response = await caller.call("getModelMeta", meta("simple"))
        assert response.model_spec.version.value == 0
        assert [(each.name, each.data_type, list(each.dims)) for each in response.config.input] == [
            ("INPUT0", 3, [16]),
            ("INPUT1", 3, [16]),
        ]
        assert {version: status.ready_state for version, status in response.version_status.items()} == {1: 1, 4: 1}
        response = await caller.call("getModelMeta", meta("simple", 4))
        assert (response.model_spec.version.value, list(response.version_status)) == (4, [4])

    run(scenario, FakeEngine(found), http=False)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (meta("ghost"), Code.NOT_FOUND, "ghost"),
        (meta("simple", 9), Code.NOT_FOUND, "no version 9"),
        (meta("never"), Code.NOT_FOUND, "never"),
        (meta("simple", -1), Code.INVALID_ARGUMENT, "-1"),
        (meta(""), Code.INVALID_ARGUMENT, "name is missing"),
        (meta("x" * 300), Code.INVALID_ARGUMENT, "300 characters"),
    ],
)
def test_metadata_of_an_unknown_model_or_version_is_an_error(request_, code, text):
    async def scenario(caller: Caller) -> None:
        found, message = await caller.rejection("getModelMeta", request_)
        assert found is code, message
        assert text in message

    run(scenario, FakeEngine(simple()), http=False)


def test_metadata_of_an_unserved_model_reports_its_state():
    found = simple()
    engine = FakeEngine(found)
    found.is_ready = False
    engine.index = lambda **_: [IndexEntry("simple", 1, VersionState.LOADING)]  # type: ignore[method-assign]

    async def scenario(caller: Caller) -> None:
        code, text = await caller.rejection("getModelMeta", meta("simple"))
        assert code is Code.UNAVAILABLE
        assert "not ready" in text

    run(scenario, engine, http=False)


def test_complete_configuration_has_adliks_form():
    of = signature([TensorSpec("x", DataType.FP16, (3, -1))], [TensorSpec("y", DataType.BF16, (5,))], 4)
    config = dataclasses.replace(
        model("m", of, lambda inputs: inputs).config,
        platform="topsinference",
        version_policy=SpecificVersions((2, 5)),
        parameters={"platform_version": "1.2", "algorithm": "a"},
        label_files={"y": "labels.txt"},
        instance_groups=(InstanceGroup(name="g", count=2, kind="KIND_GPU", gpus=(0, 1)),),
        dynamic_batching=DynamicBatching(preferred_batch_sizes=(2, 4), max_queue_delay_us=7),
        max_enqueued_requests=40,
    )
    from stoker.server.core.state import ModelDescription

    message = config_message(ModelDescription(config, 2, (2,)))
    assert (message.platform, message.platform_version, message.algorithm) == ("topsinference", "1.2", "a")
    assert list(message.version_policy.specific.versions) == [2, 5]
    assert (message.input[0].data_type, list(message.input[0].dims)) == (19, [3, -1])
    assert (message.output[0].data_type, message.output[0].label_filename) == (14, "labels.txt")
    group = message.instance_group[0]
    assert (group.name, group.count, list(group.gpus), group.kind) == ("g", 2, [0, 1], model_pb2.ModelInstanceGroup.KIND_GPU)
    batching = message.dynamic_batching
    assert (list(batching.preferred_batch_size), batching.max_queue_delay_microseconds, batching.max_enqueued_batches) == ([2, 4], 7, 10)
    for policy, name in ((LatestVersions(3), "latest"), (AllVersions(), "all"), (NoVersions(), "none")):
        described = ModelDescription(dataclasses.replace(config, version_policy=policy), 2, (2,))
        assert config_message(described).version_policy.WhichOneof("policy_choice") == name


def test_every_state_has_a_name_and_numbers_beyond_32_bits_are_omitted():
    entries = [IndexEntry("m", number, state) for number, state in enumerate(VersionState, 1)]
    entries += [IndexEntry("m", 1 << 33, VersionState.READY), IndexEntry("m", None, None)]
    states = {version: status.ready_state for version, status in version_states(entries, None).items()}
    names = [model_pb2.ModelReadyState.Name(states[number]) for number in range(1, len(VersionState) + 1)]
    assert names == ["MODEL_LOADING", "MODEL_LOADING", "MODEL_READY", "MODEL_UNLOADING", "MODEL_UNAVAILABLE", "MODEL_UNAVAILABLE"]
    assert len(states) == len(VersionState)


def test_server_status_has_no_tasks_and_refuses_operations():
    async def scenario(caller: Caller) -> None:
        assert (await caller.call("serverStatus", operate_pb2.ServerStatusRequest())).status == "running"
        code, text = await caller.rejection("create", operate_pb2.CreateTaskRequest())
        assert code is Code.UNIMPLEMENTED
        assert "use predict" in text
        for method in SERVICES["ModelOperateService"].methods:
            response = await caller.call(method.name, operate_pb2.ModelOperateRequest(model_name="simple"))
            assert response.status == "ERROR"
            assert "--allow_model_operate" in response.error_message

    run(scenario, FakeEngine(simple()), http=False)


def test_control_requests_are_bounded():
    async def scenario(caller: Caller) -> None:
        code, text = await caller.rejection("addModel", operate_pb2.ModelOperateRequest(path="x" * 5000))
        assert code is Code.RESOURCE_EXHAUSTED
        assert "of 5003 bytes" in text
        assert "exceeds the limit of 4096 bytes" in text

    run(scenario, FakeEngine(simple()), Limits(control_bytes=4096), http=False)


def test_health_reports_each_service():
    async def scenario(caller: Caller) -> None:
        check = caller.channel.unary_unary(
            "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString
        )
        for service in SERVICES.values():
            assert (await check(health_pb2.HealthCheckRequest(service=service.full_name))).status == 1

    run(scenario, FakeEngine(simple()), http=False)

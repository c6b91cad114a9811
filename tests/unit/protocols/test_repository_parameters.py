"""Parameters of load and unload requests over gRPC, and Triton's error texts."""

import asyncio
from typing import Any

import pytest

from stoker.backends.api.errors import InvalidRequest
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.service import KServeService
from tests.fakes.fake_engine import FakeEngine, simple


def act(kind: str, **parameters: Any) -> FakeEngine:
    engine = FakeEngine(simple())
    service = KServeService(engine, Limits())
    request: Any = pb.RepositoryModelLoadRequest if kind == "load" else pb.RepositoryModelUnloadRequest
    message = request(model_name="simple")
    for name, (field, value) in parameters.items():
        setattr(message.parameters[name.replace("__", ":")], field, value)
    run: Any = service.repository_model_load if kind == "load" else service.repository_model_unload
    asyncio.run(run(message, None))
    return engine


@pytest.mark.parametrize(
    ("kind", "parameters", "text"),
    [
        ("load", {"config": ("int64_param", 1)}, "invalid value type for load parameter 'config', expected string_param."),
        ("load", {"file__1": ("string_param", "x")}, "invalid value type for load parameter 'file:1', expected bytes_param."),
        ("load", {"speed": ("int64_param", 1)}, "unrecognized load parameter 'speed'"),
        (
            "unload",
            {"unload_dependents": ("string_param", "x")},
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
    ],
)
def test_values_of_another_type_are_refused_with_tritons_text(kind: str, parameters: dict[str, Any], text: str):
    with pytest.raises(InvalidRequest) as refused:
        act(kind, **parameters)
    assert text in refused.value.message


def test_unload_dependents_reaches_the_engine():
    assert act("unload").unloads == [("simple", False)]
    assert act("unload", unload_dependents=("bool_param", True)).unloads == [("simple", True)]

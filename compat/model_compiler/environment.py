"""A compile request in environment variables: the names of the fields in upper case, and one variable for each kind of source."""

from collections.abc import Mapping
from dataclasses import fields

from model_compiler.request import NO_EFFECT, REPORTING, CompileRequest
from stoker.compiler.errors import OptionError

#: Variables that name the source, with what it comes from; in Adlik's order.
_SOURCES: Mapping[str, str | None] = {
    "SAVED_MODEL_PATH": "tensorflow",
    "FROZEN_GRAPH_PATH": "tensorflow",
    "ONNX_PATH": "onnx",
    "TORCH_PATH": "torch",
}
#: Sources of Adlik's that nothing here reads.
_UNREAD = ("H5_PATH", "CHECKPOINT_PATH", "CAFFE_PATH", "MXNET_PATH", "PADDLE_PADDLE_PATH", "PADDLE_PATH", "ONEFLOW_PATH", "OPENVINO_PATH")


def request_fields(environment: Mapping[str, str]) -> dict[str, str]:
    """The fields of a request that `environment` sets; empty variables count as not set.

    Raises:
        OptionError: it names several sources, or one that cannot be read.
    """
    own = {field.name for field in fields(CompileRequest)} - {"input_model"}
    names = (*sorted(own), *NO_EFFECT, *REPORTING)
    found = {name: environment[name.upper()] for name in names if environment.get(name.upper())}
    sources = [name for name in ("INPUT_MODEL", *_SOURCES) if environment.get(name)]
    if len(sources) > 1:
        raise OptionError(f"{' and '.join(sources)} are set: give one source")
    for name in _UNREAD:
        if environment.get(name) and not sources:
            raise OptionError(f"{name}: no such source can be read here; those that can: {', '.join(_SOURCES)}")
    for name in sources:
        found["input_model"] = environment[name]
        framework = _SOURCES.get(name)
        if framework is not None:
            found["framework"] = framework
    return found

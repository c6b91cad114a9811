"""`model_transaction_policy.decoupled`: what else the configuration may then say, and which backends offer it."""

from stoker.backends.api.backend import Backend
from stoker.server.config.report import Report
from stoker.server.core.model_config import Execution
from stoker.server.pb import model_config_pb2 as pb


def check_decoupled(config: pb.ModelConfig, backend: Backend, report: Report) -> None:
    """Notes what contradicts a decoupled model, where `config` is one."""
    if not config.model_transaction_policy.decoupled:
        return
    if not backend.streams:
        report.error("model_transaction_policy.decoupled", f"backend '{backend.name}' answers every request exactly once")
    if "execution" in config.parameters and config.parameters["execution"].string_value == Execution.INLINE.value:
        report.error('parameters["execution"]', "a decoupled model answers from threads of its own: 'inline' is not possible")
    if config.HasField("dynamic_batching"):
        report.warn("dynamic_batching", "joins no requests of a decoupled model: each is a stream of its own; its queue settings hold")

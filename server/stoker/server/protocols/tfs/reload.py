"""The list of models in a HandleReloadConfigRequest."""

from stoker.backends.api.errors import InvalidRequest
from stoker.server.config.report import ConfigError, Report
from stoker.server.config.serving_files import list_of
from stoker.server.core.model_config import ListedModel
from stoker.server.pb.tensorflow_serving.apis import model_management_pb2


def read_reload(request: model_management_pb2.ReloadConfigRequest) -> tuple[ListedModel, ...]:
    """The models that are to be served, and no others.

    Raises:
        InvalidRequest: there is no list, or something is wrong with it.
    """
    if not request.config.HasField("model_config_list"):
        raise InvalidRequest("ServerCore could not find model_config_list in the config")
    report = Report("ReloadConfigRequest", {}, first_line=None)
    models = list_of(request.config, report, None)
    try:
        report.raise_if_any()
    except ConfigError as error:
        raise InvalidRequest(error.message) from None
    return models

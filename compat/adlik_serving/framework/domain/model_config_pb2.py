"""Messages of a model's configuration."""

from stoker_client._pb.adlik_messages import (
    DataType,
    ModelConfigProto,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
)

__all__ = ["DataType", "ModelConfigProto", "ModelDynamicBatching", "ModelInput", "ModelInstanceGroup", "ModelOutput"]

"""What the OpenAPI page says of the bodies of `settings_routes.py`. Documentation only."""

from pydantic import BaseModel, Field


class SystemRegion(BaseModel):
    """A registered region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegion(BaseModel):
    """A registered region of GPU memory: there is none on a server without a GPU."""

    name: str
    device_id: int
    byte_size: int


class RegisterSystemBody(BaseModel):
    """A part of a POSIX shared memory object."""

    key: str = Field(examples=["/input_data"], description="The name of the object, as shm_open takes it")
    offset: int = Field(0, ge=0, description="Where the region begins in the object, in bytes")
    byte_size: int = Field(ge=1)


class RegisterCudaBody(BaseModel):
    """A part of a GPU's memory."""

    raw_handle: dict[str, str]
    device_id: int
    byte_size: int


class TraceSettings(BaseModel):
    """Trace settings; what is left out stays, null goes back to the server-wide value. `trace_file` cannot be changed."""

    trace_file: str | None = None
    trace_level: list[str] | None = Field(None, examples=[["TIMESTAMPS"]], description="OFF, or TIMESTAMPS and TENSORS")
    trace_rate: str | None = Field(None, examples=["1000"])
    trace_count: str | None = Field(None, examples=["-1"])
    log_frequency: str | None = Field(None, examples=["0"])
    trace_mode: str | None = Field(None, examples=["triton"])


class LogSettings(BaseModel):
    """Log settings; what is left out stays. `log_file` cannot be changed."""

    log_file: str | None = None
    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: int | None = Field(None, ge=0)
    log_format: str | None = Field(None, examples=["default"])

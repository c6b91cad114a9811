"""What an operator allows of Triton's extensions; dangerous things are off by default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KServeSettings:
    """Settings of KServe v2's extensions.

    Attributes:
        allow_client_shm: Whether clients may pass tensors in shared memory of this host.
    """

    allow_client_shm: bool = False

"""A runtime for simulated Enflame cards: devices, streams, buffers and engines.

with process_system().acquire(card=0, clusters=-1) as device:
    engine, stream = device.load("model.exec"), device.create_stream()
    ...

`backends.gcu.runtime.topsinference` offers the same under the names of the vendor's Python module.
"""

from backends.gcu.runtime.card import Card
from backends.gcu.runtime.device import Device
from backends.gcu.runtime.device_buffer import DeviceBuffer
from backends.gcu.runtime.engine import Engine
from backends.gcu.runtime.errors import DeviceFailed, OutOfDeviceMemory, Status, StatusError, StreamClosed, StreamTimeout
from backends.gcu.runtime.figures import CardFigures, CopyFigures, Direction
from backends.gcu.runtime.stream import Stream
from backends.gcu.runtime.system import GcuSystem, process_system

__all__ = [
    "Card",
    "CardFigures",
    "CopyFigures",
    "Device",
    "DeviceBuffer",
    "DeviceFailed",
    "Direction",
    "Engine",
    "GcuSystem",
    "OutOfDeviceMemory",
    "Status",
    "StatusError",
    "Stream",
    "StreamClosed",
    "StreamTimeout",
    "process_system",
]

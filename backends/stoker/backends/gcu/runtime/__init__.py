"""A runtime for simulated Enflame cards: devices, streams, buffers and engines.

with process_system().acquire(card=0, clusters=-1) as device:
    engine, stream = device.load("model.exec"), device.create_stream()
    ...

The package `TopsInference` of `compat/` offers the same functions under the names of the vendor's Python module.
"""

from stoker.backends.gcu.runtime.card import Card, CardFigures, CopyFigures, Direction
from stoker.backends.gcu.runtime.device import Device
from stoker.backends.gcu.runtime.device_buffer import DeviceBuffer
from stoker.backends.gcu.runtime.engine import Engine
from stoker.backends.gcu.runtime.errors import DeviceFailed, OutOfDeviceMemory, Status, StatusError, StreamClosed, StreamTimeout
from stoker.backends.gcu.runtime.stream import Stream
from stoker.backends.gcu.runtime.system import GcuSystem, process_system

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

"""ONNX and OpenVINO IR files on CPU, by OpenVINO: the `openvino` extra.

Importing the package `openvino` starts a thread that reports the import to a web analytics service, unless the package that sends it is
missing. A model server sends no telemetry, so this package hides that one before any module of it imports OpenVINO.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # None makes `import` fail as if the module did not exist

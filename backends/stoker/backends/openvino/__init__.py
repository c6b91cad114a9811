"""ONNX and OpenVINO IR files on CPU, by OpenVINO: the `openvino` extra.

Importing the package `openvino` starts a thread that reports the import to a web analytics service, unless the package that sends it is
missing. A model server does not talk to strangers, so that one is hidden from it here, before anything in this room imports OpenVINO.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # None is how `import` is told that there is no such module

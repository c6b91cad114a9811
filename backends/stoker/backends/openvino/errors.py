"""What OpenVINO's Python interface raises for what is wrong with a model or a run."""

#: All of its own errors come as RuntimeError; where the text of one holds a name that is not UTF-8, making a `str` of it fails instead.
OPENVINO_ERRORS = (RuntimeError, UnicodeDecodeError)

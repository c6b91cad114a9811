"""Models written in Python: Triton's `TritonPythonModel` interface, and a lighter form with typed functions.

Everything here but `environment`, `env_archive` and `requirements` runs in a model's own interpreter as well: Python 3.10, numpy and the
standard library only.
"""

"""Measures the server and what bounds it: raw onnxruntime below, bare gRPC and ASGI echoes beside it, in one run on one machine.

    python -m benchmarks            # a few minutes
    python -m benchmarks --quick    # a smoke test, about two minutes

    servers --ServerUnderTest--> load (h2load, or the generator of `stoker bench`) --Window--> floors, comparison --> tables

Servers (`serve` of a checkout, an external command, an `echo`) and raw onnxruntime (`raw_engine`) run in processes of their own, so that
their CPU time can be read apart from the generator's. Ratios of figures that were measured next to each other count; `floors` compares them
with the project's promises, `comparison` with another version.
"""

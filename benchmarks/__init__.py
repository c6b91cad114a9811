"""Measures the server between two bounds: raw onnxruntime, and bare gRPC and ASGI echoes, in one run on one machine.

    python -m benchmarks            # a few minutes
    python -m benchmarks --quick    # a smoke test, about two minutes

    servers --ServerUnderTest--> load (h2load, or the generator of `stoker bench`) --Window--> floors, comparison --> tables

Servers (`serve` of a checkout, an external command, an `echo`) and raw onnxruntime (`raw_engine`) run in separate processes, so that their
CPU time is measured without the generator's. Only ratios of figures measured next to each other are used; `floors` compares them with the
project's targets, `comparison` with another version.
"""

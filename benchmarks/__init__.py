"""Measures the server beside what bounds it: raw onnxruntime below, a bare gRPC and a bare ASGI echo beside, in one run on one machine.

    python -m benchmarks            # a few minutes
    python -m benchmarks --quick    # a smoke test, under a minute and a half

Everything measured runs in a child process of its own, so that CPU time can be separated: the server (`serve`), the echoes
(`echo_grpc`, `echo_asgi`), raw onnxruntime (`raw_engine`) and the load generator (`load`). What counts is ratios of figures taken next to
each other; `floors` holds them against what the project promises.
"""

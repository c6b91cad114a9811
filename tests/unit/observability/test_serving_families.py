"""TensorFlow Serving's names for the server's figures."""

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.recorder import FailureReason


def test_metrics_have_tensorflow_servings_names_by_model():
    metrics = Metrics(FakeClock(), release="1")
    for version, times_us in ((1, (17, 18)), (2, (19,))):
        recorder = metrics.version("m", version, {})
        for time_us in times_us:
            recorder.succeeded(rows=[2], request_ns=[time_us * 1000], queue_ns=[0], input_ns=1000, infer_ns=1000, output_ns=0)
            recorder.executed([2], input_ns=1000, infer_ns=1000, output_ns=0)
    metrics.version("m", 1, {}).failed(FailureReason.REJECTED, request_ns=5)
    metrics.loaded("m", 1, seconds=0.25)
    metrics.warmed("m", 2, duration_ns=10_000)
    lines = metrics.render_serving().decode().splitlines()
    latency = ':tensorflow:serving:request_latency_bucket{API="Predict",entrypoint="any",le="%s",model_name="m",status="OK"} %d'
    for line in (
        '# TYPE :tensorflow:serving:request_count counter',
        ':tensorflow:serving:request_count{model_name="m",status="OK"} 3',
        ':tensorflow:serving:request_count{model_name="m",status="UNAVAILABLE"} 1',
        "# TYPE :tensorflow:serving:request_latency histogram",
        latency % ("10", 0),
        latency % ("18", 2),
        latency % ("32.4", 3),
        latency % ("+Inf", 3),
        ':tensorflow:serving:request_latency_sum{API="Predict",entrypoint="any",model_name="m",status="OK"} 54',
        ':tensorflow:serving:batching_session:queuing_latency_bucket{le="100",thread_pool_name="m"} 3',
        ":tensorflow:serving:batching_session:wrapped_run_count 3",
        ':tensorflow:serving:request_example_count_total{model="m"} 6',
        ':tensorflow:serving:runtime_latency_count{API="Predict",model_name="m",runtime="backend"} 3',
        ':tensorflow:cc:saved_model:load_latency{model_path="m/1"} 250000',
        ':tensorflow:serving:model_warmup_latency_bucket{le="10",model_path="m/2",status="OK"} 1',
    ):  # fmt: skip
        assert line in lines
    assert sum(line.startswith(":tensorflow:serving:request_latency_bucket") for line in lines) == 34
    assert sum(line.startswith(":tensorflow:serving:batching_session:queuing_latency_bucket") for line in lines) == 53


def test_both_families_have_the_same_count():
    metrics = Metrics(FakeClock(), release="1")
    recorder = metrics.version("m", 1, {})
    for exponent in range(20):
        recorder.succeeded(rows=[1], request_ns=[3**exponent * 1000], queue_ns=[3**exponent], input_ns=0, infer_ns=3**exponent, output_ns=0)
    for text in (metrics.render().decode(), metrics.render_serving().decode()):
        assert " 20\n" in text
        assert 'le="+Inf"' in text

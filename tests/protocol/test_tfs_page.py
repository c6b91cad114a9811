"""The commands of docs/tfs.md, run as they are written, in order, on ports of the test's own."""

from pathlib import Path

from tests.fakes.documentation_page import commands, run_page


def test_every_example_runs(tmp_path: Path):
    printed = run_page("tfs.md", at=tmp_path, links=["model_repos"], languages=["sh", "sh"], environment=commands(tmp_path / "bin"))
    assert '"state":"AVAILABLE"' in printed
    assert '{"predictions":[[' in printed
    assert '{"outputs":[[' in printed
    assert '{"results":[[["",' in printed
    assert '"method_name":"tensorflow/serving/predict"' in printed
    assert ':tensorflow:serving:request_count{model_name="mnist",status="OK"} 3' in printed

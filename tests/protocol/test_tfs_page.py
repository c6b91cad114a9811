"""The commands of docs/tfs.md, run as they are written, in order, on ports of the test's own."""

import os
import sys
from pathlib import Path

from tests.fakes.documentation_page import run_page


def test_every_example_runs(tmp_path: Path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "serve").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stoker.server.main "$@"\n')
    (folder / "serve").chmod(0o755)
    path = os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))
    printed = run_page("tfs.md", at=tmp_path, links=["model_repos"], languages=["sh", "sh"], environment={"PATH": path})
    assert '"state":"AVAILABLE"' in printed
    assert '{"predictions":[[' in printed
    assert '{"outputs":[[' in printed
    assert '{"results":[[["",' in printed
    assert '"method_name":"tensorflow/serving/predict"' in printed
    assert ':tensorflow:serving:request_count{model_name="mnist",status="OK"} 3' in printed

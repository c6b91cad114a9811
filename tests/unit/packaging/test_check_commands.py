"""`scripts/check` and `.pre-commit-config.yaml` run the same static checks."""

import re

import yaml

from tests.fakes.server_process import REPOSITORY_ROOT


def test_pre_commit_runs_the_static_checks_of_the_script():
    script = (REPOSITORY_ROOT / "scripts" / "check").read_text()
    static = script.partition("!= --no-tests")[0]
    commands = [line.replace("$bin", ".venv/bin") for line in re.findall(r"(?m)^run (.+)$", static)]
    config = yaml.safe_load((REPOSITORY_ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    assert len(commands) >= 6
    assert hooks == commands

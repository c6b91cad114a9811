"""The page's table of calls equals the script's output for the server's tables."""

import subprocess
import sys
from types import ModuleType

import pytest

from tests.fakes.project_scripts import project_script
from tests.fakes.server_process import REPOSITORY_ROOT

SCRIPT = REPOSITORY_ROOT / "scripts" / "protocol_table"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return project_script("protocol_table")


@pytest.mark.slow
def test_page_is_up_to_date():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_rpc_and_route_is_a_row(script: ModuleType):
    page = (REPOSITORY_ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    missing = [call for call in (*script.rpcs(), *script.routes()) if f"| `{call}` | " not in page]
    assert not missing, f"run scripts/protocol_table, which adds {', '.join(missing)}"


def test_optional_parts_of_paths_are_bracketed_in_position(script: ModuleType):
    paths = [
        "GET /a",
        "GET /a/versions/{version}",
        "GET /a/labels/{label}",
        "GET /a/x",
        "GET /a/versions/{version}/x",
        "GET /b/region/{region}/y",
    ]
    assert script.merged(paths) == [
        "GET /a[/versions/{version}][/labels/{label}]",
        "GET /a[/versions/{version}]/x",
        "GET /b/region/{region}/y",
    ]


@pytest.mark.parametrize(
    ("notes", "fragment"),
    [
        ({"note": [{"calls": ["no.Such/Call"], "support": "differs", "text": ""}], "absent": []}, "no.Such/Call"),
        ({"note": [], "absent": [{"calls": ["inference.GRPCInferenceService/ModelInfer"], "text": ""}]}, "ModelInfer"),
        ({"note": [{"calls": ["GET /v2"], "support": "maybe", "text": ""}], "absent": []}, "support = 'maybe'"),
    ],
)
def test_notes_of_otherwise_served_calls_are_refused(script: ModuleType, notes: dict[str, object], fragment: str):
    with pytest.raises(SystemExit, match=fragment):
        list(script.rows(notes))

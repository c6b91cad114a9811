"""The examples of the transports' documentation run as they are printed."""

import ast
import doctest

import pytest

from stoker.server.net.http2 import streams
from tests.fakes.server_process import REPOSITORY_ROOT

NET = REPOSITORY_ROOT / "server" / "stoker" / "server" / "net"
README = NET / "README.md"
#: How the README names the entries of the table of states.
NAMES = {
    "HALF_CLOSED_LOCAL": "HC_LOCAL",
    "HALF_CLOSED_REMOTE": "HC_REMOTE",
    "IGNORED": "ignored",
    "MALFORMED": "malformed",
    "STREAM_ERROR": "reset",
    "NEVER_OPENED": "never opened",
    "LONG_CLOSED": "long closed",
    "MISUSE": "-",
}


def test_example_of_the_connection_runs():
    # From the source: compiled classes have no docstrings.
    module = ast.parse((NET / "http2" / "connection.py").read_text())
    (text,) = (ast.get_docstring(node) for node in module.body if isinstance(node, ast.ClassDef) and node.name == "ServerConnection")
    example = doctest.DocTestParser().get_doctest(text or "", {}, "ServerConnection", None, None)
    failed, tried = doctest.DocTestRunner().run(example)
    assert (failed, tried > 5) == (0, True)


def test_example_of_the_readme_runs():
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert (failed, tried > 5) == (0, True)


@pytest.mark.parametrize("state", list(streams.Next)[:5])
def test_table_of_the_readme_equals_the_table_of_the_code(state: streams.Next):
    name = NAMES.get(state.name, state.name)
    (row,) = (line for line in README.read_text().splitlines() if line.startswith(f"| {name} |"))
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == [NAMES.get(each.name, each.name) for each in streams.NEXT[state]]

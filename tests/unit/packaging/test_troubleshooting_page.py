"""Every error text in docs/troubleshooting.md exists in the code."""

import ast
import re

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT

PAGE = (REPOSITORY_ROOT / "docs" / "troubleshooting.md").read_text()
#: The first line of a list item.
TEXTS = re.findall(r"^\* `([^`]+)`:$", PAGE, re.MULTILINE)
SOURCES = ("server", "backends", "cli", "compiler", "clients/python/stoker_client")


@pytest.fixture(scope="module")
def literals() -> str:
    """All string literals of the product; the parts of a formatted string are separate."""
    found = []
    for folder in SOURCES:
        for path in sorted((REPOSITORY_ROOT / folder).rglob("*.py")):
            if "tests" not in path.parts and not path.name.endswith("_pb2.py"):
                nodes = ast.walk(ast.parse(path.read_text()))
                found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(found)


def parts(text: str) -> list[str]:
    """The words of an error text between its placeholders."""
    return [part for part in re.split(r"\s?\.\.\.\s?", text) if len(part.strip(" ':;,()")) > 3]


def test_page_has_texts() -> None:
    assert len(TEXTS) >= 40
    assert all(parts(text) for text in TEXTS)


def test_every_text_exists_in_the_code(literals: str) -> None:
    assert [text for text in TEXTS if not all(part in literals for part in parts(text))] == []

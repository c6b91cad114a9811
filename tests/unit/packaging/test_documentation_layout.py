"""The pages of the documentation: lines of at most 140 columns outside code blocks, and short table cells."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAX_COLUMNS = 140
MAX_CELL_WORDS = 24


def pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).exists()]


def lines(page: str) -> Iterator[tuple[str, str]]:
    """Place and text of each line outside code blocks."""
    is_code = False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield f"{page}:{number}", line


def test_every_line_has_at_most_140_columns() -> None:
    assert [where for page in pages() for where, line in lines(page) if len(line) > MAX_COLUMNS] == []


def test_every_table_cell_has_less_than_25_words() -> None:
    long = [
        where
        for page in pages()
        for where, line in lines(page)
        if line.startswith("|") and any(len(cell.split()) > MAX_CELL_WORDS for cell in re.split(r"(?<!\\)\|", line))
    ]
    assert long == []

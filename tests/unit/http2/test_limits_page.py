"""The page on protocols names every bound of an HTTP/2 connection, with its value."""

import re
from dataclasses import fields
from pathlib import Path

from stoker.server.net.http2.limits import H2Limits

PAGE = Path(__file__).parents[3] / "docs" / "protocols.md"


def test_documented_limits_equal_those_of_the_class():
    section = PAGE.read_text().split("### HTTP/2 connections")[1].split("\n## ")[0]
    named: dict[str, str] = {}
    for names, values in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", section, re.MULTILINE):
        numbers = re.sub(r"\(.*?\)", "", values).split(",")
        named.update(zip(re.findall(r"`(\w+)`", names), map(str.strip, numbers), strict=True))
    assert named == {item.name: str(item.default) for item in fields(H2Limits)}

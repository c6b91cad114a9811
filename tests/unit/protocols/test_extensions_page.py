"""Names and bounds in docs/extensions.md equal the server's."""

from pathlib import Path

from stoker.server.codecs.shared_memory import RESERVED_PREFIXES
from stoker.server.core.flag import Panel
from stoker.server.core.limits import Limits
from stoker.server.core.trace import KEPT_ELEMENTS, KEPT_STRING_BYTES
from stoker.server.flags.table import flags as all_flags
from stoker.server.observability.statistics import MOST_POSITIONS
from stoker.server.observability.tracer import QUEUE_TRACES, TraceSettings
from stoker.server.rpc.restricted import Category

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "extensions.md").read_text()


def test_every_category_and_flag_of_the_extensions_is_on_the_page():
    assert not [category for category in Category if f"`{category}`" not in PAGE and f"{category}" not in PAGE]
    flags = [name for name, each in all_flags().items() if each.flag.panel is Panel.KSERVE]
    assert len(flags) == 7
    for name in flags:
        assert f"--{name}" in PAGE
        assert f"--{name}" in (DOCS / "serving.md").read_text()


def test_numbers_of_the_page_equal_those_of_the_server():
    said = (f"{KEPT_ELEMENTS} elements", f"{KEPT_STRING_BYTES} bytes", f"{QUEUE_TRACES} traces", f"up to {MOST_POSITIONS}")
    assert not [text for text in said if text not in " ".join(PAGE.split())]
    defaults = TraceSettings()
    for piece, value in (("rate=N", defaults.rate), ("count=N", defaults.count), ("triton,log-frequency=N", defaults.log_frequency)):
        assert f"| `{piece}` | {value} |" in PAGE
    assert not [prefix for prefix in RESERVED_PREFIXES if prefix not in PAGE]


def test_limits_of_the_extensions_are_in_the_table_of_limits():
    table = (DOCS / "protocols.md").read_text()
    for name in ("shared_memory_regions", "traced_models"):
        assert f"| `{name}` | {getattr(Limits(), name)} |" in table

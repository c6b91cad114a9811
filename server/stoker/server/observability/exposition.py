"""Writes metric families in the Prometheus text format, version 0.0.4, the way Triton's own writer does.

prometheus-client's writer would append `_total` to every counter and print `3.0` for three. Programs that read Triton's metrics match
whole lines such as `nv_inference_count{model="m",version="1"} 3`, so names stay as the collector chose them, labels are sorted by
name, and whole numbers are printed as such.
"""

import math
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from stoker.server.observability.series import Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Above this, neighbouring whole numbers share one float: digits would claim what the float does not know.
_EXACT_WHOLE = 2.0**53


def write_exposition(families: Iterable[Metric]) -> bytes:
    """The families as one UTF-8 document; a family without samples is left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        # A counter is called what its samples are called, with or without `_total`; prometheus-client's own families leave it out.
        name = family.samples[0].name if family.type == "counter" else family.name
        lines.append(f"# HELP {name} {_escaped_help(family.documentation)}")
        lines.append(f"# TYPE {name} {_TEXT_TYPES.get(family.type, family.type)}")
        lines.extend(f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}" for sample in family.samples)
    # A lone surrogate (a name that was not UTF-8 on disk) must not cost the whole scrape.
    return "\n".join([*lines, ""]).encode("utf-8", "replace")


# Types of OpenMetrics that the text format does not know.
_TEXT_TYPES = {"info": "gauge", "stateset": "gauge", "unknown": "untyped", "gaugehistogram": "histogram"}


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # a bool too
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < _EXACT_WHOLE else repr(value)

"""`--run`: what a run of the executable with random data is reported as."""

from typing import TextIO

from stoker.compiler.target import Measurement


def report_measurement(measured: Measurement, out: TextIO) -> None:
    """Prints batch size, latency and throughput on lines of their own, in PopRT's words, which scripts look for.

    Of a fused executable each model has these lines, under its name.
    """
    for name, part in measured.parts.items():
        out.write(f"{name}:\n")
        report_measurement(part, out)
    if measured.parts:
        return
    note = f" ({measured.note})" if measured.note else ""
    out.write(f"Bs: {measured.batch_size}\n")
    latency_ms = measured.latency_s * 1e3
    out.write(f"Latency: {latency_ms:{'.2f' if latency_ms >= 1 else '.3g'}}ms{note}\n")
    out.write(f"Tput: {measured.throughput:.0f}\n")

"""What a configuration must say where nothing is told from the model file (Triton's --disable-auto-complete-config)."""

from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import Report


def check_is_whole(parsed: ParsedConfig) -> None:
    """Refuses a configuration that leaves open what the model file would tell.

    Raises:
        ConfigError: no backend, inputs or outputs are written; names each.
    """
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line)
    written = {
        "backend": parsed.backend or parsed.platform,
        "input": parsed.message.input,
        "output": parsed.message.output,
    }
    for field, value in written.items():
        if not value:
            report.error(field, "must be written: --disable-auto-complete-config leaves nothing to be told from the model file")
    report.raise_if_any()

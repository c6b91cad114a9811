"""Which backend serves a model: by `backend`, else by `platform`, else by the files of the version folder."""

from collections.abc import Collection

from stoker.backends.api.backend import Backend
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.errors import ConfigError, Problem
from stoker.server.config.model_formats import conversion, next_step, next_step_of
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import Report
from stoker.server.config.suggestions import allowed_names


def choose_backend(parsed: ParsedConfig, file_names: Collection[str], registry: BackendRegistry) -> tuple[Backend, str]:
    """The backend for a version, and the file it shall load.

    Args:
        parsed: The configuration.
        file_names: The version folder's files, as relative posix paths.
        registry: The installed backends.

    Returns:
        The backend, and `default_model_filename` or that of the backend's own which is there; empty where it needs no file.

    Raises:
        ConfigError: no backend or more than one fits, `backend` and `platform` contradict each other, or the file named is not there.
    """
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line)
    written = parsed.message.default_model_filename
    spellings = {field: name for field, name in (("backend", parsed.backend), ("platform", parsed.platform)) if name}
    named = {field: backend for field, name in spellings.items() if (backend := _named(field, name, registry, report)) is not None}
    report.raise_if_any()
    if len(named) == 2 and named["backend"] is not named["platform"]:
        report.error("platform", f"'{parsed.platform}' is of backend '{named['platform'].name}', but 'backend' says '{parsed.backend}'")
        report.raise_if_any()
    backend = named.get("backend") or named.get("platform") or _by_files(parsed, file_names, registry)
    if written and written not in file_names:
        report.error(
            "default_model_filename", f"the version folder has no file '{written}'{allowed_names(written, sorted(file_names)[:10])}"
        )
        report.raise_if_any()
    filename = written or _own_filename(backend, file_names)
    if filename and filename not in file_names and (step := conversion(file_names)) is not None:
        report.error("default_model_filename", f"the version folder has no file '{filename}'; {step}")
        report.raise_if_any()
    return backend, filename


def _own_filename(backend: Backend, file_names: Collection[str]) -> str:
    """The first of the backend's own file names that the version has; where it has none of them: the default, or none if it needs none."""
    own = (backend.default_model_filename, *backend.further_model_filenames)
    otherwise = backend.default_model_filename if backend.needs_model_file else ""
    return next((name for name in own if name in file_names), otherwise)


def _named(field: str, name: str, registry: BackendRegistry, report: Report) -> Backend | None:
    try:
        return registry.get(name)
    except ModelLoadError as error:
        if name in registry.names():
            report.error(field, error.message)
        else:
            known = {
                spelling: backend
                for backend in registry.all()
                for spelling in (backend.name, *(backend.platforms if field == "platform" else backend.aliases))
            }
            offered = sorted(spelling for spelling, backend in known.items() if not backend.is_for_tests)
            step = next_step_of(name)
            hint = f"; {step}" if step is not None else ""
            report.error(field, f"no {field} '{name}' is installed{allowed_names(name, offered, also=known, most=len(offered))}{hint}")
        return None


def _by_files(parsed: ParsedConfig, file_names: Collection[str], registry: BackendRegistry) -> Backend:
    known = [backend for backend in registry.all() if backend.default_model_filename]
    written = parsed.message.default_model_filename
    if written:
        suffix = written.rpartition(".")[2]
        fitting = [backend for backend in known if backend.default_model_filename.rpartition(".")[2] == suffix]
        what = f"default_model_filename '{written}'"
    else:
        fitting = [backend for backend in known if backend.default_model_filename in file_names]
        what = f"the version folder, which holds {', '.join(sorted(file_names)[:10]) or 'nothing'}"
    if len(fitting) == 1:
        return fitting[0]
    files = ", ".join(sorted(f"{backend.default_model_filename} ({backend.name})" for backend in known if not backend.is_for_tests))
    if fitting:
        message = f"must be written: {what}, fits {' and '.join(backend.name for backend in fitting)}"
    else:
        message = f"neither 'backend' nor 'platform' is written, and no backend fits {what}; known model files: {files or 'none'}"
        step = next_step([written] if written else file_names)
        message += f"; {step}" if step is not None else ""
    raise ConfigError([Problem(parsed.source, parsed.first_line, "backend", message)])

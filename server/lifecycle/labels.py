"""Class labels: one a line in the file an output's `label_filename` names, relative to the model folder."""

from pathlib import Path

from backends.api.errors import ModelLoadError
from server.core.model_config import ModelConfig

MAX_LABEL_FILE_BYTES = 16 << 20


def read_labels(model_dir: Path, config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Labels by output name, for the outputs that have a label file.

    Raises:
        ModelLoadError: a file is missing, outside the model folder, too large, or not UTF-8.
    """
    return {output: _read(model_dir, output, name) for output, name in config.label_files.items()}


def _read(model_dir: Path, output: str, name: str) -> tuple[str, ...]:
    where = f"label_filename '{name}' of output '{output}'"
    path = model_dir / name
    try:
        if path.is_symlink() or not path.resolve(strict=True).is_relative_to(model_dir.resolve()) or not path.is_file():
            raise ModelLoadError(f"{where}: not a regular file inside the model folder")
        if path.stat().st_size > MAX_LABEL_FILE_BYTES:
            raise ModelLoadError(f"{where}: larger than {MAX_LABEL_FILE_BYTES} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ModelLoadError(f"{where}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{where}: not UTF-8 at byte {error.start}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line.strip() for line in lines)

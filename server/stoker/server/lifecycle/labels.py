"""The label files of a model: the names of the elements of an output, one on each line."""

from pathlib import Path

from stoker.backends.api.errors import ModelLoadError
from stoker.server.core.model_config import ModelConfig
from stoker.server.lifecycle.folder import open_sibling

MAX_LABEL_FILE_BYTES = 16 << 20


def read_labels(model_dir: Path, config: ModelConfig, links_root: Path | None = None) -> dict[str, tuple[str, ...]]:
    """The labels by output name, for the outputs with a label file; `links_root` as in `open_sibling`.

    Raises:
        ModelLoadError: a file is missing, outside the model folder, too large, or not UTF-8.
    """
    return {output: _read(model_dir, output, name, links_root) for output, name in config.label_files.items()}


def _read(model_dir: Path, output: str, name: str, links_root: Path | None) -> tuple[str, ...]:
    where = f"label_filename '{name}' of output '{output}'"
    with (
        open_sibling(model_dir, name, links_root, what=where, where="the model folder") as descriptor,
        open(descriptor, "rb", closefd=False) as file,
    ):
        content = file.read(MAX_LABEL_FILE_BYTES + 1)
    if len(content) > MAX_LABEL_FILE_BYTES:
        raise ModelLoadError(f"{where}: larger than {MAX_LABEL_FILE_BYTES} bytes")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{where}: not UTF-8 at byte {error.start}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line.strip() for line in lines)

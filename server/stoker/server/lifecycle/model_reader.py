"""Reads one model folder: its configuration and what its version folders hold, as immutable data."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from stoker.backends.api.errors import ModelLoadError
from stoker.server.config.errors import problem_lines
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.core.model_list import BatchingDefaults
from stoker.server.lifecycle.bounds import MAX_VERSIONS
from stoker.server.lifecycle.folder import Folder, open_root
from stoker.server.lifecycle.listing import ModelListing, VersionListing
from stoker.server.lifecycle.misplaced import misplaced_model_files, model_files
from stoker.server.lifecycle.model_folder import (
    CONFIG_NAME,
    CONFIGS_DIR,
    companions,
    content_digest,
    entries,
    has_file,
    passed_over,
    plain_files,
    read_config,
    read_version,
)
from stoker.server.lifecycle.names import parse_version, shown
from stoker.server.lifecycle.tree import fingerprint

#: Files named in one text at most.
_MOST_NAMED = 10


class ModelReader:
    """Reads model folders; a configuration that has not changed is parsed once. Confined to: one caller at a time."""

    def __init__(
        self, batching_defaults: BatchingDefaults | None = None, config_name: str | None = None, *, follows_links: bool = False
    ) -> None:
        """Reads nothing yet.

        Args:
            batching_defaults: For models that leave their batching open.
            config_name: Instead of config.pbtxt, configs/<config_name>.pbtxt is read where a model has it.
            follows_links: Whether links are followed, in a folder without `parent` to what is below it.
        """
        self._follows_links = follows_links
        self._defaults = batching_defaults or BatchingDefaults()
        self._config_path = None if config_name is None else f"{CONFIGS_DIR}/{config_name}.pbtxt"
        self._parsed: dict[tuple[Path, str], tuple[bytes, ParsedConfig | ModelLoadError]] = {}

    def read(
        self, index: int, directory: Path, name: str, notes: list[str], *, parent: Folder | None = None, is_named_elsewhere: bool = False
    ) -> ModelListing | None:
        """The model `name` as it is now; None where the folder has neither a configuration nor versions, or is gone.

        Args:
            index: Which root holds it.
            directory: Its folder.
            name: The model's name.
            notes: Takes what is passed over.
            parent: The folder around it, through which it is then reached; else by its path.
            is_named_elsewhere: The folder, and so config.pbtxt, may call the model otherwise.
        """
        names: set[str] = set()
        versions: dict[int, VersionListing] = {}
        opening = open_root(directory, follows_links=self._follows_links) if parent is None else parent.folder(directory.name)
        try:
            with opening as folder:
                names = entries(folder.descriptor)
                numbers = sorted(number for entry in names if (number := parse_version(entry)) is not None)
                versions = {v: listing for v in numbers[-MAX_VERSIONS:] if (listing := read_version(folder, directory, v)) is not None}
                if len(numbers) > MAX_VERSIONS:
                    notes.append(f"model '{name}': only the highest {MAX_VERSIONS} of {len(numbers)} versions are taken")
                misplaced = None if versions else self._misplaced(folder, directory, names, is_listed=parent is None)
                if CONFIG_NAME not in names and not versions:
                    return None if misplaced is None else broken_listing(index, directory, name, misplaced)
                notes.extend(passed_over(folder.descriptor, name, names))
                beside = fingerprint(companions(folder, names))
                path = self._chosen(folder.descriptor)
                content = read_config(folder, path) if path != CONFIG_NAME or CONFIG_NAME in names else None
        except FileNotFoundError:
            return None
        except OSError as error:
            return broken_listing(index, directory, name, f"the model folder cannot be read: {error.strerror}")
        except ModelLoadError as error:
            found = broken_listing(index, directory, name, error.message)
            return replace(found, versions=versions, has_config_file=CONFIG_NAME in names)
        parsed = self._parse(directory, name, path, content, is_named_elsewhere=is_named_elsewhere)
        problems = () if isinstance(parsed, ParsedConfig) else problem_lines(parsed)
        reasons = () if isinstance(parsed, ParsedConfig) else (parsed.message,)
        if misplaced is not None:
            problems, reasons = (*problems, misplaced), (*reasons, misplaced)
        return ModelListing(
            name=name,
            directory=directory,
            root_index=index,
            config=parsed if isinstance(parsed, ParsedConfig) and not reasons else None,
            error="; ".join(reasons) or None,
            problems=problems,
            fingerprint=f"{content_digest(content)} {beside}",
            versions=versions,
            has_config_file=content is not None,
            links_root=None if not self._follows_links else directory if parent is None else directory.parent,
        )

    def forget_all_but(self, directories: Iterable[Path]) -> None:
        """Drops what is kept of other folders."""
        kept = set(directories)
        self._parsed = {key: parsed for key, parsed in self._parsed.items() if key[0] in kept}

    def _misplaced(self, folder: Folder, directory: Path, names: Iterable[str], *, is_listed: bool) -> str | None:
        files = plain_files(folder, model_files(set(names)))
        if files and is_listed and parse_version(directory.name) is not None:
            named = ", ".join(map(shown, sorted(files)[:_MOST_NAMED]))
            return f"its base_path is a version folder, which holds {named}; give the folder around it"
        return misplaced_model_files(directory.name, files)

    def _chosen(self, folder: int) -> str:
        return self._config_path if self._config_path is not None and has_file(folder, self._config_path) else CONFIG_NAME

    def _parse(
        self, directory: Path, name: str, path: str, content: bytes | None, *, is_named_elsewhere: bool
    ) -> ParsedConfig | ModelLoadError:
        if content is None:
            return replace(empty_config(name), batching_defaults=self._defaults)
        known = self._parsed.get((directory, name))
        if known is not None and known[0] == content:
            return known[1]
        result: ParsedConfig | ModelLoadError
        try:
            parsed = parse_pbtxt(content.decode(), source=f"{name}/{path}", model_name=name, is_named_elsewhere=is_named_elsewhere)
            result = replace(parsed, batching_defaults=self._defaults)
        except UnicodeDecodeError as error:
            result = ModelLoadError(f"{name}/{path}: not UTF-8 at byte {error.start}")
        except ModelLoadError as error:
            result = error
        self._parsed[directory, name] = (content, result)
        return result


def broken_listing(index: int, directory: Path, name: str, error: str) -> ModelListing:
    """A model of which nothing can be told but why."""
    return ModelListing(
        name=name,
        directory=directory,
        root_index=index,
        config=None,
        error=error,
        problems=(error,),
        fingerprint=error,
        versions={},
    )

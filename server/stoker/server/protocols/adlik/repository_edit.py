"""Changes a model repository on disk for clients: adds models and versions from below one root folder, removes them, sets version policies.

Paths come from clients and are not trusted. Every folder is opened through its parent's descriptor without following links. A copy
is made as `stoker.server.lifecycle.snapshot` makes it for backends: plain files only, compared before and after. An added folder is
filled under a hidden name, which no scan of the repository reads, and is then renamed, so that it appears complete. A removed folder is
first renamed, so that it can be restored. Error texts name models, versions and the client's path, never a folder of the host. A
change of the version policy in a config.pbtxt leaves every other character of the text as it was.

All calls block. They run in threads, one at a time for each model.
"""

import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from stoker.backends.api.errors import Conflict, Forbidden, InvalidRequest, ModelLoadError, NotFound, ServingError, Unavailable
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.core.model_config import SpecificVersions
from stoker.server.lifecycle.folder import Folder, open_folder
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.model_folder import CONFIG_NAME, read_config
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.settings import MAX_VERSION_NUMBER, MODEL_NAME_RULE, is_model_name, parse_version, shown
from stoker.server.lifecycle.snapshot import CopyHook, copy_tree
from stoker.server.pb import model_config_pb2 as pb

_FIELD: Final = "version_policy"
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[\w.+-]+)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def with_only(text: str, version: int, *, model_name: str) -> str:
    """Returns the config `text` with a version policy of only `version`.

    Raises:
        ModelLoadError: the text is not a valid configuration.
    """
    source = f"{model_name}/config.pbtxt"
    before = parse_pbtxt(text, source=source, model_name=model_name).message if text.strip() else empty_config(model_name).message
    policy = f"{_FIELD} {{ specific {{ versions: [ {version} ] }} }}"
    spans = _spans(text)
    if spans:
        changed = text
        for begin, end in reversed(spans[1:]):
            changed = changed[:begin] + changed[end:]
        changed = changed[: spans[0][0]] + policy + changed[spans[0][1] :]
    else:
        changed = f"{text.rstrip()}\n{policy}\n".lstrip("\n")
    after = parse_pbtxt(changed, source=source, model_name=model_name)
    if after.version_policy != SpecificVersions((version,)) or _without_policy(after.message) != _without_policy(before):
        raise ModelLoadError(f"{source}: its {_FIELD} cannot be replaced without changing the rest; edit the file by hand")
    return changed


def _spans(text: str) -> list[tuple[int, int]]:
    """The start and end of each top-level `version_policy`."""
    found: list[tuple[int, int]] = []
    depth, begin = 0, None
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token.group()
        if kind == "word" and depth == 0 and word == _FIELD:
            begin = token.start()
        elif kind == "mark" and word in "{<[":
            depth += 1
        elif kind == "mark" and word in "}>]":
            depth -= 1
            if depth == 0 and begin is not None:
                found.append((begin, token.end()))
                begin = None
    return found


def _without_policy(message: pb.ModelConfig) -> pb.ModelConfig:
    rest = pb.ModelConfig()
    rest.CopyFrom(message)
    rest.ClearField("version_policy")
    return rest


#: Reverts an edit.
Undo = Callable[[], None]
_MAX_PATH_LENGTH = 4096
_ADDING, _GONE, _WRITING = ".adding-", ".deleted-", ".config-"


class RepositoryEditor:
    """Edits the repository below `roots`. Confined to: one call for a model at a time.

    Attributes:
        repository: Reads the repository.
    """

    def __init__(self, roots: Sequence[Path], operate_root: Path | None, *, after_each: CopyHook | None = None) -> None:
        """Clients' paths are relative to `operate_root` (None: paths are not allowed); `after_each` is for tests, see `take_snapshot`."""
        self.repository = ModelRepository(roots)
        self._operate_root = operate_root
        self._after_each = after_each

    def find(self, name: str) -> ModelListing:
        """The model `name` as it is on disk.

        Raises:
            InvalidRequest: `name` is not a valid model name. NotFound: there is no such model.
        """
        _check_name(name)
        found = self.repository.find(name)
        if found is None:
            raise NotFound(f"model '{name}' is not in the repository")
        return found

    def add_model(self, name: str, path: str) -> Undo:
        """Copies the folder `path`, with config.pbtxt and version folders, to a new model `name`.

        Raises:
            ServingError: the name is taken or invalid, the path is not allowed or does not exist, or its content cannot be copied.
        """
        _check_name(name)
        root = self.repository.roots[0]
        if any(_exists(each, name) for each in self.repository.roots):
            raise Conflict(f"model '{name}' is in the repository already; add a version to it, or delete it first")
        with self._filled(path, root) as hidden, _said(f"model '{name}' cannot be added"), open_folder(root, follow=True) as folder:
            if not _looks_like_a_model(root / hidden):
                raise InvalidRequest(f"path {shown(path)} is no model: it has neither a {CONFIG_NAME} nor a version folder such as '1'")
            os.rename(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
        return lambda: _discard(root, name)

    def add_version(self, name: str, path: str, version: int) -> tuple[int, Undo]:
        """Copies the folder `path` to a new version of model `name`; `version` 0: the one above the highest there.

        Raises:
            ServingError: as `add_model`.
        """
        found = self.find(name)
        number = version or max(found.versions, default=0) + 1
        if number > MAX_VERSION_NUMBER:
            raise Conflict(
                f"model '{name}' has version {MAX_VERSION_NUMBER}, the highest possible: say the number of the new one in model_version"
            )
        if number < 1:
            raise InvalidRequest(f"version {number} cannot be one: they begin at 1")
        if number in found.versions or _exists(found.directory, str(number)):
            raise Conflict(f"model '{name}' has a version {number} already")
        root = self.repository.roots[found.root_index]
        with self._filled(path, root) as hidden, _said(f"version {number} of model '{name}' cannot be added"):
            _move(root, hidden, name, str(number))
        return number, lambda: _discard(root / name, str(number), root)

    def take_model(self, name: str) -> tuple[Undo, Undo]:
        """Removes the model `name` from the repository; returns a function that restores it and one that deletes it.

        Raises:
            ServingError: the model does not exist, or cannot be moved.
        """
        found = self.find(name)
        root = self.repository.roots[found.root_index]
        hidden = _hidden_name(_GONE)
        with _said(f"model '{name}' cannot be deleted"), open_folder(root, follow=True) as folder:
            os.rename(name, hidden, src_dir_fd=folder, dst_dir_fd=folder)

        def put_back() -> None:
            with _said(f"model '{name}' cannot be put back"), open_folder(root, follow=True) as folder:
                os.rename(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)

        return put_back, lambda: shutil.rmtree(root / hidden, ignore_errors=True)

    def take_version(self, name: str, version: int) -> tuple[Undo, Undo]:
        """Removes one version from the repository; as `take_model`.

        Raises:
            ServingError: the version does not exist, the model's configuration names it, or it cannot be moved.
        """
        found = self.find(name)
        self._check_version(found, version)
        policy = None if found.config is None else found.config.version_policy
        if isinstance(policy, SpecificVersions) and version in policy.versions:
            raise Conflict(f"{name}/{CONFIG_NAME} wants version {version} by its version_policy: activate another version first")
        root = self.repository.roots[found.root_index]
        hidden = _hidden_name(_GONE)
        with _said(f"version {version} of model '{name}' cannot be deleted"):
            _move_out(root, name, str(version), hidden)

        def put_back() -> None:
            with _said(f"version {version} of model '{name}' cannot be put back"):
                _move(root, hidden, name, str(version))

        return put_back, lambda: shutil.rmtree(root / hidden, ignore_errors=True)

    def want_only(self, name: str, version: int) -> Undo:
        """Sets the version policy in config.pbtxt to only `version`; the rest of the file is unchanged.

        Raises:
            ServingError: the version does not exist, or the file is invalid or cannot be written.
        """
        found = self.find(name)
        self._check_version(found, version)
        root = self.repository.roots[found.root_index]
        with _said(f"{name}/{CONFIG_NAME} cannot be written"), open_folder(root, follow=True) as top:
            with open_folder(name, inside=top) as folder:
                before = read_config(Folder(folder)) if found.has_config_file else None
            changed = with_only((before or b"").decode(errors="strict"), version, model_name=name).encode()
        _write_config(root, name, changed)
        return lambda: _write_config(root, name, before)

    def _check_version(self, found: ModelListing, version: int) -> None:
        if version not in found.versions:
            there = ", ".join(map(str, sorted(found.versions))) or "none"
            raise NotFound(f"model '{found.name}' has no version {version}; there are: {there}")

    @contextmanager
    def _filled(self, path: str, root: Path) -> Iterator[str]:
        """Copies the folder `path` to a hidden folder below `root` and yields its name; at the end, a folder that was not moved is
        removed.
        """
        with ExitStack() as opened:
            source = opened.enter_context(self._source(path))
            with _said("the repository cannot be written"):
                hidden = Path(tempfile.mkdtemp(prefix=_ADDING, dir=root))
            try:
                with _said(f"path {shown(path)} cannot be read"):
                    copy_tree(Folder(source), hidden, self._after_each, what=f"path {shown(path)}")
                hidden.chmod(0o755)
                yield hidden.name
            finally:
                shutil.rmtree(hidden, ignore_errors=True)

    @contextmanager
    def _source(self, path: str) -> Iterator[int]:
        """Opens the client's `path` below the operate root without following links; returns the folder's descriptor.

        Raises:
            Forbidden: paths are not allowed, or the path is outside the root. NotFound: it does not exist. InvalidRequest: it is no valid
                path.
        """
        root = self._operate_root
        if root is None:
            raise Forbidden("this server takes no paths: start it with --model_operate_root")
        if not path or "\0" in path or len(path) > _MAX_PATH_LENGTH:
            raise InvalidRequest("path is missing or too long: expected a folder below the server's --model_operate_root")
        given = PurePosixPath(path)
        outside = Forbidden(
            f"path {shown(path)} is not allowed: it must lie below the server's --model_operate_root, without '..' or links"
        )
        if given.is_absolute():
            base = next((each for each in (root, root.absolute(), root.resolve()) if given.is_relative_to(each)), None)
            if base is None:
                raise outside
            given = given.relative_to(base)
        if not given.parts or ".." in given.parts:
            raise outside
        with ExitStack() as opened:
            try:
                folder = opened.enter_context(open_folder(root, follow=True))
                for part in given.parts:
                    folder = opened.enter_context(open_folder(part, inside=folder))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    raise NotFound(f"path {shown(path)} does not exist below the server's --model_operate_root") from None
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise outside from None
                raise InvalidRequest(f"path {shown(path)} cannot be opened: {error.strerror}") from None
            yield folder


def _check_name(name: str) -> None:
    if not is_model_name(name) or name.startswith("."):
        raise InvalidRequest(f"{shown(name)} cannot be a model's name: expected {MODEL_NAME_RULE}, no dot in front")


def _looks_like_a_model(folder: Path) -> bool:
    return any(each.name == CONFIG_NAME or (each.is_dir() and parse_version(each.name) is not None) for each in folder.iterdir())


def _exists(folder: Path, name: str) -> bool:
    return os.path.lexists(folder / name)


def _hidden_name(prefix: str) -> str:
    return prefix + secrets.token_hex(8)


def _move(root: Path, hidden: str, model: str, name: str) -> None:
    with open_folder(root, follow=True) as top, open_folder(model, inside=top) as folder:
        os.rename(hidden, name, src_dir_fd=top, dst_dir_fd=folder)


def _move_out(root: Path, model: str, name: str, hidden: str) -> None:
    with open_folder(root, follow=True) as top, open_folder(model, inside=top) as folder:
        os.rename(name, hidden, src_dir_fd=folder, dst_dir_fd=top)


def _discard(folder: Path, name: str, root: Path | None = None) -> None:
    """Removes `folder/name`, which first gets a hidden name."""
    hidden = (root or folder) / _hidden_name(_GONE)
    with _said("what was added cannot be removed again"):
        (folder / name).rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _write_config(root: Path, model: str, content: bytes | None) -> None:
    """Replaces config.pbtxt atomically; None removes it."""
    hidden = _hidden_name(_WRITING)
    with (
        _said(f"{model}/{CONFIG_NAME} cannot be written"),
        open_folder(root, follow=True) as top,
        open_folder(model, inside=top) as folder,
    ):
        if content is None:
            os.unlink(CONFIG_NAME, dir_fd=folder)
            return
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=top)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(hidden, CONFIG_NAME, src_dir_fd=top, dst_dir_fd=folder)
        except OSError:
            os.unlink(hidden, dir_fd=top)
            raise


@contextmanager
def _said(what: str) -> Iterator[None]:
    """Converts a file system error to one for a client, without the host's path."""
    try:
        yield
    except ServingError:
        raise
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{what}: it is not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise Unavailable(f"{what}: {error.strerror or type(error).__name__}") from error

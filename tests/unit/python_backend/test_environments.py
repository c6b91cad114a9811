import io
import json
import stat
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import InvalidRequirement, Requirement

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.python import environments, interpreters
from stoker.backends.python.environments import Environments, extract, written_path
from stoker.backends.python.interpreters import InterpreterFacts, check_usable, facts_of
from stoker.backends.python.places import ModelPlaces
from stoker.backends.python.requirements import check_requirements, requirements_of, unmet

FACTS = InterpreterFacts((3, 11, 7), {"numpy": "2.1.0", "Foo_Bar": "1.5"}, {"python_version": "3.11", "sys_platform": "linux", "extra": ""})


def python_in(folder: Path, script: str | None = None) -> Path:
    """An environment at `folder`, whose Python is this one, or prints what `script` prints."""
    found = folder / "bin" / "python"
    found.parent.mkdir(parents=True, exist_ok=True)
    own = f'exec {sys.executable} "$@"'
    found.write_text(f"#!/bin/sh\n{script or own}\n")
    found.chmod(0o755)
    return found


def archive_of(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """A tar.gz of files (bytes) and links (text)."""
    with tarfile.open(path, "w:gz") as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o755
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                made.addfile(member)
            else:
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
    return path


def test_path_may_begin_with_the_models_folder(tmp_path: Path):
    assert written_path({}, tmp_path) is None
    assert written_path({"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"}, tmp_path) == tmp_path / "env"
    assert written_path({"EXECUTION_ENV_PATH": "/opt/env"}, None) == Path("/opt/env")
    with pytest.raises(ModelLoadError, match="takes an absolute path"):
        written_path({"EXECUTION_ENV_PATH": "env"}, tmp_path)
    with pytest.raises(ModelLoadError, match="has no value"):
        written_path({"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"}, None)


def test_interpreter_of_a_folder_is_its_python(tmp_path: Path):
    python = python_in(tmp_path / "env")
    assert Environments().interpreter(tmp_path / "env") == python


def test_archive_is_extracted_once_and_again_when_it_changes(tmp_path: Path):
    kept = Environments()
    archive = archive_of(tmp_path / "env.tar.gz", ("bin/python3.11", b"#!/bin/sh\n"), ("bin/python", "python3.11"))
    first = kept.interpreter(archive)
    assert first.read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE(first.parent.parent.stat().st_mode) & 0o077 == 0
    assert kept.interpreter(archive) == first
    archive_of(archive, ("bin/python", b"#!/bin/sh\n# newer"))
    assert kept.interpreter(archive) != first


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (("../out", b""), "OutsideDestinationError"),
        (("/etc/out", b""), ""),
        (("bin/link", "../../out"), "LinkOutsideDestinationError"),
        (("bin/link", "/etc/passwd"), "AbsoluteLinkError"),
    ],
)
def test_archive_that_leads_out_of_its_folder_is_rejected(tmp_path: Path, member: tuple[str, bytes | str], expected: str):
    archive = archive_of(tmp_path / "env.tar.gz", member)
    target = tmp_path / "target"
    if not expected:
        # tarfile strips the slash, so that the member lies inside.
        extract(archive, target)
        assert (target / "etc/out").exists()
        return
    with pytest.raises(ModelLoadError, match=f"not safe: {expected}"):
        extract(archive, target)
    assert not (tmp_path / "out").exists()


def test_archive_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = archive_of(tmp_path / "env.tar.gz", ("a", b"12345"), ("b", b"12345"))
    monkeypatch.setattr(environments, "MAX_MEMBERS", 1)
    with pytest.raises(ModelLoadError, match="has more than 1 members"):
        extract(archive, tmp_path / "a")
    monkeypatch.setattr(environments, "MAX_MEMBERS", 9)
    monkeypatch.setattr(environments, "MAX_BYTES", 9)
    with pytest.raises(ModelLoadError, match="members or"):
        extract(archive, tmp_path / "b")


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00broken"])
def test_damaged_archive_is_rejected(tmp_path: Path, content: bytes):
    (tmp_path / "env.tar.gz").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"'env.tar.gz' is no archive|cannot be extracted"):
        Environments().interpreter(tmp_path / "env.tar.gz")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("missing", "no such file or folder: 'missing'"), ("file.zip", "is neither a folder nor an archive"), ("empty", "has no bin/python")],
)
def test_path_without_an_environment_is_rejected(tmp_path: Path, name: str, expected: str):
    (tmp_path / "file.zip").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match=expected):
        Environments().interpreter(tmp_path / name)


def test_facts_of_an_interpreter_are_its_version_packages_and_markers(tmp_path: Path):
    for facts in (facts_of(None), facts_of(python_in(tmp_path))):
        assert facts.version == sys.version_info[:3]
        assert facts.markers["python_version"] == f"{sys.version_info.major}.{sys.version_info.minor}"
        assert "numpy" in facts.packages
        check_usable(facts)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo oops >&2; exit 3", "does not start: exit code 3: oops"),
        ("echo not json", "does not start: JSONDecodeError"),
    ],
)
def test_interpreter_that_does_not_start_is_rejected(tmp_path: Path, script: str, expected: str):
    with pytest.raises(ModelLoadError, match=expected):
        facts_of(python_in(tmp_path, script))


def test_old_interpreter_is_rejected_with_its_version(tmp_path: Path):
    facts = {"version": [3, 9, 18], "packages": {"numpy": "1.26"}, "markers": {}}
    python_in(tmp_path, f"echo '{json.dumps(facts)}'")
    with pytest.raises(ModelLoadError, match=r"has Python 3\.9\.18; the worker process needs 3.10 or newer"):
        ModelPlaces().interpreter({"EXECUTION_ENV_PATH": str(tmp_path)}, None, tmp_path, "m")


def test_interpreter_without_numpy_is_rejected():
    with pytest.raises(ModelLoadError, match="has no numpy"):
        check_usable(InterpreterFacts((3, 12, 1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("numpy>=2\nfoo-bar==1.5  # a comment\n", []),
        ("# nothing\n\n-r other.txt\n--index-url https://x\n./local\nhttps://x/y.whl\n", []),
        ('absent; python_version < "3"\n', []),
        ("torch>=2\n", ["torch>=2 (requirements.txt:1) is not installed"]),
        ("\nnumpy<2\n", ["numpy<2 (requirements.txt:2), but 2.1.0 is installed"]),
        ("numpy>=2 \\\n  --hash=sha256:abc\n", []),
        ("foo_bar[x]~=1.4\n", []),
    ],
)
def test_requirements_are_compared_with_the_packages(text: str, expected: list[str]):
    assert unmet(text, FACTS) == expected


def test_line_that_is_no_requirement_is_named():
    with pytest.raises(ModelLoadError, match=r"requirements.txt:2: 'numpy =>2' is no requirement"):
        unmet("numpy\nnumpy =>2\n", FACTS)


@given(st.text(max_size=60))
def test_any_text_is_read_or_rejected(text: str):
    try:
        found = list(requirements_of(text))
    except ModelLoadError:
        return
    for _, requirement in found:
        try:
            Requirement(str(requirement))
        except InvalidRequirement:
            pytest.fail(f"{requirement} was taken")


def test_load_names_what_is_missing_and_the_command(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text("torch\n")
    with pytest.raises(ModelLoadError, match=r"torch \(requirements.txt:1\) is not installed; run `stoker env build digits`"):
        check_requirements(tmp_path / "requirements.txt", FACTS, "digits")


def test_requirements_beside_the_models_file_have_precedence(tmp_path: Path):
    (tmp_path / "1").mkdir()
    (tmp_path / "requirements.txt").write_text("no-such-package-of-the-model\n")
    places = ModelPlaces()
    with pytest.raises(ModelLoadError, match="no-such-package-of-the-model"):
        places.interpreter({}, tmp_path, tmp_path / "1", "m")
    (tmp_path / "1" / "requirements.txt").write_text("numpy\n")
    assert places.interpreter({}, tmp_path, tmp_path / "1", "m") is None


def test_interpreter_is_asked_once_while_its_packages_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python_in(tmp_path / "env")
    asked: list[Path | None] = []

    def ask(interpreter: Path | None) -> InterpreterFacts:
        asked.append(interpreter)
        return FACTS

    monkeypatch.setattr("stoker.backends.python.places.facts_of", ask)
    places = ModelPlaces()
    parameters = {"EXECUTION_ENV_PATH": str(tmp_path / "env")}
    for _ in range(2):
        assert places.interpreter(parameters, None, tmp_path, "m") == tmp_path / "env" / "bin" / "python"
    assert len(asked) == 1
    (tmp_path / "env" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    places.interpreter(parameters, None, tmp_path, "m")
    assert len(asked) == 2


def test_version_bound_of_the_worker_is_310():
    assert interpreters.LEAST == (3, 10)

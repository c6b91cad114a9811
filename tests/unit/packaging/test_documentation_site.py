"""The documentation site: its pages, and what it loads. `make docs-env` installs its generator; without it, most tests are skipped."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.fakes.project_scripts import project_script
from tests.fakes.server_process import REPOSITORY_ROOT

MKDOCS = REPOSITORY_ROOT / ".venv-docs" / "bin" / "mkdocs"
#: Attributes that a browser loads without a click. Those of a link depend on `rel`: an address of the page itself loads nothing.
LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "link": "href",
    "use": "href",
    "form": "action",
}
OTHER_HOST = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)
#: In a style sheet.
STYLE_ADDRESS = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""")


class Loaded(HTMLParser):
    """The addresses that a page loads by itself, and the classes of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.classes.update(values.get("class", "").split())
        self.addresses += STYLE_ADDRESS.findall(values.get("style", ""))
        self.addresses += [each.split()[0] for each in values.get("srcset", "").split(",") if each.strip()]
        if tag in LOADED and LOADED[tag] in values:
            self.addresses.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning of the generator, such as a broken link, fails the tests."""
    if not MKDOCS.exists():
        pytest.skip("the generator of the site is not installed: run 'make docs-env'")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "scripts/docs_tree", folder / "docs"], cwd=REPOSITORY_ROOT, check=True)
    text = (REPOSITORY_ROOT / "mkdocs.yml").read_text()
    sources = ", ".join(str(REPOSITORY_ROOT / each) for each in ("clients/python", "backends"))
    for written, here in ((".site/pages", folder / "docs"), (".site/html", folder / "html"), ("clients/python, backends", sources)):
        assert written in text
        text = text.replace(written, str(here))
    (folder / "mkdocs.yml").write_text(text)
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [str(MKDOCS), "build", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
def test_built_pages_load_nothing_from_other_hosts(site: Path) -> None:
    found = []
    for page in site.rglob("*.html"):
        reader = Loaded()
        reader.feed(page.read_text())
        found += [f"{page.name}: {address}" for address in reader.addresses if OTHER_HOST.match(address)]
        assert len(reader.addresses) >= 3, page
        assert "mermaid" not in reader.classes  # The theme loads the library for it from another host.
    for sheet in site.rglob("*.css"):
        found += [f"{sheet.name}: {each}" for each in STYLE_ADDRESS.findall(sheet.read_text()) if OTHER_HOST.match(each)]
    assert found == []


@pytest.mark.slow
def test_every_page_is_built_and_can_be_searched(site: Path) -> None:
    module = project_script("docs_tree")
    pages = [Path(place).with_suffix(".html") for place in module.places().values() if place.endswith(".md")]
    indexes = [page.with_name("index.html") if page.stem == "README" else page for page in pages]
    assert len(indexes) > 80
    assert [page for page in indexes if not (site / page).is_file()] == []
    assert '"location":"serving.html' in (site / "search" / "search_index.json").read_text().replace(" ", "")


@pytest.mark.slow
def test_interfaces_are_printed_from_docstrings(site: Path) -> None:
    client = (site / "api_client.html").read_text()
    for name in ("connect", "Client.infer", "AsyncClient.infer", "errors.Unavailable", "tfs.TfsClient"):
        assert f'id="stoker_client.{name}"' in client
    backend = (site / "api_backend.html").read_text()
    for name in ("backend.Backend.inspect", "backend.Instance.execute", "tensor.DataType", "errors.ServingError"):
        assert f'id="stoker.backends.api.{name}"' in backend
    assert "&lt;!-- api:" not in client + backend


def test_links_between_pages_are_rewritten_to_their_places_on_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = project_script("docs_tree")
    monkeypatch.setattr(module, "ROOT", tmp_path / "checkout")
    docs = tmp_path / "checkout" / "docs"
    (docs / "adr").mkdir(parents=True)
    for name in module.OTHERS:
        page = docs.parent / name
        page.parent.mkdir(exist_ok=True)
        page.write_text("# page\n")
    (docs.parent / "README.md").write_text("[a](docs/a.md#x) `[b](gone.md)`\n\n```\n[c](gone.md)\n```\n[d](https://example.org)\n")
    (docs / "a.md").write_text(
        "[home](../README.md) and [docs/b.md](adr/0001-x.md#y), [`x[0]`](../SECURITY.md)\n<!-- api: some.module -->\n"
    )
    (docs / "adr" / "0001-x.md").write_text("# The decision\nsee [1] and [here](#x)\n\n[1]: ../../CONTRIBUTING.md#y\n")
    assert module.write(tmp_path / "out") == []
    assert (tmp_path / "out" / "index.md").read_text() == "[a](a.md#x) `[b](gone.md)`\n\n```\n[c](gone.md)\n```\n[d](https://example.org)\n"
    assert (
        tmp_path / "out" / "a.md"
    ).read_text() == "[home](index.md) and [The decision](adr/0001-x.md#y), [`x[0]`](SECURITY.md)\n::: some.module\n"
    assert (tmp_path / "out" / "adr" / "0001-x.md").read_text() == "# The decision\nsee [1] and [here](#x)\n\n[1]: ../CONTRIBUTING.md#y\n"
    (docs / "a.md").write_text("\n[code](../server/main.py)\n")
    assert module.write(tmp_path / "out") == ["docs/a.md:2: the link to '../server/main.py' is not a page of the site"]


def test_navigation_names_every_page_but_the_decisions() -> None:
    text = (REPOSITORY_ROOT / "mkdocs.yml").read_text()
    nav = re.search(r"^nav:\n(.*?)^\S", text, re.MULTILINE | re.DOTALL)
    assert nav is not None
    named = re.findall(r"(\S+\.md)$", nav[1], re.MULTILINE)
    pages = {place for place in project_script("docs_tree").places().values() if place.endswith(".md")}
    assert len(named) == len(set(named))
    assert set(named) == {page for page in pages if not re.match(r"adr/\d", page)}


def test_pages_link_to_pages_only(tmp_path: Path) -> None:
    assert project_script("docs_tree").write(tmp_path / "out") == []


def test_index_of_decisions_lists_every_decision() -> None:
    folder = REPOSITORY_ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    assert sorted(re.findall(r"^\[\d{4}\]: (\S+)$", index, re.MULTILINE)) == sorted(path.name for path in folder.glob("0*.md"))

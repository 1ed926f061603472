"""The web site of docs/: it builds without warnings, links have targets, and no page loads a file from another host."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.programs import REQUIRE_PROGRAMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("material") is None and REQUIRE_PROGRAMS not in os.environ,
    reason="needs the extra `docs`",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return folder


class Page(HTMLParser):
    """The identifiers of a page, and the targets of its links, pictures, scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("img", "script") and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and "stylesheet" in values.get("rel", ""):
            self.loads.append(values["href"])


@needs_mkdocs
def test_every_link_of_the_site_has_a_target(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) == len(list(DOCS.glob("*.md")))
    broken_links = []
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                parts.fragment and target in pages and parts.fragment not in pages[target].names
            ):
                broken_links.append((path.name, link))
    assert broken_links == []


@needs_mkdocs
def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert [link for link in Page(path).loads if urlsplit(link).netloc] == []


@needs_mkdocs
def test_the_site_has_pictures_and_pipelines_but_no_python_files(site: Path) -> None:
    assert [path.name for path in site.rglob("*.py")] == []
    assert (site / "screens" / "first-build.svg").exists()
    assert (site / "github-actions" / "build.yml").exists()


def test_every_page_is_in_the_navigation_and_on_the_first_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    in_navigation = re.findall(r"([\w-]+\.md)$", yaml.safe_dump(yaml.safe_load(text)["nav"], width=1000), re.MULTILINE)
    pages = sorted(path.name for path in DOCS.glob("*.md"))
    assert sorted(in_navigation) == pages
    first_page = (DOCS / "index.md").read_text("utf-8")
    assert [name for name in pages if name != "index.md" and f"]({name})" not in first_page] == []


def heading_names(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site create them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), ROOT / "cache" / "README.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_link_of_a_page_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if page.parent == DOCS:  # the site contains only the files of this folder
            assert file.resolve().is_relative_to(DOCS), target
        if anchor and file.suffix == ".md":
            assert anchor in heading_names(file), target

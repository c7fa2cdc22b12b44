"""The documentation as a site: it builds without a warning, and a page that is read asks no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from needs import needs

ROOT = Path(__file__).resolve().parents[1]
LOADS = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "input": ("src",), "use": ("href",), "form": ("action",),
}  # fmt: skip
"""Elements whose attributes make a browser fetch something, or send it."""
FETCHED = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch", "manifest"}
"""What a link element fetches; others only say where something is."""
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
needs_mkdocs = needs("the extra docs", "mkdocs", "material", "mkdocstrings")


class Requests(HTMLParser):
    """What a browser would ask for to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and FETCHED & set(values.get("rel", "").split()):
            self.found.append(values.get("href", ""))
        self.found += [values[name] for name in LOADS.get(tag, ()) if name in values]
        self.found += re.findall(r"url\(\s*['\"]?([^'\")]+)", values.get("style", ""))
        if "mermaid" in values.get("class", ""):
            self.found.append("//mermaid")  # drawn by a script of another host


def requests(page: str) -> list[str]:
    reader = Requests()
    reader.feed(page)
    return reader.found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The strict build: it ends at a dead link, a page that the navigation lacks or does not find, and an unknown name
    in the reference."""
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_reader_of_pages_finds_what_a_browser_fetches() -> None:
    page = (
        '<link rel="stylesheet" href="//a"><link rel="canonical" href="https://b"><script src="https://c"></script>'
        '<img src="d.png" srcset="//e 2x"><a href="https://f">f</a><p style="background: url(\'https://g\')">'
    )
    assert requests(page) == ["//a", "https://c", "d.png", "//e 2x", "https://g"]


@needs_mkdocs
def test_no_page_asks_another_host(site: Path) -> None:
    foreign = [
        f"{path.relative_to(site)}: {asked}"
        for path in site.rglob("*.html")
        for asked in requests(path.read_text(encoding="utf-8"))
        if ELSEWHERE.match(asked.strip())
    ]
    for path in site.rglob("*.css"):
        asked = re.findall(r"(?:url\(\s*|@import\s+)['\"]?([^'\")]+)", path.read_text(encoding="utf-8"))
        foreign += [f"{path.relative_to(site)}: {one}" for one in asked if ELSEWHERE.match(one)]
    assert foreign == []

"""MkDocs hook that adds the files outside docs/ that pages link to.

Pages link to files of the repository by relative paths, so links work in the repository and on the site. A Markdown
file outside docs/ becomes a page of the site, other files are copied, and a folder becomes its README or a list of its
files.
"""

from __future__ import annotations

import posixpath
import re
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HOME = {"README.md": "docs/index.md"}
"""File of the repository -> its replacement on the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages link to, and those that these files link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    waiting += [f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri for uri in _named(config.nav)]
    seen: set[str] = set()
    while waiting:
        place = waiting.pop()
        if place in seen or not (ROOT / place).exists():
            continue
        seen.add(place)
        if files.get_file_from_path(_uri(place)) is None:
            files.append(_generated(place, config))
        if place.endswith(".md"):
            waiting += [_target(place, link) for link in LINK.findall(_prose(ROOT / place))]
        elif (ROOT / place).is_dir():
            waiting += [f"{place}/{name}" for name in _listed(ROOT / place)]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to the repository into links to the site."""
    here = page.file.src_uri
    place = f"docs/{here}" if (ROOT / "docs" / here).exists() else here

    def on_site(link: re.Match[str]) -> str:
        there = _uri(_target(place, link[1]))
        return posixpath.relpath(there, posixpath.dirname(here) or ".") if files.get_file_from_path(there) else link[1]

    if here.endswith("/index.md"):
        return markdown  # a list of files, made for the site
    parts, start = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(on_site, markdown[start : fence.start()]), fence[0]]
        start = fence.end()
    return "".join([*parts, LINK.sub(on_site, markdown[start:])])


def _named(nav: Any) -> list[str]:
    """Return the pages in the navigation."""
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    return [uri for item in inside for uri in _named(item)]


def _prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def _target(place: str, link: str) -> str:
    """Return the path in the repository of ``link`` in the file at ``place``."""
    there = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
    readme = f"{there}/README.md"
    return readme if (ROOT / readme).is_file() else HOME.get(there, there)


def _uri(place: str) -> str:
    """Return the path on the site of a file or folder of the repository."""
    return f"{place}/index.md" if (ROOT / place).is_dir() else place.removeprefix("docs/")


def _listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def _generated(place: str, config: Any) -> File:
    made = partial(File.generated, config, _uri(place), inclusion=InclusionLevel.NOT_IN_NAV)
    if not (ROOT / place).is_dir():
        return made(abs_src_path=str(ROOT / place))
    lines = [f"- [{name}]({name})" for name in _listed(ROOT / place)]
    return made(content="\n".join([f"# {place}", "", *lines, ""]))

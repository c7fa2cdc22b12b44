"""Command ``search``: find passages of a run's own text with its model, with BM25 or both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from daybreak.commands.options import RunDataOptions, keywords, parse
from daybreak.core.errors import UserError
from daybreak.core.files import check_output_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import duration, hanging, say, working
from daybreak.searching.index import export_parquet, require_pyarrow
from daybreak.searching.query import Method, SearchResult, check_query, open_search


@dataclass(frozen=True, kw_only=True)
class SearchOptions(RunDataOptions):
    """Each option except ``run`` and ``words`` is a keyword of ``search``."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder with an exported model."""
    words: Annotated[Positional[tuple[str, ...]], arg(metavar="[WORD ...]")] = ()
    """The query. Without it, only the index is built."""
    top: int = 10
    """Number of passages to show."""
    method: Method = "hybrid"
    """hybrid, dense (vectors only) or bm25 (words only)."""
    index: Path | None = None
    """Folder of the index, which remembers its --data. Defaults to RUN/search."""
    export: Path | None = None
    """Write all passages and vectors to this Parquet file, for a vector database."""
    rebuild: bool = False
    """Build the index again."""


def main(arguments: Sequence[str]) -> None:
    options = keywords(parse(SearchOptions, "search", arguments))
    search(options.pop("run"), " ".join(options.pop("words")), **options)


def search(
    run: Path | str,
    words: str = "",
    *,
    top: int = 10,
    method: str = "hybrid",
    data: Path | str | None = None,
    index: Path | str | None = None,
    export: Path | str | None = None,
    rebuild: bool = False,
) -> list[SearchResult]:
    """Search in the text that a run was trained on and in its held-out text, with the run's exported model.

    The first call builds an index of passages; a killed build resumes where it stopped. For many queries from
    Python, ``daybreak.searching.query.open_search`` keeps index and model open.

    The keywords are the options of ``daybreak search``. The best passages come first; there are none without a query.
    The unit of their scores depends on the method, see ``SearchResult.score``.

    Raises:
        UserError: an argument cannot be used, or the run has no exported model or no text.
    """
    check_query(words or "-", top, method)
    if export is not None:
        require_pyarrow()
        folder = Path(index) if index is not None else RunFolder(Path(run)).search
        if folder.resolve() in Path(export).resolve().parents:
            raise UserError(f"'{export}' is in the folder of the search index.", "Name another place with --export.")
        check_output_file(Path(export), "--export vectors.parquet")
    started = time.monotonic()
    searcher = open_search(run, data=data, index=index, method=method, rebuild=rebuild)
    if export is not None:
        with working("Writing passages") as work:
            export_parquet(searcher.index, Path(export), work.show)
        say(f"{searcher.index.state.passages:,} passages with their vectors: {export}")
    if not words:
        if export is None:
            took = duration(time.monotonic() - started)
            say(f"The search index of '{run}' holds {searcher.index.state.passages:,} passages ({took}).")
        return []
    results = searcher.search(words, top=top)
    for result in results:
        say(f"{result.rank:>3}  {result.score:.3f}  {result.split} document {result.document}")
        say(hanging("     ", result.text))
    if not results:
        say("No passage contains any of these words.")
    return results

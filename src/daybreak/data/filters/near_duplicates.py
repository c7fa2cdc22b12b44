"""Remove near duplicates by MinHash, with the stages of datatrove (extra ``corpus``) and the settings of FineWeb.

A document is represented by the set of its word 5-grams, in lower case and without punctuation and digits. 14 buckets
of 8 hashes match two documents that share 80 % of their 5-grams with a probability of 92 % (Penedo et al. 2024,
appendix E.1). Documents that match, directly or through others, form a cluster. The document with the smallest number
of each cluster is kept. Documents of fewer than five words are always kept.

There are three stages. Each can be repeated after a kill and skips finished work:

    FOLDER/signatures/bucket_000/00007.minhash.sig   ``write_signatures``, once per part of the text
    FOLDER/numbers/00007.npy                         the numbers of the documents of the part, written last
    FOLDER/pairs/00000_00.dups                       ``match_bucket``, once per bucket
    the numbers of the documents to remove           ``near_duplicates``

Disk: 0.96 GB per million documents. Memory: ``write_signatures`` needs 200 bytes per document of the part and 12 MB for
the current document (300 MB if it has 4 million characters); ``match_bucket`` 300 MB, and more only if a single part
has over MERGED documents; ``near_duplicates`` 400 bytes per document that has a near duplicate.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import write_array, write_npy
from daybreak.data.filters.filter import LONGEST_FILTERED, Filter, missing_extra
from daybreak.data.filters.quality_filters import datatrove_words

if TYPE_CHECKING:
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

BUCKETS, HASHES, WORDS = 14, 8, 5
SHINGLES = 1 << 12
"""Number of n-grams whose hashes (112 of 8 bytes each) are in memory at once."""
MERGED = 1 << 20
"""Number of documents whose signatures are merged into one sorted file, so that few files are open at once."""
_SIGNATURE = np.dtype([*((f"hash{number}", "<u8") for number in range(HASHES)), ("document", "<u4")])
_BUFFERED = 1 << 10
"""Number of signatures read at once from each sorted file."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicates(Filter):
    """Removes all but the first of the documents that are nearly the same; a filter of the corpus as a whole.

    Memory: 300 MB, and 400 MB per million documents that have a near duplicate; 1 GB of disk per million documents.
    """

    def why(self) -> str:
        return "documents that are nearly the same: MinHash over 5-grams with FineWeb's settings (Penedo et al. 2024)"


def _config() -> MinhashConfig:
    """Return the settings for datatrove, and disable its log."""
    try:
        from datatrove.pipeline.dedup.minhash import MinhashConfig  # an extra
        from loguru import logger  # datatrove's

        logger.disable("datatrove")
        return MinhashConfig(n_grams=WORDS, num_buckets=BUCKETS, hashes_per_bucket=HASHES)
    except ImportError:
        raise missing_extra("Finding near duplicates", "datatrove with xxhash") from None


def _signature_step(folder: Path) -> MinhashDedupSignature:
    config = _config()
    from datatrove.pipeline.dedup.minhash import MinhashDedupSignature  # an extra

    class Signatures(MinhashDedupSignature):
        """Signatures of documents of any length; datatrove's own code needs 3 KB of memory per word."""

        def get_signature(self, shingles: np.ndarray) -> list[list[int]]:
            parts = [
                super(Signatures, self).get_signature(shingles[start : start + SHINGLES])
                for start in range(0, len(shingles), SHINGLES)
            ]
            least: list[list[int]] = np.min(np.array(parts, np.uint64), axis=0).tolist()
            return least

    return Signatures(str(folder), config=config, language=datatrove_words())


def write_signatures(documents: Iterable[tuple[int, str]], folder: Path, part: int) -> None:
    """Hash the documents of one part, unless that is done. Parts can be hashed in parallel.

    Args:
        documents: (number, text) pairs; a number is unique over all parts.
        folder: the same for all parts; created if missing. Existing content must come from the same text.
        part: 0-based number of the part.
    """
    done = folder / "numbers" / f"{part:05d}.npy"
    if done.exists():
        return
    step = _signature_step(folder / "signatures")
    from datatrove.data import Document  # an extra

    numbers: list[int] = []

    def datatrove_documents() -> Iterator[Any]:
        for number, text in documents:
            numbers.append(number)
            yield Document(text=text[:LONGEST_FILTERED], id="")

    step.run(datatrove_documents(), rank=part)
    done.parent.mkdir(parents=True, exist_ok=True)
    temporary = done.with_suffix(f".{os.getpid()}.tmp")
    write_npy(temporary, np.array(numbers, np.uint64))
    os.replace(temporary, done)


def _groups(folder: Path) -> list[list[tuple[int, int]]]:
    """Return (part, number of documents) of the hashed parts, in groups of about MERGED documents."""
    groups: list[list[tuple[int, int]]] = []
    in_group = 0
    for path in sorted((folder / "numbers").glob("*.npy")):
        documents = len(np.load(path, mmap_mode="r"))
        if not groups or in_group + documents > MERGED:
            groups.append([])
            in_group = 0
        groups[-1].append((int(path.stem), documents))
        in_group += documents
    return groups


def match_bucket(folder: Path, bucket: int) -> None:
    """Find the pairs of documents that match in ``bucket``, a number below BUCKETS, unless that is done.

    All parts must be hashed. Buckets can be matched in parallel.
    """
    name = f"{bucket:05d}_00.dups"
    if (folder / "pairs" / name).exists():
        return
    config = _config()
    from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets  # an extra

    work = folder / f"matching-{bucket:03d}"
    shutil.rmtree(work, ignore_errors=True)
    merged = work / f"bucket_{bucket:03d}"
    merged.mkdir(parents=True)
    for group, parts in enumerate(_groups(folder)):
        signatures, before = [], 0
        for part, documents in parts:
            rows = np.fromfile(folder / "signatures" / merged.name / f"{part:05d}.minhash.sig", _SIGNATURE)
            rows["document"] += before
            signatures.append(rows)
            before += documents
        rows = np.concatenate(signatures)
        rows = rows[np.lexsort([rows[field] for field in reversed(_SIGNATURE.names or ())])]
        write_array(merged / f"{group:05d}.minhash.sig", rows)
    step = MinhashDedupBuckets(str(work), str(work / "pairs"), config=config, lines_to_buffer=_BUFFERED)
    step.run(rank=bucket, world_size=BUCKETS)
    (folder / "pairs").mkdir(exist_ok=True)
    os.replace(work / "pairs" / name, folder / "pairs" / name)
    shutil.rmtree(work)


def near_duplicates(folder: Path) -> np.ndarray:
    """Return the numbers of the documents to remove, as ascending uint64: all but the smallest of each cluster.

    First matches the buckets that are not matched yet.

    Raises:
        UserError: datatrove is not installed, or no part is hashed.
    """
    groups = _groups(folder)
    if not groups:
        raise UserError(f"There are no signatures in '{folder}'.", "Start the preparation again.")
    for bucket in range(BUCKETS):
        match_bucket(folder, bucket)
    config = _config()
    from datatrove.pipeline.dedup.minhash import MinhashDedupCluster  # an extra

    clusters = folder / "clusters"
    shutil.rmtree(clusters, ignore_errors=True)
    step = MinhashDedupCluster(
        str(folder / "pairs"), str(clusters), config=config, save_cluster_id=True, lines_to_buffer=_BUFFERED
    )
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        step.run()
    names: list[np.ndarray] = [np.zeros(0, np.uint64)]
    numbers: list[np.ndarray] = [np.zeros(0, np.uint64)]
    for group, parts in enumerate(groups):
        path = clusters / f"{group:06d}.clusters"
        if path.exists():
            rows = np.fromfile(path, "<u4").reshape(-1, 2)
            own = np.concatenate([np.load(folder / "numbers" / f"{part:05d}.npy") for part, _ in parts])
            names.append(rows[:, 1].astype(np.uint64))
            numbers.append(own[rows[:, 0]])
    cluster, number = np.concatenate(names), np.concatenate(numbers)
    order = np.lexsort((number, cluster))
    _, smallest = np.unique(cluster[order], return_index=True)
    return np.sort(np.delete(number[order], smallest))

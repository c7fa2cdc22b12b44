"""``daybreak study-data``: what sources share, and what an earlier try has left."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from fake_studies import NAMES, write_texts
from small_texts import small_text

from daybreak.commands.study import read_variant
from daybreak.commands.study_data import Preparation, study_data
from daybreak.core.errors import UserError
from daybreak.data.filters.deduplication import DROPPED
from daybreak.data.pipeline import preprocessed as treated
from daybreak.data.pipeline.split_assignment import SourceReader, held_keys, run_first_pass, unprocessed
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece


def test_no_source_trains_on_what_another_holds_out(tmp_path: Path) -> None:
    """How much is held out depends on a source's size, so a document may be held out of a small one alone."""
    rng = random.Random(8)
    tales = [small_text(rng, 8) for _ in range(400)]
    for name, own in zip(NAMES, (tales[:200], tales)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in own))
    found = [
        treated.find_text(name, [str(tmp_path / f"{name}.jsonl")], document="auto", text_field="text") for name in NAMES
    ]
    small, large = (run_first_pass(SourceReader(one.name, one.corpus, tmp_path / one.name, 1)) for one in found)
    held = held_keys(large)
    assert len(held_keys(small)) and not len(np.setdiff1d(held_keys(small), held))  # by its text alone
    others = np.setdiff1d(np.concatenate([rows["key"] for rows, _ in large.documents(0)]), held)[:7]
    alone, together = unprocessed(large, held), unprocessed(large, np.concatenate([held, others]))
    assert (alone != together).sum() == 7 and set(together[alone != together]) == {DROPPED}


def test_data_of_other_settings_is_begun_anew(
    shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that was refused leaves data of its own tokenizer and threshold."""
    texts, recipe = write_texts(tmp_path), read_variant(f"tiny {' '.join(shape)}", tmp_path).recipe
    made: list[Path] = []

    def stop(*_: object, **__: object) -> None:
        made.extend(sorted(path for path in (tmp_path / "out" / "data").iterdir() if path.is_dir()))
        raise KeyboardInterrupt

    def prepare(threshold: float, cased: bool) -> None:
        how = Preparation(
            preprocessings=("raw", "filtered"),
            threshold=threshold,
            tokenizer=WordPiece(vocabulary=300, cased=cased),
            workers=1,
        )
        study_data(
            texts, seeds=1, recipe=recipe, out=tmp_path / "out", budget="20steps", threads=1, preparation=how
        )  # fmt: skip

    monkeypatch.setattr("daybreak.studies.experiment.play", stop)
    with pytest.raises(UserError, match="has no text left when filtered"):
        prepare(0.01, cased=False)
    left = open_shards(tmp_path / "out" / "data" / "tales-raw").manifest.tokenizer
    assert not made
    with pytest.raises(KeyboardInterrupt):
        prepare(0.9, cased=True)
    now = {open_shards(path).manifest.tokenizer for path in made}
    assert len(made) == 4 and len(now) == 1 and left not in now

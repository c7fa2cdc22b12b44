"""Parts of a run: the initial embeddings of its model, and the sequences that the held-out loss is measured on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_texts import write_records

from daybreak.commands.prepare import prepare
from daybreak.core.run_folder import RunFolder
from daybreak.core.world import World
from daybreak.data.sequences.shards import Shards, open_shards
from daybreak.data.sequences.word_vectors import WordVectors, word_vectors
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.modern import ModernEncoder
from daybreak.pretraining import setup as module
from daybreak.pretraining.setup import PretrainingJob, _phases, build, build_training, finish_on, heldout_validation
from daybreak.recipe import Origin, Recipe, load_recipe
from daybreak.schemas.run import Decisions
from daybreak.training.checkpoint import START
from daybreak.training.clock import ReplayClock
from daybreak.training.objectives.finish import Finish
from daybreak.training.phases import SecondPhase

DECISIONS = Decisions(
    device="cpu",
    threads=1,
    precision="float32",
    microbatch=8,
    world_size=1,
    reserve_seconds=1.0,
    validation_rows=8,
    validation_marks=2,
    matmul_gflops={},
    batch=8,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    prepare([write_records(folder / "records.jsonl")], folder / "data", tokenizer=WordPiece(vocabulary=300), workers=1)
    return folder / "data"


@pytest.fixture(scope="module")
def shards(data: Path) -> Shards:
    return open_shards(data)


def without_copy_heads() -> Recipe:
    tiny = load_recipe("tiny")
    assert isinstance(tiny.model, ModernEncoder)
    return replace(tiny, model=replace(tiny.model, copy_heads=False))


def embeddings(recipe: Recipe, shards: Shards, data: Path, *, init: bool = True) -> np.ndarray:
    model, *_ = build(recipe, shards, data, DECISIONS, init=init)
    return model.decoder.weight.detach().numpy().copy()


def test_embeddings_correlate_with_word_vectors_and_keep_their_norm(shards: Shards, data: Path) -> None:
    tiny = without_copy_heads()
    assert tiny.word_vectors.weight > 0
    table = embeddings(tiny, shards, data)
    plain = embeddings(replace(tiny, word_vectors=WordVectors()), shards, data)
    manifest = shards.manifest
    size, special = tiny.model.hidden_size, manifest.special  # type: ignore[attr-defined]
    vectors = word_vectors(shards.train, manifest.vocabulary, size, special, tiny.word_vectors, tiny.seed)
    known = vectors.any(axis=1)
    assert 0.2 < known.mean() < 1
    np.testing.assert_array_equal(table[~known], plain[~known])
    norms = np.linalg.norm(table, axis=1)
    cosines = (table * vectors).sum(axis=1)[known] / norms[known]
    assert abs(cosines.mean() - tiny.word_vectors.weight) < 0.05
    assert abs(np.sqrt((norms[known] ** 2).mean()) / np.linalg.norm(plain, axis=1).mean() - 1) < 0.05


def test_everything_else_starts_as_without_word_vectors(shards: Shards, data: Path) -> None:
    tiny = without_copy_heads()
    with_vectors = build(tiny, shards, data, DECISIONS, init=True)[0].state_dict()
    without = build(replace(tiny, word_vectors=WordVectors()), shards, data, DECISIONS, init=True)[0].state_dict()
    different = {name for name in without if not torch.equal(without[name], with_vectors[name])}
    assert different == {"embedding.weight", "output.weight"}


def test_a_model_that_is_loaded_anyway_gets_no_word_vectors(shards: Shards, data: Path) -> None:
    """A resumed run loads its checkpoint afterwards, a branch the checkpoint of its parent."""
    tiny = without_copy_heads()
    plain = embeddings(replace(tiny, word_vectors=WordVectors()), shards, data)
    np.testing.assert_array_equal(embeddings(tiny, shards, data, init=False), plain)
    branch = replace(tiny, origin=Origin(branch="runs/parent"))
    np.testing.assert_array_equal(embeddings(branch, shards, data), plain)


def test_a_text_of_too_few_passages_trains_without_a_finish_and_says_why(
    shards: Shards, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single document has several passages if it is long, and then spans to compare."""
    tiny = load_recipe("tiny")
    monkeypatch.setattr(module, "passages", lambda stream: 2)
    assert finish_on(tiny, shards) == tiny.finish and len(_phases(tiny, shards, data, DECISIONS)) == 2
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(module, "passages", lambda stream: 1)
    assert finish_on(tiny, shards) == Finish() and len(_phases(tiny, shards, data, DECISIONS)) == 1
    assert "fewer than 2 passages of at least 8 tokens" in capsys.readouterr().out


def test_the_heldout_loss_is_measured_all_over_the_text(shards: Shards, data: Path) -> None:
    """Against the sequences of the whole held-out text; runs until 2026-11-23 took the first ones."""
    recipe, per_row = replace(load_recipe("tiny"), length=16), 15
    whole = shards.heldout.read(0, len(shards.heldout))
    rows = whole[: len(whole) // per_row * per_row].reshape(-1, per_row)
    count = 3
    assert len(rows) > 2 * count, "the text must have more sequences than are measured"
    for first, wanted in ((False, [len(rows) * one // count for one in range(count)]), (True, range(count))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "ROWS", count)
            patch.setattr(module, "VALIDATION_LENGTH", 16)
            made = heldout_validation(recipe, shards, data, torch.device("cpu"), first=first)
        masked, positions, answers = made.cases()
        restored = masked.scatter(1, positions, answers)[:, 1:].tolist()
        assert sorted(restored) == sorted(rows[number].tolist() for number in wanted)


def test_the_rule_for_several_devices_reaches_every_rate(shards: Shards, data: Path, tmp_path: Path) -> None:
    recipe = replace(load_recipe("tiny"), phase2=SecondPhase(start=0.5, lr=1e-3), finish=Finish())
    job = PretrainingJob(recipe=recipe, shards=shards, data=data, run=RunFolder(tmp_path), started=0.0)
    rates = []
    for factor in (1.0, 4.0):
        chosen = replace(DECISIONS, rate_factor=factor)
        parts = build(recipe, shards, data, chosen, init=False)
        made = build_training(job, parts, chosen, World(), ReplayClock([]), START)
        rates.append([*(group["lr"] for group in made.optimizer.param_groups), made.phase2.lr])
    assert rates[1] == pytest.approx([4.0 * rate for rate in rates[0]])

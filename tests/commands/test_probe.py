"""The command: a model goes in, probes.json comes out; everything wrong is said before anything is measured."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from daybreak.commands.prepare import prepare
from daybreak.commands.probe import probe
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.evaluation.probes.retrieval import FEWEST, MOST_TOKENS, rank_passages
from daybreak.schemas.probes import Probes


@pytest.fixture
def tasks(tmp_path: Path) -> list[str]:
    """A task of labels and one of rated pairs, both as .toml."""
    chance = random.Random(8)
    words = "king dog river hill bread song".split()
    folder = tmp_path / "tasks"
    folder.mkdir()
    labeled = [f"the {chance.choice(words)} and the {word}\t{word}" for word in chance.choices(words[:2], k=60)]
    rated = []
    for _ in range(40):
        one, other = chance.choices(words, k=2)
        rated.append(f"the {one}\tthe {other}\t{int(one == other)}.5")
    for name, head, lines, more in (
        ("word", "text\tlabel", labeled, 'text = "text"'),
        ("same", "one\tother\tlabel", rated, 'text = ["one", "other"]\nkind = "regression"'),
    ):
        (folder / f"{name}.tsv").write_text("\n".join([head, *lines]) + "\n")
        toml = f'train = "{name}.tsv"\ndev = "{name}.tsv"\nlabel = "label"\n{more}\n'
        (folder / f"{name}.toml").write_text(toml)
    return [str(folder / f"{name}.toml") for name in ("word", "same")]


def test_a_run_with_its_data_is_probed_in_every_way(
    run: Path, data: Path, tasks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, run / "data")
    found = probe(run, tasks=tasks, rows=50)
    assert read_json(RunFolder(run).probes, Probes) == found
    assert found.model_name == "run"
    assert [(each.task, each.train_rows, len(each.layers)) for each in found.layer_probes] == [
        ("word", 50, found.layer_count + 1),
        ("same", 40, found.layer_count + 1),
    ]
    assert [(each.task, each.pairs) for each in found.similarity] == [("same", 40)]
    words = found.masked_words
    assert words is not None
    assert words.ranks_from == "training text"
    assert words.tokens == len(open_shards(data).heldout)
    assert words.lengths[0].length == words.trained_length
    said = capsys.readouterr().out
    for line in ("word: accuracy by layer", "same, zero-shot: spearman of cosines", "Masked tokens (", "Probes: "):
        assert line in said
    again = probe(run, tasks=tasks, rows=50)
    assert (again.layer_probes, again.similarity, again.masked_words) == (
        found.layer_probes,
        found.similarity,
        found.masked_words,
    )


def test_masked_words_of_an_export_from_prepared_data_and_from_plain_text_agree(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    prepared = probe(finished / "model", text=[str(data)], out=tmp_path / "prepared")
    assert (prepared.model_name, prepared.layer_probes) == (finished.name, [])
    tokenizer = json.loads((data / "tokenizer/tokenizer.json").read_text())
    pieces = {id: piece for piece, id in tokenizer["model"]["vocab"].items()}
    shards = open_shards(data)
    stream = shards.heldout.read(0, len(shards.heldout)).tolist()
    text = " ".join("\n" if id == 3 else pieces[id] for id in stream).replace(" ##", "")
    plain = tmp_path / "heldout.txt"
    plain.write_text(text)
    other = probe(finished / "model", text=[str(plain)], out=tmp_path / "plain")
    one, two = prepared.masked_words, other.masked_words
    assert one is not None and two is not None
    assert one.lengths == two.lengths and one.calibration == two.calibration
    assert (one.ranks_from, two.ranks_from, two.text) == ("training text", "this text", "heldout.txt")
    assert not (finished / "model" / "probes.json").exists()


def test_search_is_measured_in_each_text_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(3)
    words = "king dog river hill bread song tree stone bird light".split()

    def write(name: str, count: int) -> list[str]:
        # each text prefers words of its own, so that BM25 finds its passages more often than by chance
        texts = [" ".join(chance.choices(chance.sample(words, 4), k=90 + number)) for number in range(count)]
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return texts

    texts = {"many.jsonl": write("many.jsonl", 60), "other.jsonl": write("other.jsonl", 50)}
    write("few.jsonl", FEWEST - 1)
    files = [str(tmp_path / name) for name in (*texts, "few.jsonl")]
    probes = probe(finished / "model", text=files, out=tmp_path / "out")
    assert read_json(RunFolder(tmp_path / "out").probes, Probes) == probes
    assert [(found.text, found.passages, found.examples) for found in probes.search] == [
        ("many.jsonl", 60, []), ("other.jsonl", 50, []),
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "Search in many.jsonl, recall at 10 among 60 passages: bm25 " in said
    assert "Search in few.jsonl is not measured: it needs 50 passages of 85 words." in said
    folder = finished / "model"
    tokenizer, stock = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embed(written: Sequence[str]) -> np.ndarray:
        rows = (tokenizer(text, truncation=True, max_length=stock_length, return_tensors="pt") for text in written)
        with torch.inference_mode():
            means = torch.cat([stock(**row).last_hidden_state.mean(dim=1) for row in rows])
        return torch.nn.functional.normalize(means, dim=1).numpy()

    stock_length = min(MOST_TOKENS, stock.config.max_position_embeddings)
    for found in probes.search:
        expected = rank_passages(embed, texts[found.text])
        assert expected is not None
        for ours, theirs in zip(found.rankers, expected.rankers, strict=True):
            assert ours.ranker == theirs.ranker and ours.scores == pytest.approx(theirs.scores, abs=1e-6)


def test_search_in_prepared_data_is_that_of_its_documents(finished: Path, tmp_path: Path) -> None:
    chance = random.Random(4)
    words = "king dog river hill bread song tree stone bird light".split()
    texts = [" ".join(chance.choices(chance.sample(words, 4), k=90)) for _ in range(3000)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare([corpus], tmp_path / "data", tokenizer=Existing(folder=str(finished / "model")))
    (found,) = probe(finished / "model", text=[str(tmp_path / "data")], out=tmp_path / "out").search
    assert found.text == "held-out split of the prepared data" and found.passages >= FEWEST
    assert found.rankers[0].scores["recall_10"] > 20 / found.passages  # twice what chance gives


def test_what_is_wrong_is_said_in_one_sentence_before_anything_is_measured(
    finished: Path, data: Path, tasks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*arguments: object) -> None:
        raise AssertionError("something was measured")

    for name in ("layer_probes.probe_layers", "layer_probes.probe_similarity", "masked_words.probe_masked_words"):
        monkeypatch.setattr(f"daybreak.evaluation.probes.{name}", measured)
    model, out = finished / "model", tmp_path / "out"
    short = tmp_path / "short.txt"
    short.write_text("the\n")
    with pytest.raises(UserError, match="0 training rows are too few"):
        probe(model, tasks=tasks, out=out, rows=0)
    with pytest.raises(UserError, match="There is nothing to probe"):
        probe(model, out=out)
    with pytest.raises(UserError, match="There is no model folder"):
        probe(tmp_path / "nowhere", tasks=tasks, out=out)
    with pytest.raises(UserError, match=r"has no config\.json"):
        probe(data, tasks=tasks, out=out)
    with pytest.raises(UserError, match="There is no task 'colaa'"):
        probe(model, tasks=["colaa"], task_dir=tmp_path, out=out)
    with pytest.raises(UserError, match="Task 'cola' needs"):
        probe(model, task_dir=tmp_path, out=out)
    with pytest.raises(UserError, match=r"There is no '.*missing\.txt'"):
        probe(model, tasks=tasks, text=[str(tmp_path / "missing.txt")], out=out)
    with pytest.raises(UserError, match="tokens, too few to mask some"):
        probe(model, tasks=tasks, text=[str(short)], out=out)
    with pytest.raises(UserError, match="cannot be combined with other text"):
        probe(model, text=[str(short), str(data)], out=out)
    with pytest.raises(UserError, match="is not a folder"):
        probe(model, tasks=tasks, out=short)
    assert not (out / "probes.json").exists()


def test_data_of_another_tokenizer_are_refused_or_left_out(run: Path, data: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(data, run / "data")
    known = probe(run, text=[str(corpus)], out=tmp_path / "a").masked_words
    path = run / "model/tokenizer.json"
    path.write_text(path.read_text() + "\n")
    for text in ([], [str(data)]):
        with pytest.raises(UserError, match="were made with another tokenizer than that of"):
            probe(run, text=text)
    words = probe(run, text=[str(corpus)], out=tmp_path / "b").masked_words
    assert known is not None and words is not None
    assert (known.ranks_from, words.ranks_from) == ("training text", "this text")
    assert words.lengths == known.lengths


def test_a_run_without_a_model_is_refused(run: Path) -> None:
    shutil.rmtree(run / "model")
    with pytest.raises(UserError, match="is a finished run without its model"):
        probe(run, text="held-out.txt")
    (run / "summary.json").unlink()
    with pytest.raises(UserError, match="has no model yet"):
        probe(run, text=["heldout.txt"])

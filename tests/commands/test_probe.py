"""The command: a model goes in, probes.json comes out; everything wrong is said before anything is measured."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from daybreak.commands.probe import probe
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.data.sequences.shards import open_shards
from daybreak.schemas.probes import Probes


@pytest.fixture
def tasks(tmp_path: Path) -> list[str]:
    """A task of labels and one of rated pairs, both as .toml."""
    chance = random.Random(8)
    words = "king dog river hill bread song".split()
    folder = tmp_path / "tasks"
    folder.mkdir()
    labelled = [f"the {chance.choice(words)} and the {word}\t{word}" for word in chance.choices(words[:2], k=60)]
    rated = []
    for _ in range(40):
        one, other = chance.choices(words, k=2)
        rated.append(f"the {one}\tthe {other}\t{int(one == other)}.5")
    for name, head, lines, more in (
        ("word", "text\tlabel", labelled, 'text = "text"'),
        ("same", "one\tother\tlabel", rated, 'text = ["one", "other"]\nkind = "regression"'),
    ):
        (folder / f"{name}.tsv").write_text("\n".join([head, *lines]) + "\n")
        toml = f'train = "{name}.tsv"\ndev = "{name}.tsv"\nlabel = "label"\n{more}\n'
        (folder / f"{name}.toml").write_text(toml)
    return [str(folder / f"{name}.toml") for name in ("word", "same")]


def test_a_run_with_its_data_is_probed_in_every_way(
    finished: Path, data: Path, tasks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "tiny"
    shutil.copytree(finished, run)
    shutil.copytree(data, run / "data")
    found = probe(run, tasks=tasks, rows=50)
    assert read_json(RunFolder(run).probes, Probes) == found
    assert found.model_name == "tiny"
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
    for line in ("word: accuracy by layer", "same, zero-shot: spearman of cosines", "Masked words (", "Probes: "):
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


def test_data_of_another_tokenizer_are_refused_or_left_out(
    finished: Path, data: Path, corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
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


def test_a_run_without_a_model_is_refused(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, ignore=shutil.ignore_patterns("model"))
    with pytest.raises(UserError, match="has no model yet"):
        probe(run, text=["heldout.txt"])

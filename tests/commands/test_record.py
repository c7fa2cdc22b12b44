"""``daybreak record``: what is filed of a real run, what never is, and which runs are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_tasks
import torch
from fake_runs import WriteRun
from in_process import command
from safetensors.torch import load_file, save_file
from small_texts import DOES, WHAT, WHO

from daybreak.commands import record as recording
from daybreak.commands.leaderboard import leaderboard
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict
from daybreak.recipe import load_recipe
from daybreak.schemas.records import RECORD_FILE, RULES, Record, Verified
from daybreak.schemas.run import Environment, RankerScore, Retrieval, RetrievalExample, Summary
from daybreak.studies.record_writer import describe, evidence

ROOT = Path(__file__).resolve().parents[2]
Refused = Callable[..., str]
KEPT = {"data.json", "decisions.json", "environment.json", "metrics.jsonl", "recipe.json", "summary.json", RECORD_FILE}
FROM_FILES = ("load", "others", "void")
"""What a study's file beside the run may have told, which is not filed."""
pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.fixture
def _unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused below is refused before any step is run again."""

    def verify(*_: object, **__: object) -> None:
        raise AssertionError("a step was run again")

    monkeypatch.setattr(recording, "verify", verify)


def of_its_files(folder: Path) -> bool:
    """Whether record.json says what the files beside it say."""
    found: Record = read_json(folder / RECORD_FILE, Record)
    text = (found.data.train, found.data.heldout)
    made = describe(RunFolder(folder), verified=found.verified, text=text, commit=found.commit)
    told = {name: getattr(found, name) for name in FROM_FILES}
    return replace(made, rules=found.rules, **told) == found


# ---------------------------------------------------------------- a real run


def test_a_run_is_recorded_with_its_evidence_and_nothing_else(run: Path, data: Path, tmp_path: Path) -> None:
    records = tmp_path / "records"
    command("record", run, "--data", data, "--out", records, "--last", 5)
    (folder,) = records.iterdir()
    assert {path.name for path in folder.iterdir()} == KEPT
    found: Record = read_json(folder / RECORD_FILE, Record)
    summary, machine = read_json(run / "summary.json", Summary), read_json(run / "environment.json", Environment)
    assert folder.name == f"{found.date}-tiny-40steps-seed-0" and found.machine == machine
    assert (found.rules, found.seed, found.steps, found.device) == (RULES, 0, 40, "cpu")
    assert (found.budget, found.seconds, found.elapsed) == ("40steps", None, summary.elapsed)
    assert (found.loss, found.accuracy) == (summary.validation.loss, summary.validation.accuracy)
    assert found.fingerprint == read_json(run / "recipe.json")["fingerprint"]
    assert found.verified is not None and found.verified.loss == found.loss
    assert (found.verified.first, found.verified.last) == (16, 40)
    assert found.verified.weights[-1] == "the exported model"
    assert found.void == "the machine load was not recorded"
    assert found.data.train and found.data.heldout
    assert found.data.tokenizer == read_json(data / "manifest.json")["tokenizer"]
    assert of_its_files(folder)
    copied = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert copied == [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert load_recipe(folder) == load_recipe(run)
    assert f"[{folder.name}](records/{folder.name}/) (`40steps`)." in leaderboard(records, tmp_path / "board.md")


def test_an_evaluation_during_the_repeated_steps_leaves_one_record(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take minutes; its results stand in both files of the record or in none."""
    verify = recording.verify

    def beside_an_evaluation(*arguments: Any, **options: Any) -> Any:
        found = verify(*arguments, **options)
        write_json(run / "results.json", [small_tasks.result("cola", {"mcc": [0.1, 0.2, 0.3]}, model_name="run")])
        return found

    monkeypatch.setattr(recording, "verify", beside_an_evaluation)
    folder = recording.record(run, out=tmp_path / "records", data=data, name="beside", last=5)
    assert (folder / "results.json").is_file() and of_its_files(folder)


def test_no_word_of_the_text_and_no_path_is_recorded(run: Path, data: Path, corpus: Path, tmp_path: Path) -> None:
    folder = recording.record(run, out=tmp_path / "records", data=data, name="quiet", last=5)
    filed = "\n".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    text = {*WHO, *DOES, *WHAT}
    assert len(words(read_json(run / "examples.json")) & text) > 5
    assert words([*evidence(RunFolder(folder)).values(), read_json(folder / RECORD_FILE)]) & text == set()
    places = {str(place) for path in (run, data, corpus) for place in (path, path.parent, path.resolve().parent)}
    assert [place for place in places if place in filed] == []


def test_search_is_recorded_without_its_examples(run: Path) -> None:
    ranker = RankerScore(ranker="bm25", scores={"mrr": 0.5}, intervals={"mrr": [0.4, 0.6]}, above_bm25={})
    example = RetrievalExample(query="who is she", passage="she is here", rank=2, first="he is there")
    write_json(run / "retrieval.json", Retrieval(passages=60, rankers=[ranker], seconds=1.0, examples=[example]))
    found = from_dict(Retrieval, evidence(RunFolder(run))["retrieval.json"], "retrieval.json")
    assert found == Retrieval(passages=60, rankers=[ranker], seconds=1.0)


def strings(value: Any) -> Iterator[str]:
    """All strings among plain values; not the names of fields."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from strings(inner)


def words(value: Any) -> set[str]:
    return {word for text in strings(value) for word in re.findall("[a-z]+", text.lower())}


def flip(file: Path) -> None:
    tensors = load_file(file)
    first = sorted(tensors)[0]
    tensors[first].view(-1).view(torch.int32)[0] ^= 1
    save_file(tensors, file, metadata={"format": "pt"})


def change(path: Path, **values: Any) -> None:
    """Change values of a JSON file; ``validation__loss`` is a value within a value."""
    plain = json.loads(path.read_text())
    for name, value in values.items():
        *outer, last = name.split("__")
        within = plain
        for key in outer:
            within = within[key]
        within[last] = value
    path.write_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("tampered", "words"),
    [
        (lambda run: flip(run / "model" / "model.safetensors"), "differs from its records"),
        (lambda run: change(run / "summary.json", validation__loss=1.0), "the held-out loss is"),
        (lambda run: change(run / "summary.json", validation__accuracy=0.9), "the held-out accuracy is"),
        (lambda run: change(run / "summary.json", steps=41), "says 41 steps"),
        (lambda run: change(run / "summary.json", elapsed=0.01), "says 40 steps in 0.0 s"),
    ],
    ids=["weights", "loss", "accuracy", "steps", "time"],
)
def test_what_was_changed_since_is_not_recorded(
    tampered: Callable[[Path], None], words: str, run: Path, data: Path, tmp_path: Path, refused: Refused
) -> None:
    tampered(run)
    said = " ".join(refused("record", run, "--data", data, "--out", tmp_path / "records", "--last", 4).split())
    assert words in said
    assert list((tmp_path / "records").iterdir()) == []


def test_a_record_that_cannot_be_written_leaves_nothing(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        if path.name == RECORD_FILE:
            raise UserError(f"'{path}' cannot be written (no space left).", "Free disk space.")
        write_json(path, value)

    monkeypatch.setattr(recording, "write_json", full)
    monkeypatch.setattr(recording, "verify", lambda *_, **__: verified(40))
    with pytest.raises(UserError, match="no space left"):
        recording.record(run, out=tmp_path / "records", data=data)
    assert list((tmp_path / "records").iterdir()) == []


def verified(last: int) -> Verified:
    return Verified(first=0, last=last, gradient_norms=last, weights=["the exported model"])


# ---------------------------------------------------------------- what is refused at once


@pytest.mark.usefixtures("_unverified")
@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"ended": False}, "is not finished. Give its command again, and record it then."),
        ({"passed": False}, "did not pass the parity check (logits differ by 0.4): it has no result."),
        ({"seconds": 184.0}, "ended 3.1 s after its budget of 3m, where RULES.md allows 1.8 s."),
        ({"seconds": 178.0}, "ended 2.9 s before its budget of 3m"),
    ],
    ids=["unfinished", "gate", "late", "early"],
)
def test_a_run_that_has_no_result_is_refused(
    made: dict[str, Any], words: str, write_run: WriteRun, tmp_path: Path, refused: Refused
) -> None:
    run = write_run(**made)
    said = " ".join(refused("record", run, "--out", tmp_path / "records").split())
    assert words in said and not (tmp_path / "records").exists()


@pytest.mark.usefixtures("_unverified")
def test_fewer_than_no_steps_are_refused(write_run: WriteRun, tmp_path: Path, refused: Refused) -> None:
    said = " ".join(refused("record", write_run(), "--out", tmp_path / "records", "--last", "-3").split())
    assert "--last is -3. Give a number of at least 0." in said


@pytest.mark.usefixtures("_unverified")
def test_paths_may_be_strings(write_run: WriteRun, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not finished"):
        recording.record(str(write_run(ended=False)), out=str(tmp_path / "records"))


@pytest.mark.usefixtures("_unverified")
def test_a_name_is_one_folder_and_taken_once(write_run: WriteRun, tmp_path: Path, refused: Refused) -> None:
    run, records = write_run(seed=3), tmp_path / "records"
    day = describe(RunFolder(run)).date
    for name, taken in (("first", f"{day}-first"), ("", f"{day}-tiny-3m-seed-3")):
        (records / taken).mkdir(parents=True)
        said = " ".join(refused("record", run, "--out", records, *(["--name", name] if name else [])).split())
        assert f"The record '{records / taken}' exists, and records are never edited. Choose another --name." in said
    said = " ".join(refused("record", run, "--out", records, "--name", "../mini wiki").split())
    assert "'../mini wiki' is not a valid record name. Use a name such as 'mini-wiki'." in said
    assert "is not a run folder" in refused("record", tmp_path, "--out", records)
    assert len(list(records.iterdir())) == 2


# ---------------------------------------------------------------- the records of this project


def test_no_record_was_edited() -> None:
    filed = [path.parent for path in (ROOT / "records").glob(f"*/{RECORD_FILE}")]
    assert [folder.name for folder in filed if not of_its_files(folder)] == []

"""``daybreak study-data``: what is held out, what each preprocessing leaves, and a small one from text to verdict."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from fake_studies import NAMES, write_texts
from small_texts import small_text

from daybreak.commands.record import record
from daybreak.commands.study import read_variant
from daybreak.commands.study_data import Preparation, _named_texts, _variants, study_data
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.data.filters.deduplication import DROPPED
from daybreak.data.pipeline import preprocessed as treated
from daybreak.data.pipeline.corpus import bundle_files
from daybreak.data.pipeline.preprocessed import (
    PREPROCESSINGS,
    SourceReader,
    check_preprocessings,
    held_keys,
    unprocessed,
)
from daybreak.data.readers import hub
from daybreak.data.readers.inputs import DATA_SET
from daybreak.data.sequences.sampler import PackedRows
from daybreak.data.sequences.shards import TokenStream, open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece, load_tokenizer
from daybreak.recipe import load_recipe
from daybreak.schemas.run import Summary
from daybreak.schemas.studies import DataStudy, PreprocessedText
from daybreak.studies.cell_runner import Cell, StudyFolder

TINY = load_recipe("tiny")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return write_texts(tmp_path_factory.mktemp("texts"))


def made(texts: dict[str, list[str]], out: Path, *preprocessings: str, workers: int = 1) -> list[PreprocessedText]:
    found = [treated.find_text(name, texts[name], document="auto", text_field="text") for name in NAMES]
    (out / "work").mkdir(parents=True, exist_ok=True)
    config = WordPiece(vocabulary=300)
    return treated.make_texts(
        found, preprocessings, config, out / "work", out / "data", threshold=0.4, workers=workers
    )[1]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(texts: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("datatrove")
    out = tmp_path_factory.mktemp("prepared")
    made(texts, out, *PREPROCESSINGS)
    return out / "data"


def test_a_source_that_the_tokenizer_does_not_know_is_named(
    texts: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [chr(0x4E00 + 37 * number % 20_000) for number in range(3000)]
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("\n".join("".join(words[start : start + 40]) for start in range(0, 3000, 8)), "utf-8")
    found = [treated.find_text(name, texts[name], document="auto", text_field="text") for name in NAMES]
    found.append(treated.find_text("foreign", [str(foreign)], document="line", text_field="text"))
    (tmp_path / "work").mkdir()
    config = WordPiece(vocabulary=300)
    treated.make_texts(found, ["raw"], config, tmp_path / "work", tmp_path / "data", threshold=0.4, workers=1)
    warned = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning")]
    assert len(warned) == 1 and warned[0].startswith("Warning for the source 'foreign': ")
    assert "of the tokens of the held-out text are unknown to this tokenizer" in warned[0]


def bare(text: str) -> str:
    """Without spaces, which a tokenizer does not keep."""
    return "".join(text.split())


def documents(data: Path, split: str) -> list[str]:
    """The documents of a split, in their order, as bare text."""
    stream: TokenStream = getattr(open_shards(data), split)
    tokenizer = load_tokenizer(data / "tokenizer")
    ends = stream.document_ends().astype(np.int64).tolist()
    return [bare(tokenizer.decode(stream.read(start, stop - 1).tolist())) for start, stop in zip([0, *ends], ends)]


def test_one_tokenizer_and_the_same_text_held_out_under_all_preprocessings(prepared: Path) -> None:
    folders = sorted(path.name for path in prepared.iterdir())
    assert folders == [f"{name}-{one}" for name in sorted(NAMES) for one in ("deduplicated", "filtered", "raw")]
    assert len({open_shards(prepared / folder).manifest.tokenizer for folder in folders}) == 1
    for name in NAMES:
        held = {tuple(documents(prepared / folder, "heldout")) for folder in folders if folder.startswith(name)}
        assert len(held) == 1 and held.pop()
    assert documents(prepared / "tales-raw", "heldout") != documents(prepared / "mixed-raw", "heldout")


def test_no_copy_of_what_is_held_out_is_trained_on(prepared: Path) -> None:
    for data in prepared.iterdir():
        assert not set(documents(data, "heldout")) & set(documents(data, "train")), data.name


def test_each_preprocessing_stands_on_those_before_it(prepared: Path, texts: dict[str, list[str]]) -> None:
    raw, filtered, deduplicated = (
        documents(prepared / f"mixed-{one}", "train") for one in ("raw", "filtered", "deduplicated")
    )
    held = set(documents(prepared / "mixed-raw", "heldout"))
    read = [bare(json.loads(line)["text"]) for line in Path(texts["mixed"][0]).read_text().splitlines()]
    assert raw == [text for text in read if text not in held]  # copies and all
    junk = {text for text in raw if "@" in text}
    assert junk and filtered == [text for text in raw if text not in junk]
    once = list(dict.fromkeys(filtered))
    assert len(once) < len(filtered)
    # Of a near copy and what it copies the first stays, that is the original, unless that is held out.
    near = {text for text in once if text.endswith("andsoitwas.") and text.removesuffix("andsoitwas.") in once}
    assert len(near) > 20
    assert deduplicated == [text for text in once if text not in near]


def test_what_is_left_is_counted(texts: dict[str, list[str]], prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "data")
    found = {(one.source, one.preprocessing): one for one in made(texts, tmp_path, *PREPROCESSINGS)}
    assert list(found) == [(name, one) for name in NAMES for one in PREPROCESSINGS]
    for one in found.values():
        train = open_shards(prepared / one.folder).manifest.train
        assert (one.documents, one.tokens) == (train.documents, train.tokens)
        assert one.kept == one.tokens / found[one.source, "raw"].tokens
    assert found["mixed", "sorted"].folder == "mixed-filtered" and found["tales", "raw"].kept == 1.0
    assert (
        found["tales", "filtered"].kept == 1.0 > found["mixed", "filtered"].kept > found["mixed", "deduplicated"].kept
    )


def test_a_preparation_that_broke_goes_on_and_preprocessings_stand_alone_too(
    texts: dict[str, list[str]], prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, tries = treated.encoding.encode_part, []

    def torn(*arguments: Any) -> int:
        tries.append(arguments)
        if len(tries) == 2:
            raise MemoryError
        return encode(*arguments)

    monkeypatch.setattr(treated.encoding, "encode_part", torn)
    with pytest.raises(MemoryError):
        made(texts, tmp_path, "raw", "deduplicated")
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["tales-raw"]
    alone = made(texts, tmp_path, "raw", "deduplicated")
    assert [one.folder for one in alone] == [f"{name}-{one}" for name in NAMES for one in ("raw", "deduplicated")]
    assert documents(tmp_path / "data" / "mixed-raw", "train") == documents(prepared / "mixed-raw", "train")
    junk = sum("@" in text for text in documents(tmp_path / "data" / "mixed-deduplicated", "train"))
    assert junk  # nobody filtered


def test_a_text_in_many_parts_gives_the_same(
    texts: dict[str, list[str]], prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treated, "bundle_files", lambda files, rule, **more: bundle_files(files, rule, 9_000, **more))
    text = treated.find_text("mixed", texts["mixed"], document="auto", text_field="text")
    assert len(text.corpus.parts) > 5
    made(texts, tmp_path, *PREPROCESSINGS)
    for data in prepared.iterdir():
        for split in ("train", "heldout"):
            assert documents(tmp_path / "data" / data.name, split) == documents(data, split), data.name


def test_a_source_may_be_a_public_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "inspect", lambda wanted: (0, 0, wanted.revision))
    found = [
        treated.find_text("web", [given], document="auto", text_field="text")
        for given in ("c4", hub.KNOWN_CORPORA["c4"].address)
    ]
    assert found[0] == found[1] and [file.form for file in found[0].corpus.files] == [DATA_SET]


@pytest.mark.parametrize(
    ("preprocessings", "words"),
    [
        (("raw",), "Write raw first and then others"),
        (("filtered", "raw"), "Write raw first and then others"),
        (("raw", "raw"), "Write raw first and then others"),
        (("raw", "filterd"), "Did you mean 'filtered'?"),
    ],
)
def test_preprocessings_that_cannot_be_compared_are_refused(preprocessings: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError) as refused:
        check_preprocessings(preprocessings)
    assert words in str(refused.value)


def test_deduplication_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daybreak.data.pipeline.preprocessed.find_spec", lambda name: None)
    check_preprocessings(("raw", "filtered", "sorted"))
    with pytest.raises(UserError, match=r"pip install 'datatrove>=0\.10'"):
        check_preprocessings(("raw", "deduplicated"))


def test_a_preprocessing_that_leaves_nothing_is_named(texts: dict[str, list[str]], tmp_path: Path) -> None:
    text = treated.find_text("tales", texts["tales"], document="auto", text_field="text")
    (tmp_path / "work").mkdir()
    with pytest.raises(UserError, match="The source 'tales' has no text left when filtered"):
        treated.make_texts(
            [text], ("raw", "filtered"), WordPiece(vocabulary=300), tmp_path / "work", tmp_path / "data",
            threshold=0.01, workers=1,
        )  # fmt: skip


def rows_of(*preprocessings: str, recipe: Any = TINY, order: str = "full-stops") -> list[Any]:
    found = _variants({"a": [""]}, recipe, Preparation(preprocessings=preprocessings, order=order))
    assert [one.name for one in found] == [f"a, {preprocessing}" for preprocessing in preprocessings]
    return [one.recipe.rows for one in found]


def test_only_the_order_differs_where_rows_are_sorted() -> None:
    packed, ordered = PackedRows(), PackedRows(order="full-stops")
    assert rows_of("raw", "filtered", "sorted", "deduplicated") == [packed, packed, ordered, ordered]
    assert rows_of("raw", "sorted", recipe=replace(TINY, rows=ordered)) == [packed, ordered]
    assert rows_of("raw", "filtered") == [TINY.rows, TINY.rows]
    with pytest.raises(UserError, match="does not sort"):
        rows_of("raw", "sorted", order="shuffled")
    with pytest.raises(UserError, match=r"--rows\.order cannot be"):
        rows_of("raw", "sorted", order="stops")
    with pytest.raises(UserError, match="SentencePairs cannot be sorted"):
        rows_of("raw", "sorted", recipe=load_recipe("bert-2018"))


@pytest.mark.parametrize(
    ("given", "wanted"), [({}, ("auto", 820)), ({"document": "file", "chunk_characters": 200}, ("file", 200))]
)
def test_documents_are_the_recipes_unless_an_option_says_otherwise(
    given: dict[str, Any], wanted: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def find(name: str, inputs: list[str], *, document: str, chunk_characters: int, **_: object) -> None:
        asked.append((document, chunk_characters))
        raise KeyboardInterrupt

    monkeypatch.setattr("daybreak.commands.study_data.find_text", find)
    preparation = Preparation(preprocessings=("raw", "filtered"), **given)
    with pytest.raises(KeyboardInterrupt):
        study_data({"a": ["a.txt"]}, recipe=load_recipe("bert-8gb"), out=tmp_path, budget="3m", preparation=preparation)
    assert asked == [wanted]


def test_texts_have_names() -> None:
    assert _named_texts(("a=x.txt", "b=y=z.txt", "a=w.txt")) == {"a": ["x.txt", "w.txt"], "b": ["y=z.txt"]}
    for wrong in ("x.txt", "=x.txt", "a="):
        with pytest.raises(UserError, match="is not NAME=TEXT"):
            _named_texts((wrong,))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "No text is given."),
        (("a=nowhere.txt",), "The source 'a': There is no 'nowhere.txt'."),
        (("a/b=nowhere.txt",), "'a/b' is not a valid name of a source."),
        (("a=nowhere.txt", "--recipe", "tinny"), "There is no recipe 'tinny'."),
        (("a=nowhere.txt", "--recipe", "tiny --fill-memory"), "--fill-memory is no part of a recipe"),
        (("a=nowhere.txt", "--preprocessings", "raw"), "Write raw first"),
        (("a=nowhere.txt", "--seeds", "0"), "0 seeds are too few."),
        (("a=nowhere.txt", "--threshold", "1.5"), "A threshold of 1.5 is not possible."),
        (("a=nowhere.txt", "--threshold", "0"), "A threshold of 0.0 is not possible."),
        (
            ("a=nowhere.txt", "--preprocessings", "raw,sorted", "--threshold", "0.9"),
            "No preprocessing filters with a threshold. Add filtered to --preprocessings, or leave --threshold out.",
        ),
        (
            ("a=nowhere.txt", "--preprocessings", "raw,filtered", "--order", "prevalence"),
            "No preprocessing reads the sequences in the order 'prevalence'. Add sorted to --preprocessings",
        ),
        (("a=nowhere.txt", "--tokenizer-from", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_work_is_said_first(
    arguments: tuple[str, ...], words: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = refused("study-data", *arguments, "--budget", "3m", "--out", "out")
    assert words in " ".join(told.split())
    assert not (tmp_path / "out" / "data").exists()


def test_from_text_to_verdicts(
    texts: dict[str, list[str]], shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ungated: None
) -> None:
    ran: list[str] = []
    later = 0

    def train(cell: Cell, place: StudyFolder, lock: TextIO) -> None:
        """The cell in this process, without its gate."""
        run = RunFolder(place.folder(cell))
        if not run.summary.exists():
            from daybreak.commands.pretrain import pretrain

            ran.append(cell.name)
            recipe = replace(load_recipe(cell.words[0]), budget=place.budget, seed=cell.seed + later)
            pretrain(recipe, data=cell.data, out=run.path)
            # Another model may take the same time.
            write_json(run.summary, replace(read_json(run.summary, Summary), elapsed=60.0))

    monkeypatch.setattr("daybreak.studies.experiment.train_cell", train)
    out = tmp_path / "out"
    asked: dict[str, Any] = dict(
        recipe=read_variant(f"tiny {' '.join(shape)}", tmp_path).recipe,
        out=out,
        budget="20steps",
        threads=1,
        preparation=Preparation(preprocessings=("raw", "sorted"), workers=1),
    )
    study_data(texts, seeds=1, **asked)
    assert ran == ["tales-raw-seed-0", "tales-sorted-seed-0", "mixed-raw-seed-0", "mixed-sorted-seed-0"]
    found = study_data(texts, seeds=1, **asked)
    assert len(ran) == 4 and read_json(out / "study-data.json", DataStudy) == found and found.finished
    assert [(one.a, one.b) for one in found.comparisons] == [
        (f"{name}, raw", f"{name}, sorted") for name in NAMES
    ]  # fmt: skip
    for cell in found.cells:
        summary: Summary = read_json(RunFolder(out / cell.folder).summary, Summary)
        own = cell.variant.partition(",")[0]
        # The published model, loaded again, on the same positions: what the run itself said of them.
        assert cell.others[own] == pytest.approx(summary.validation.loss, abs=1e-4)
        other = NAMES[own == NAMES[0]]
        assert set(cell.others) == set(NAMES) and cell.others[other] != cell.others[own]
    told = (out / "study-data.md").read_text()
    assert "| evaluated on tales | evaluated on mixed |" in told and "mixed, sorted (B) against mixed, raw (A)" in told
    assert told.startswith("# tales, mixed x raw, sorted, 20steps each\n")
    page = (out / "report.html").read_text()
    assert "Comparison of texts" in page and "mixed, sorted (B) against mixed, raw (A)" in page
    filed = record(out, out=tmp_path / "records", name="texts")
    assert {path.name for path in filed.iterdir()} == {"study-data.json", "study-data.md"}
    assert read_json(filed / "study-data.json", DataStudy) == found and (filed / "study-data.md").read_text() == told
    assert str(tmp_path) not in (filed / "study-data.json").read_text()
    with pytest.raises(UserError, match="was started on other text"):
        study_data({"tales": texts["tales"]}, seeds=1, **asked)
    shutil.rmtree(out / found.cells[0].folder)
    later = 1  # another model, which is evaluated anew
    again, *others = study_data(texts, seeds=1, **asked).cells
    assert again.loss != found.cells[0].loss and others == found.cells[1:]
    assert again.others["tales"] == pytest.approx(again.loss, abs=1e-4)


def test_what_another_put_into_the_folder_is_not_deleted(texts: dict[str, list[str]], tmp_path: Path) -> None:
    """A run folder, or one's own texts, named with --out by mistake."""
    own = tmp_path / "data" / "thesis.tex"
    own.parent.mkdir()
    own.write_text("years of work")
    (tmp_path / ".lock").touch()  # of a study that ended before it wrote anything
    plain = Preparation(preprocessings=("raw", "filtered"))
    with pytest.raises(UserError, match="contains other files"):
        study_data(texts, recipe=TINY, out=tmp_path, budget="20steps", threads=1, preparation=plain)
    assert own.read_text() == "years of work"


def test_data_of_another_try_gives_way(
    texts: dict[str, list[str]], shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that ended before its first cell leaves data of its own tokenizer and threshold, or none."""
    recipe, data = read_variant(f"tiny {' '.join(shape)}", tmp_path).recipe, tmp_path / "out" / "data"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def tokenizers(threshold: float, cased: bool, ended: type[BaseException]) -> list[str]:
        """The tokenizer of each text, after a try that ended with an error."""
        tokenizer = WordPiece(vocabulary=300, cased=cased)
        how = Preparation(preprocessings=("raw", "filtered"), threshold=threshold, tokenizer=tokenizer, workers=1)
        with pytest.raises(ended):
            study_data(texts, recipe=recipe, out=tmp_path / "out", budget="20steps", threads=1, preparation=how)
        return [open_shards(path.parent).manifest.tokenizer for path in data.glob("*/manifest.json")]

    monkeypatch.setattr("daybreak.studies.experiment.run_cells", stop)
    assert tokenizers(0.01, cased=False, ended=UserError) == []  # nothing is left when filtered
    first = tokenizers(0.9, cased=True, ended=KeyboardInterrupt)
    (tmp_path / "out" / "study-data.json").unlink()
    second = tokenizers(0.9, cased=False, ended=KeyboardInterrupt)
    assert len(first) == len(second) == 4 and len({*first}) == len({*second}) == 1 and first != second


def test_no_source_trains_on_what_another_holds_out(tmp_path: Path) -> None:
    """How much is held out depends on a source's size, so a document may be held out of a small one alone."""
    rng = random.Random(8)
    tales = [small_text(rng, 8) for _ in range(400)]
    for name, own in zip(NAMES, (tales[:200], tales)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in own))
    found = [
        treated.find_text(name, [str(tmp_path / f"{name}.jsonl")], document="auto", text_field="text") for name in NAMES
    ]
    small, large = (SourceReader(one.name, one.corpus, tmp_path / one.name, 1).first_pass() for one in found)
    held = held_keys(large)
    assert len(held_keys(small)) and not len(np.setdiff1d(held_keys(small), held))  # by its text alone
    others = np.setdiff1d(np.concatenate([rows["key"] for rows, _ in large.documents(0)]), held)[:7]
    alone, together = unprocessed(large, held), unprocessed(large, np.concatenate([held, others]))
    assert (alone != together).sum() == 7 and set(together[alone != together]) == {DROPPED}

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from daybreak.core.errors import ReadFailed, UserError
from daybreak.data.readers import hub
from daybreak.data.readers.documents import Skips, choose_rule, read_documents
from daybreak.data.readers.hub import KNOWN_CORPORA, DataSet, inspect, parse, read_records
from daybreak.data.readers.inputs import DATA_SET, ByteCounter, find_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of two splits in a local folder."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = tmp_path / "set"
    found.mkdir()
    for split, count in (("train", 5), ("test", 2)):
        records = [{"text": f" {split}  {number} ", "label": number} for number in range(count)]
        (found / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return found


def texts(given: str, field: str = "text", skips: Skips | None = None) -> list[str]:
    files = find_files([given])
    found = read_documents(files, choose_rule(files, "auto"), field, skips or Skips(), ByteCounter())
    return [document.text for document in found]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("hf://owner/name", ("owner/name", "", "", "train")),
        ("hf://owner/name@0e6fada2", ("owner/name", "0e6fada2", "", "train")),
        ("hf://owner/name:en", ("owner/name", "", "en", "train")),
        ("hf://owner/name@main:20220301.en/validation", ("owner/name", "main", "20220301.en", "validation")),
        ("hf://name:/test", ("name", "", "", "test")),
        ("hf://owner/name:en/train[:1000]", ("owner/name", "", "en", "train", 1000)),
        ("hf://owner/name:/[:7]", ("owner/name", "", "", "train", 7)),
    ],
)
def test_names(given: str, parts: tuple[str | int, ...]) -> None:
    assert parse(given) == DataSet(given, *parts)  # type: ignore[arg-type]


def test_names_that_are_none() -> None:
    for given in ("hf://", "hf://a/b/c", "hf:///nowhere/at/all", "hf://a b"):
        with pytest.raises(UserError, match=r"is not a data set. Write hf://owner/name"):
            find_files([given])
    for split in ("train[5:]", "train[:ten]", "train[:5%]"):
        with pytest.raises(UserError, match=r"is not a split. Write train, or train\[:1000\]"):
            parse(f"hf://owner/name:/{split}")
    with pytest.raises(UserError, match=r"'train\[:0\]' is no records"):
        parse("hf://owner/name:/train[:0]")


def test_a_local_folder_is_read_split_by_split(folder: Path) -> None:
    assert texts(f"hf://{folder}") == texts(f"hf://{folder}:default/train") == [f"train {n}" for n in range(5)]
    assert texts(f"hf://{folder}:/test") == ["test 0", "test 1"]
    assert texts(f"hf://{folder}:/train[:2]") == ["train 0", "train 1"]


def test_parquet_is_read_by_column(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    (folder / "test.jsonl").unlink()
    (folder / "train.jsonl").unlink()
    parquet.write_table(table({"text": ["one", None, "two"], "other": [1, 2, 3]}), folder / "train.parquet")
    assert list(read_records(parse(f"hf://{folder}"), "", "text")) == [{"text": "one"}, {"text": None}, {"text": "two"}]
    skips = Skips()
    assert texts(f"hf://{folder}", skips=skips) == ["one", "two"]
    assert skips.counts == {"records without text": 1}
    assert skips.first == {"records without text": f"'hf://{folder}' record 2"}


def test_fields_that_are_missing(folder: Path) -> None:
    with pytest.raises(UserError, match=r"record 1 has no field 'body', but: label, text. Name the field .*text-field"):
        texts(f"hf://{folder}", "body")
    (folder / "train.jsonl").write_text(json.dumps({"input_ids": [1, 2]}) + "\n")
    with pytest.raises(UserError, match=r"but: input_ids.*Token ids cannot be prepared"):
        texts(f"hf://{folder}")
    with pytest.raises(UserError, match=r"The data set '.*:/nothing' cannot be read: .*Check its name, revision"):
        texts(f"hf://{folder}:/nothing")


def test_the_library_is_named_when_it_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs the datasets library, which is not installed. .*pip install 'datasets"):
        texts(f"hf://{folder}")


@pytest.mark.parametrize(("error", "passes"), [(ConnectionError("reset"), True), (ValueError("unknown split"), False)])
def test_a_lost_connection_may_pass(
    error: Exception, passes: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("datasets.load_dataset", fail)
    with pytest.raises(UserError, match=r"cannot be read: .*Check its name") as refused:
        texts(f"hf://{folder}")
    assert isinstance(refused.value, ReadFailed) == passes


def test_a_damaged_part_after_the_first_record_keeps_the_preparation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's error for a part that a lost connection cut off is a ValueError, as that for a wrong name is."""
    import datasets

    class Stream(list):
        column_names = ("text",)

        def select_columns(self, names):
            return self

        def __iter__(self):
            yield from super().__iter__()
            raise ValueError("Couldn't deserialize thrift")

    for records, kind in (([{"text": "a"}], ReadFailed), ([], UserError)):
        stream = Stream(records)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, found=stream, **__: found)
        with pytest.raises(UserError, match="deserialize thrift") as raised:
            list(read_records(parse(f"hf://{folder}"), "", "text"))
        assert type(raised.value) is kind


def test_a_local_folder_changes_its_state_with_its_files(folder: Path) -> None:
    before = inspect(parse(f"hf://{folder}"))
    assert before[0] == sum(path.stat().st_size for path in folder.iterdir()) and before[2] == ""
    (folder / "train.jsonl").write_text("{}\n")
    assert inspect(parse(f"hf://{folder}")) != before


def test_a_data_set_of_the_hub_is_pinned_to_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[str, str | None]] = []

    class Api:
        def dataset_info(self, name: str, revision: str | None) -> object:
            asked.append((name, revision))
            if name == "owner/none":
                raise OSError("404: no such repository.\nand a long tale")
            return type("Info", (), {"sha": "c0ffee"})

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    (file,) = find_files(["hf://owner/name@main"])
    assert (file.revision, file.form, file.name) == ("c0ffee", "data set", "hf://owner/name@main")
    assert asked == [("owner/name", "main")]
    with pytest.raises(UserError, match=r"'hf://owner/none' cannot be read: 404: no such repository. Check its name"):
        find_files(["hf://owner/none"])


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[hub.DataSet]:
    """The data sets that the hub is asked for; the answer is the commit of the address."""
    asked: list[hub.DataSet] = []

    def answer(wanted: hub.DataSet) -> tuple[int, int, str]:
        asked.append(wanted)
        return 0, 0, wanted.revision

    monkeypatch.setattr(hub, "inspect", answer)
    return asked


@pytest.mark.parametrize("name", KNOWN_CORPORA)
def test_a_name_stands_for_a_data_set_at_a_commit(
    name: str, commits: list[hub.DataSet], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = KNOWN_CORPORA[name]
    (file,) = find_files([name])
    assert file.form == DATA_SET
    assert file.given == file.name == corpus.address, "records and resumed runs name the source, not our name for it"
    assert re.fullmatch(r"[0-9a-f]{40}", file.revision)
    assert [asked.split for asked in commits] == ["train"]
    said = capsys.readouterr()
    assert corpus.license in said.out + said.err and corpus.size in said.out + said.err


def test_the_licence_is_said_before_the_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(wanted: hub.DataSet) -> tuple[int, int, str]:
        said = capsys.readouterr()
        assert "CC BY-SA 3.0" in said.out + said.err
        raise UserError("No connection.", "Connect.")

    monkeypatch.setattr(hub, "inspect", refuse)
    with pytest.raises(UserError, match="No connection"):
        find_files(["wikipedia"])


def test_the_subset_of_the_pile_ends_where_crammings_did() -> None:
    assert hub.parse(KNOWN_CORPORA["pile-subset"].address).records == 8_000_000


def test_a_folder_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: list[hub.DataSet]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wikipedia").mkdir()
    Path("wikipedia", "a.jsonl").write_text(json.dumps({"text": "Here."}) + "\n")
    (file,) = find_files(["wikipedia"])
    assert file.path == Path("wikipedia/a.jsonl") and not commits


def test_a_corpus_without_a_licence_has_no_source(commits: list[hub.DataSet]) -> None:
    with pytest.raises(UserError, match=r"No publisher offers BookCorpus under a license.* one of: wikipedia, c4"):
        find_files(["bookcorpus"])
    assert not commits

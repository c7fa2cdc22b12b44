from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.data.readers import hub
from daybreak.data.readers.documents import Skips, choose_rule, read_documents
from daybreak.data.readers.hub import DataSet, inspect, parse, read_records
from daybreak.data.readers.inputs import ByteCounter, find_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of two splits in a local folder."""
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


@pytest.mark.parametrize("given", ["hf://", "hf://a/b/c", "hf:///nowhere/at/all", "hf://a b"])
def test_names_that_are_none(given: str) -> None:
    with pytest.raises(UserError, match=r"is not a data set. Write hf://owner/name"):
        find_files([given])


@pytest.mark.parametrize("split", ["train[5:]", "train[:ten]", "train[:5%]"])
def test_a_split_can_only_be_cut_after_its_first_records(split: str) -> None:
    with pytest.raises(UserError, match=r"is not a split. Write train, or train\[:1000\]"):
        parse(f"hf://owner/name:/{split}")


def test_the_first_records_of_a_split(folder: Path) -> None:
    pytest.importorskip("datasets")
    assert texts(f"hf://{folder}:/train[:2]") == ["train 0", "train 1"]
    assert len(texts(f"hf://{folder}:/train[:100]")) == 5


def test_a_local_folder_is_read_split_by_split(folder: Path) -> None:
    pytest.importorskip("datasets")
    assert texts(f"hf://{folder}") == texts(f"hf://{folder}:default/train") == [f"train {n}" for n in range(5)]
    assert texts(f"hf://{folder}:/test") == ["test 0", "test 1"]


def test_parquet_is_read_by_column(folder: Path) -> None:
    pytest.importorskip("datasets")
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
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match=r"record 1 has no field 'body', but: label, text. Name the field .*text-field"):
        texts(f"hf://{folder}", "body")
    (folder / "train.jsonl").write_text(json.dumps({"input_ids": [1, 2]}) + "\n")
    with pytest.raises(UserError, match=r"but: input_ids.*Token ids cannot be prepared"):
        texts(f"hf://{folder}")


def test_what_cannot_be_read_is_said_in_words(folder: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match=r"The data set '.*:/nothing' cannot be read: .*Check its name, revision"):
        texts(f"hf://{folder}:/nothing")


def test_the_library_is_named_when_it_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    said = (
        r"needs the datasets library, which is not installed. Install what is missing: pip install 'datasets>=4' 'pyarr"
    )
    with pytest.raises(UserError, match=said):
        texts(f"hf://{folder}")


def test_a_local_folder_changes_its_state_with_its_files(folder: Path) -> None:
    before = inspect(parse(f"hf://{folder}"))
    assert before.revision == "" and before.bytes == sum(path.stat().st_size for path in folder.iterdir())
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
    assert hub.PREFIX == "hf://"

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.data.readers import hub, inputs
from daybreak.data.readers.inputs import find_files
from daybreak.data.readers.known_corpora import KNOWN_CORPORA


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[hub.DataSet]:
    """The data sets that the hub is asked for; the answer is the commit of the address."""
    asked: list[hub.DataSet] = []

    def answer(wanted: hub.DataSet) -> hub.State:
        asked.append(wanted)
        return hub.State(wanted.revision, 0, 0)

    monkeypatch.setattr(hub, "inspect", answer)
    return asked


@pytest.mark.parametrize("name", KNOWN_CORPORA)
def test_a_name_stands_for_a_data_set_at_a_commit(
    name: str, commits: list[hub.DataSet], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    corpus = KNOWN_CORPORA[name]
    (file,) = find_files([name])
    assert file.form == inputs.DATA_SET
    assert file.given == file.name == corpus.address, "records and resumed runs name the source, not our name for it"
    assert re.fullmatch(r"[0-9a-f]{40}", file.revision)
    assert [asked.split for asked in commits] == ["train"]
    said = capsys.readouterr()
    assert corpus.licence in said.out + said.err and corpus.size in said.out + said.err


def test_the_licence_is_said_before_the_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(wanted: hub.DataSet) -> hub.State:
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
    with pytest.raises(UserError, match=r"No publisher offers BookCorpus under a licence.* one of: wikipedia, c4"):
        find_files(["bookcorpus"])
    assert not commits

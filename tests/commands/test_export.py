"""A model out of a run: of one that ended, of one that was stopped, and of what is none."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from daybreak.commands import pretrain
from daybreak.commands.export import export
from daybreak.commands.prepare import prepare
from daybreak.core.errors import Interrupted
from daybreak.core.files import read_json, write_json
from daybreak.data.sequences.sampler import RowSampler
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.recipe import load_recipe, resolved
from daybreak.schemas.run import Summary
from daybreak.training.averaging import Averaging
from daybreak.training.hardware import probe

Refused = Callable[..., str]


def test_a_finished_run_is_copied(finished: Path, tmp_path: Path) -> None:
    out = export(finished, out=tmp_path / "deep" / "model")
    model = finished / "model"
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()} == {
        path.relative_to(model): path.read_bytes() for path in model.rglob("*") if path.is_file()
    }


def test_a_link_out_of_the_model_folder_is_not_copied(finished: Path, refused: Refused, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (tmp_path / "id_rsa").write_text("a private key")
    (run / "model" / "notes.txt").symlink_to(tmp_path / "id_rsa")
    assert "is a link that leads out of" in refused("export", run, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stopped_run_gives_its_newest_checkpoint(
    finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = RowSampler.take

    def interrupting(self: RowSampler, position: int, rows: int, progress: float = 0.0) -> object:
        if position == 8 * 30:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(self, position, rows, progress)

    monkeypatch.setattr(RowSampler, "take", interrupting)
    monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))
    run, out = tmp_path / "run", tmp_path / "model"
    with pytest.raises(Interrupted):
        pretrain.pretrain(load_recipe(finished), data=data, out=run)
    export(run, out=out, data=data)
    said = capsys.readouterr().out
    assert "Step 31: held-out loss" in said and "Parity: stock transformers" in said
    assert not (out / "REFUSED.txt").exists()
    stock = AutoModelForMaskedLM.from_pretrained(out)
    ended = AutoModelForMaskedLM.from_pretrained(finished / "model")
    assert stock.config.max_position_embeddings == 64  # the sequences of the finish are longer
    apart = (stock.get_input_embeddings().weight - ended.get_input_embeddings().weight).abs().max()
    assert 0 < apart < 0.1  # the same run, nine steps earlier


@pytest.mark.parametrize("best", [False, True])
def test_of_a_run_that_averages_its_weights_the_mean_is_given_but_for_the_best(
    best: bool, finished: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of such a run has the mean; its best checkpoint was judged without."""
    passed = read_json(finished / "summary.json", Summary).parity
    monkeypatch.setattr("daybreak.exporting.parity.check_parity", lambda *_, **__: passed)
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "summary.json").unlink()
    place = run / ("best" if best else "checkpoints")
    shutil.copytree(run / "before-decay", place, dirs_exist_ok=True)
    (kept,) = place.glob("step-*")
    weights = load_file(kept / "model.safetensors")
    means = {f"mean.{name}": tensor + 0.5 for name, tensor in weights.items()}
    save_file({"count": torch.tensor(3), **means}, kept / "average.safetensors")
    recipe = replace(load_recipe(run), average=Averaging(fraction=0.5))
    write_json(run / "recipe.json", resolved(recipe))
    out = export(run, out=tmp_path / "model", data=data, best=best)
    given = load_file(out / "model.safetensors")["model.embeddings.tok_embeddings.weight"]
    assert torch.equal(given, weights["embedding.weight"] + (0.0 if best else 0.5))


def test_the_best_checkpoint_can_be_taken_in_place_of_the_end(finished: Path, data: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.copytree(run / "before-decay", run / "best", dirs_exist_ok=True)
    out = export(run, out=tmp_path / "model", data=data, best=True)
    (kept,) = (run / "best").glob("step-*/model.safetensors")
    stock = AutoModelForMaskedLM.from_pretrained(out)
    assert torch.equal(stock.get_input_embeddings().weight, load_file(kept)["embedding.weight"])


def test_what_cannot_be_exported_is_refused(finished: Path, data: Path, refused: Refused, tmp_path: Path) -> None:
    out = tmp_path / "model"
    assert "is neither a run folder nor a model" in refused("export", tmp_path, "--out", out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert "is not empty" in refused("export", finished, "--out", tmp_path / "full")
    assert "is not a folder" in refused("export", finished, "--out", tmp_path / "full" / "thesis.tex")
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "summary.json").unlink()
    assert "no checkpoint yet" in refused("export", run, "--out", out, "--data", data)
    assert "no prepared data" in refused("export", run, "--out", out)
    assert "has no best checkpoint" in refused("export", finished, "--best", "--out", out, "--data", data)
    assert not out.exists()


def test_a_record_without_its_model_is_refused(finished: Path, refused: Refused, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("model")))
    assert "is a finished run without its model" in refused("export", run, "--out", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_is_not_exported_with_the_tokenizer_of_other_data(
    finished: Path, corpus: Path, refused: Refused, tmp_path: Path
) -> None:
    """Of as many pieces it would load, and be another model than was trained."""
    run, other, out = Path(shutil.copytree(finished, tmp_path / "run")), tmp_path / "other", tmp_path / "model"
    shutil.copytree(run / "before-decay", run / "best", dirs_exist_ok=True)
    (tmp_path / "less.jsonl").write_text("".join(corpus.read_text().splitlines(keepends=True)[:300]))
    prepare([tmp_path / "less.jsonl"], other, tokenizer=WordPiece(vocabulary=400))
    assert "trained with another tokenizer" in refused("export", run, "--best", "--out", out, "--data", other)
    assert not out.exists()

"""Every system of the literature by its name, from the command line, at a toy shape: it trains, ends and exports."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import command, exit_code, stopped_at
from rendezvous import two_ranks
from safetensors.torch import load_file

from daybreak.commands import pretrain
from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.recipe import Devices, Recipe, load_recipe
from daybreak.schemas.run import Decisions, Summary
from daybreak.training import calibration, loop
from daybreak.training.checkpoint import Progress
from daybreak.training.step import Training

pytestmark = pytest.mark.usefixtures("on_the_cpu")

TOY = (
    "--model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 64 "
    "--length 32 --batch 8 --precision float32"
).split()
ON_TALES = [*TOY, "--accept-tokenizer"]
"""For ``pretrain`` on ``tales``, whose vocabulary is smaller than a paper's."""
LATER = ["--phase2.length", "64", "--phase2.batch", "4"]
RAMP = ["--ramp.batch-multiple", "2"]
FLAGS = {
    "bert-2018": LATER,
    "bert-8gb": [],
    "bert-gpu": ["--devices.batch", "8", "--batch", "0"],
    "scibert": LATER,
    "crammed": RAMP,
    "crammed-legacy": RAMP,
    "crammed-8gpu": [*RAMP, "--microbatch", "4"],
    "ladder-01": [],
    "ladder-03": [],
    "ladder-08": [],
    "ladder-12": RAMP,
}
"""What each needs beside TOY, at a toy size."""
PAIRS = {"bert-2018", "bert-gpu", "scibert"}
"""Those that predict the next sentence."""
JUDGED = {"bert-2018", "bert-8gb", "crammed"}
"""Those that the real parity check evaluates: with next sentences, without, and with code of its own."""


@pytest.fixture(scope="session")
def sentences(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``corpus`` as BERT's input: one sentence a line, a blank line after each document."""
    path = tmp_path_factory.mktemp("sentences") / "tales.txt"
    documents = [json.loads(line)["text"].replace(" .", " .\n") for line in corpus.read_text().splitlines()]
    path.write_text("\n\n".join(documents) + "\n")
    return path


@pytest.fixture(scope="session")
def tales(sentences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``sentences``, prepared with a vocabulary of about 400."""
    out = tmp_path_factory.mktemp("prepared") / "tales"
    prepare([sentences], out, tokenizer=WordPiece(vocabulary=400), document="blank-line")
    return out


def check(summary: Summary, name: str, steps: int) -> None:
    """What holds for the end of every system's run."""
    seen = summary.validation
    assert summary.steps == steps and summary.rows > 0 and summary.steps_per_second > 0
    assert seen.final and seen.own_loss is not None and 0 < seen.own_loss < 10 and seen.own_accuracy is not None
    assert (seen.next_accuracy is not None) is (seen.next_loss is not None) is (name in PAIRS)
    assert seen.next_accuracy is None or 0.2 < seen.next_accuracy < 1.0
    assert (summary.parent, summary.forgetting) == ("", None)


@pytest.mark.usefixtures("ungated")
@pytest.mark.parametrize("name", sorted(set(FLAGS) - JUDGED))
def test_it_trains_by_name(name: str, tales: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command("pretrain", name, "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES, *FLAGS[name])
    check(read_json(run / "summary.json", Summary), name, 20)
    assert load_recipe(run).name == name


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_it_trains_by_name_and_stock_transformers_agrees(name: str, tales: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command("pretrain", name, "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES, *FLAGS[name])
    summary = read_json(run / "summary.json", Summary)
    check(summary, name, 20)
    assert summary.parity and summary.parity.passed, summary.parity
    assert summary.parity.masked_accuracy == pytest.approx(summary.validation.accuracy, abs=1e-3)
    card = (run / "model" / "README.md").read_text()
    assert ("next-sentence prediction" in card) is (name in PAIRS)
    assert bool(list((run / "model").glob("*.py"))) is (name == "crammed")
    if name == "bert-2018":
        config = json.loads((run / "model" / "config.json").read_text())
        assert config["architectures"] == ["BertForPreTraining"]


@pytest.mark.usefixtures("ungated")
@pytest.mark.parametrize("name", ["bert-2018", "scibert"])
def test_the_second_phase_is_entered(
    name: str, tales: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of 160 positions, so that the exported length is 160 and not the 128 of the held-out evaluation. ``verify``
    enters it too, at the same step, and draws the same dropout."""
    run = tmp_path / "run"
    later = ["--phase2.start", "0.5", "--phase2.length", "160", "--phase2.batch", "2"]
    command("pretrain", name, "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES, *later)
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "Second phase from 50% on: sequences of 160 positions." in said
    summary = read_json(run / "summary.json", Summary)
    assert summary.tokens == 10 * 8 * 32 + 10 * 2 * 160
    config = json.loads((run / "model" / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 160
    command("verify", run, "--data", tales)
    said = capsys.readouterr().out
    assert "the exported model: equal, 20 of 20 steps." in said and "are equal bit for bit" in said


@pytest.mark.usefixtures("ungated")
def test_a_second_phase_that_never_started_is_not_in_the_export(tales: Path, tmp_path: Path) -> None:
    """Texts are cut at a length that the model read, not at learned positions that are still random."""
    run = tmp_path / "run"
    words = ["pretrain", "bert-2018", "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES]
    command(*words, "--phase2.start", "1", "--phase2.when-flat", "--phase2.length", "160")
    assert json.loads((run / "model" / "tokenizer_config.json").read_text())["model_max_length"] == 32
    assert "trained on sequences of 32 tokens." in (run / "model" / "README.md").read_text()


@pytest.mark.usefixtures("ungated")
def test_the_batch_of_a_crammed_run_grows(tales: Path, tmp_path: Path) -> None:
    """Over 60 % of the run in quanta of 2: 12 steps at 2, 4, 6 and 8 rows for three steps each, then 8 at 8."""
    run = tmp_path / "run"
    command("pretrain", "crammed", "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES, *RAMP)
    assert read_json(run / "summary.json", Summary).rows == 3 * (2 + 4 + 6 + 8) + 8 * 8


@pytest.mark.usefixtures("ungated")
@pytest.mark.parametrize("name", ["bert-2018", "crammed"])
def test_whole_words_train(name: str, tales: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = [*ON_TALES, *FLAGS[name], "--objective.whole-words"]
    command("pretrain", name, "--data", tales, "--out", run, "--budget", "20steps", *flags)
    assert load_recipe(run).objective.whole_words
    check(read_json(run / "summary.json", Summary), name, 20)


@pytest.mark.usefixtures("ungated")
def test_size_and_faithful_on_pretrain(tales: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["--size", "tiny", "--faithful", *ON_TALES]
    command("pretrain", "bert-8gb", "--data", tales, "--out", run, "--budget", "20steps", *flags, "--microbatch", "8")
    found = load_recipe(run)
    assert found.tokenizer == load_recipe("bert-8gb", size="tiny").tokenizer
    assert found.rows == load_recipe("bert-8gb", faithful=True).rows != load_recipe("bert-8gb").rows


@pytest.mark.usefixtures("ungated")
def test_size_and_faithful_on_run(corpus: Path, tmp_path: Path) -> None:
    """Prose, cut into chunks by the recipe, and then the rest of the way to the report."""
    run = tmp_path / "run"
    flags = ["--size", "mini", "--faithful", *TOY, "--microbatch", "8", "--tokenizer.vocabulary", "400"]
    command("run", "bert-8gb", "--corpus", corpus, "--out", run, "--budget", "20steps", *flags)
    assert read_json(run / "summary.json", Summary).steps == 20
    assert load_recipe(run).model.init_std == 0.02 and (run / "report.html").is_file()  # type: ignore[attr-defined]


def test_another_tokenizer_than_the_papers_must_be_accepted(
    tales: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["pretrain", "bert-8gb", "--data", tales, "--out", run, "--budget", "20steps", *TOY]
    said = refused(*words)
    assert "vocabulary 400 instead of" in said and "--accept-tokenizer" in said and not run.exists()
    with stopped_at(10):
        assert exit_code(*words, "--accept-tokenizer") == 143
    assert exit_code(*words) == 0, "a run that was accepted once resumes without the flag"


def test_text_without_sentences_is_refused(data: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    said = refused("pretrain", "bert-2018", "--data", data, "--out", tmp_path / "run", "--budget", "20steps", *ON_TALES)
    assert "--split-sentences" in said and not (tmp_path / "run").exists()


# ---------------------------------------------------------------- several devices


def gpu(**changes: object) -> Recipe:
    """bert-gpu at the toy shape, dropout on, 8 rows a step over all devices."""
    found = load_recipe("bert-gpu")
    model = dataclasses.replace(found.model, layers=1, hidden_size=32, heads=2, intermediate_size=64)  # type: ignore[call-arg]
    toy = dataclasses.replace(found, model=model, length=32, precision="float32", budget="20steps")
    return dataclasses.replace(toy, **changes)  # type: ignore[arg-type]


@pytest.mark.usefixtures("ungated")
def test_two_devices_train_as_one(start: Callable[..., subprocess.Popen[str]], tales: Path, tmp_path: Path) -> None:
    """Also with dropout, whose draws belong to a row's place in the run, and with a label for each pair."""
    run = tmp_path / "run"
    words = ["pretrain", "bert-gpu", "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES]
    words += ["--batch", "0", "--devices.batch", "4", "--devices.rate-rule", "linear", "--devices.reference", "4"]
    ranks = two_ranks(start, *words)
    said = [process.communicate(timeout=200) for process in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    told = re.sub(r"\s+", " ", said[0][0])
    assert "Batch: 8 sequences a step, 4 on each of 2 devices, learning rate x2." in told
    pattern = r"[\d.]+ optimizer steps and [\d.]+ sequences a second on 2 devices; \d+% of the time is communication\."
    assert re.search(pattern, told), told
    decisions = read_json(run / "decisions.json", Decisions)
    assert (decisions.batch, decisions.microbatch, decisions.world_size, decisions.rate_factor) == (8, 4, 2, 2.0)
    # One device that takes the same halves one after the other, at the rate that the rule gave.
    one = gpu(devices=Devices(batch=8, rate_rule="linear", reference=4), microbatch=4)
    alone = pretrain.pretrain(one, data=tales, out=tmp_path / "one", accept_tokenizer=True)
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (tmp_path / "one", run))
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) <= 1e-5
    two = read_json(run / "summary.json", Summary)
    assert (two.steps, two.tokens, two.rows) == (alone.steps, alone.tokens, alone.rows) == (20, 20 * 8 * 32, 160)
    assert two.time_by_category["communicate"] > 0 and alone.time_by_category["communicate"] == 0
    assert two.rows_per_second == pytest.approx(8 * two.steps_per_second, rel=0.01)


@pytest.mark.usefixtures("ungated")
def test_the_memory_is_filled_on_request(tales: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU with memory for the whole batch."""
    run = tmp_path / "run"
    words = ["pretrain", "bert-8gb", "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES, "--batch", "64"]
    command(*words, "--microbatch", "8", "--fill-memory")
    assert read_json(run / "decisions.json", Decisions).microbatch == 64
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert re.search(r"Microbatch: 64 sequences fill the memory, at \d+% of the speed of 8\.", said)


@pytest.mark.usefixtures("ungated")
def test_a_large_batch_is_measured_and_the_measure_is_obeyed(
    tales: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["pretrain", "bert-8gb", "--data", tales, "--out", run, "--budget", "20steps", *ON_TALES, "--batch", "64"]
    with stopped_at(10):
        assert exit_code(*words) == 143
    decisions = read_json(run / "decisions.json", Decisions)
    assert decisions.microbatch in (8, 16, 32, 64) and decisions.batch == 64
    assert f"Microbatch: {decisions.microbatch} sequences are the fastest on this machine." in capsys.readouterr().out
    used, step = set(), loop.take_step

    def watched(training: Training, progress: Progress, at: float, **more: Any) -> Any:
        used.add(training.phase(progress, at).microbatch)
        return step(training, progress, at, **more)

    monkeypatch.setattr(loop, "take_step", watched)
    monkeypatch.setattr(calibration, "fastest_microbatch", None)  # it is not asked again
    command(*words)
    assert used == {decisions.microbatch}
    assert read_json(run / "decisions.json", Decisions) == decisions
    assert read_json(run / "summary.json", Summary).rows == 20 * 64


def test_rules_for_the_learning_rate() -> None:
    """Of 4 devices with 100 rows each, at a rate chosen for 100 rows in all (BERT-GPU)."""
    factors = {
        rule: gpu(devices=Devices(batch=100, rate_rule=rule, reference=100)).rate_factor(4)
        for rule in ("none", "linear", "sqrt")
    }
    assert factors == {"none": 1.0, "linear": 4.0, "sqrt": 2.0}
    shared = gpu(batch=64, devices=Devices(rate_rule="sqrt", reference=16))
    assert [shared.global_batch(devices) for devices in (1, 4)] == [64, 64] and shared.rate_factor(4) == 2.0


def test_a_rule_without_its_batch_is_refused() -> None:
    with pytest.raises(UserError, match=r"--devices\.reference"):
        gpu(devices=Devices(batch=8, rate_rule="linear")).check()
    with pytest.raises(UserError, match="none, linear or sqrt"):
        gpu(devices=Devices(batch=8, rate_rule="cube")).check()

"""The scripts in benchmarks/: their help, and what they compute. Nothing here is timed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_scripts import FOLDER, LENGTH, SHAPE, VOCABULARY, beside, script
from needs import takes_long
from rendezvous import wait_for
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.run_folder import RunFolder
from daybreak.data.sequences.sampler import RowSampler
from daybreak.recipe import load_recipe
from daybreak.schemas.records import tolerance
from daybreak.training.objectives.objective import CausalThenMasked

__all__ = ["beside"]  # a fixture

SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as left:
        script(name).main()
    told = capsys.readouterr().out
    assert left.value.code == 0
    assert "--short" in told and "--out" in told


# ---------------------------------------------------------------- arithmetic


def counted(work: Any) -> tuple[int, int]:
    """FLOPs that torch counts in ``work()`` and in the backward pass of its sum."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        found = work()
    with FlopCounterMode(display=False) as backward:
        found.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize(
    ("objective", "progress"),
    [
        (CausalThenMasked(causal_targets=1.0), 0.0),
        (CausalThenMasked(causal_targets=0.4), 0.0),
        (CausalThenMasked(), 0.5),
        (CausalThenMasked(), 1.0),
    ],
)
def test_flops_of_our_step(objective: CausalThenMasked, progress: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(model: Encoder, features: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """torch's counter does not see into our own loss; its products are those of a plain decoder."""
        assert features.shape[:2] == targets.shape
        return LossSum(model.decoder(features).sum(), targets.numel())

    monkeypatch.setattr("daybreak.training.objectives.objective.decoder_loss", plain)
    flops, recipe = script("flops"), replace(load_recipe("tiny"), model=SHAPE, objective=objective)
    model, ids = SHAPE.build(VOCABULARY), torch.randint(5, VOCABULARY, (1, LENGTH))
    forward, backward = counted(
        lambda: objective.loss(model, Batch(input_ids=ids), seed=0, position=0, progress=progress).sum
    )
    assert flops.step_forward(recipe, VOCABULARY, LENGTH, progress) == forward
    assert flops.training(forward) == forward + backward


def test_flops_of_stock_models() -> None:
    flops, stock = script("flops"), script("stock_trainer")
    ids = torch.randint(5, VOCABULARY, (1, LENGTH))
    modern = stock.stock_modern(SHAPE, VOCABULARY, LENGTH)
    forward, backward = counted(lambda: modern(input_ids=ids).logits)
    # Transformers 5.17, unlike 5.23, computes the angles of rotary positions, which we do not count, as a product.
    with FlopCounterMode(display=False) as angles:
        modern.model.rotary_emb(torch.zeros(1), torch.arange(LENGTH)[None], "full_attention")
    forward -= angles.get_total_flops()
    assert flops.modern_forward(SHAPE, VOCABULARY, LENGTH, asked=LENGTH, targets=LENGTH) == forward
    assert flops.training(forward) == forward + backward
    bert = stock.stock_bert(SHAPE, VOCABULARY, LENGTH)
    forward, backward = counted(lambda: bert(input_ids=ids).logits)
    assert flops.bert_forward(SHAPE.layers, SHAPE.hidden_size, 4 * SHAPE.hidden_size, VOCABULARY, LENGTH) == forward
    assert flops.training(forward) == forward + backward


def test_our_block_trains_with_the_loop_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = script("our_step")
    chosen: list[bool] = []
    monkeypatch.setattr(ours.probe, "choose_device", lambda: chosen.append(True))
    recipe = replace(load_recipe("tiny"), model=SHAPE, length=LENGTH)
    stream = ours.ZipfStream(VOCABULARY, 2000)
    assert stream.read(0, 2000).min() >= 5 and stream.read(0, 2000).max() < VOCABULARY
    cell = ours.Cell(
        recipe, VOCABULARY, RowSampler(stream, LENGTH, seed=0), LENGTH, 2, torch.device("cpu"), "float32", 0
    )
    for stage in ("causal", "masked"):
        assert ours.our_block(cell, stage)(0.0).tokens == 0  # warm-up steps only
    assert chosen == [True, True], "with the attention and the float32 products of a run, in every process"


def test_moments_reach_every_mask_rate() -> None:
    objective = CausalThenMasked()
    found = script("our_step").moments(objective, "masked")
    assert {objective.stage(moment) for moment in found} == {"masked"}
    assert [objective.mask_rate(moment) for moment in found] == [rate for rate in objective.mask_rates for _ in "12"]


def test_fractions_of_the_matrix_rate() -> None:
    throughput = script("throughput")
    blocks = [{"tokens": 100, "seconds": seconds, "flops": 1e6, "peak_gib": seconds} for seconds in (1.0, 2.0, 4.0)]
    found = throughput.variant(blocks, rate=5e6)
    assert found["tokens_per_second"] == 50 and found["share_of_matrix_rate"] == 0.1
    assert found["flops_per_token"] == 1e4 and found["peak_gib"] == 4.0
    alone = {**found, "turns": [200.0, 100.0, 50.0]}
    cell = {"daybreak, causal": dict(found), "daybreak, masked": dict(found), "products, causal": {"failed": "x"}}
    cell["products, masked"] = alone
    for stage, speed in (("causal", 10.0), ("masked", 30.0)):
        cell[f"other commit, {stage}"] = {**found, "tokens_per_second": speed}
    recipe = load_recipe("tiny")
    throughput.add_whole_recipe(cell, recipe)
    assert cell["daybreak, masked"]["share_of_products_rate"] == 0.5
    assert "share_of_products_rate" not in cell["daybreak, causal"]
    assert cell["daybreak, recipe"]["tokens_per_second"] == 50
    causal = recipe.objective.causal_fraction
    assert cell["other commit, recipe"]["tokens_per_second"] == pytest.approx(10 * causal + 30 * (1 - causal))
    del cell["other commit, recipe"]
    cell["other commit, masked"] = {"failed": "x"}
    throughput.add_whole_recipe(cell, recipe)
    assert "other commit, recipe" not in cell


@pytest.mark.parametrize(("causal_targets", "progress"), [(1.0, 0.0), (0.4, 0.0), (0.4, 0.5), (0.4, 1.0)])
def test_products_of_a_step_are_its_flops(causal_targets: float, progress: float) -> None:
    objective = CausalThenMasked(causal_targets=causal_targets)
    recipe = replace(load_recipe("tiny"), model=SHAPE, objective=objective)
    found = script("matrix_products").products(recipe, VOCABULARY, LENGTH, 50, progress, torch.device("cpu"))
    counted = sum(product.flops * product.count for product in found)
    assert counted == 50 * script("flops").step_forward(recipe, VOCABULARY, LENGTH, progress)
    times = script("matrix_products").Timed(found[0], torch.device("cpu"), torch.float32).seconds()
    assert set(times) == {"forward", "dX", "dW"} and min(times.values()) > 0


def test_masks_of_the_plain_loop() -> None:
    stock = script("stock_trainer")
    ids = torch.randint(0, VOCABULARY, (400, 100))
    shown, labels = stock.hidden(ids, VOCABULARY)
    chosen = labels != -100
    assert torch.equal(labels[chosen], ids[chosen]) and torch.equal(shown[~chosen], ids[~chosen])
    assert not (chosen & (ids <= stock.MASK_ID)).any()
    words = (ids > stock.MASK_ID).sum()
    assert float(chosen.sum() / words) == pytest.approx(0.15, abs=0.01)
    assert float((shown[chosen] == stock.MASK_ID).float().mean()) == pytest.approx(0.8, abs=0.03)
    assert float((shown[chosen] == ids[chosen]).float().mean()) == pytest.approx(0.1, abs=0.03)


# ---------------------------------------------------------------- statistics and tables


def test_statistics() -> None:
    measure = script("measure")
    assert measure.mean_and_spread([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert measure.mean_and_spread([4.0]) == (4.0, 0.0)
    assert measure.table(["name", "n"], [["a", "10"], ["longer", "7"]]).splitlines() == [
        "name     n", "------  --", "a       10", "longer   7",
    ]  # fmt: skip
    assert tolerance(60.0) == 1.0 and tolerance(600.0) == 6.0
    assert measure.budget_seconds("10m") == 600.0
    with pytest.raises(SystemExit):
        measure.budget_seconds("30steps")


# ---------------------------------------------------------------- runs seen from outside


def test_kill_moments_are_seeded_and_inside() -> None:
    moments = script("kills").kill_moments(100.0, 3, seed=0)
    assert moments == script("kills").kill_moments(100.0, 3, seed=0) == sorted(moments)
    assert all(10 <= moment <= 90 for moment in moments)


def test_what_a_kill_costs(tmp_path: Path) -> None:
    kills, run = script("kills"), RunFolder(tmp_path)
    trace = [{"step": step, "elapsed": 5.0 + step, "progress": step / 100} for step in range(10)]
    run.trace.write_text("".join(json.dumps(line) + "\n" for line in trace) + '{"step": 10, "ela', encoding="utf-8")
    for step in (0, 6):
        (run.checkpoints / f"step-{step}").mkdir(parents=True)
        (run.checkpoints / f"step-{step}" / "progress.json").write_text(
            json.dumps({"step": step, "elapsed": 5.0 + step}), encoding="utf-8"
        )
    found = kills.cost_of_kill(run, running=14.5)
    assert (found["steps"], found["kept_step"], found["lost_steps"]) == (10, 6, 4)
    assert (found["lost_seconds"], found["uncharged_seconds"]) == (3.0, 0.5)


def test_what_a_kill_test_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = script("kills")
    found = {"outside_seconds": 61.0, "uncharged_seconds": 0.5, "summary": {"time_by_category": {"lost": 1.5}}}
    found |= {"decisions": {"threads": 1}, "verify": {"said": "Verified."}, "verdict": {"budget_held": False}}
    monkeypatch.setattr(kills, "kill_and_verify", lambda *_, **__: found)
    monkeypatch.setattr(kills.measure, "record", lambda *_: {})
    monkeypatch.setattr(kills.measure, "adopt_orphans", lambda: None)
    work = tmp_path / "work"
    monkeypatch.setattr(sys, "argv", ["kills.py", "--data", str(tmp_path), "--work", str(work)])
    kills.main()
    said = capsys.readouterr().out
    assert "61.00 s of running for a budget of 120s (+0.50 s not charged), 1.5 s of work lost." in said
    assert "Verified." in said and "NO  budget held" in said
    (work / "killed").mkdir()
    with pytest.raises(SystemExit, match="holds an earlier measurement"):
        kills.main()


@pytest.mark.parametrize("name", ["law", "task_forecasts"])
def test_runs_without_their_text_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--runs", str(tmp_path)])
    with pytest.raises(SystemExit):
        script(name).main()
    assert "name the text of the runs with --data" in capsys.readouterr().err


def test_metric_lines_are_counted_in_both_files(tmp_path: Path) -> None:
    kills, run = script("kills"), RunFolder(tmp_path)
    run.metrics.write_text('{"a": 1, "b": 2}\n{"a": 3}\n{"torn', encoding="utf-8")
    before = kills.metric_lines(run)
    run.metrics.write_text('{"b": 2, "a": 1}\n', encoding="utf-8")
    assert sum((before - kills.metric_lines(run)).values()) == 1
    run.lost_metrics.write_text('{"a": 3}\n', encoding="utf-8")
    assert not before - kills.metric_lines(run)


def test_a_model_is_seen_when_it_is_whole(tmp_path: Path) -> None:
    measure = script("measure")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    assert measure.wait_for_model(ended, tmp_path) is None
    (tmp_path / "model").mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert measure.wait_for_model(ended, tmp_path) is None
        (tmp_path / "model" / name).touch()
    assert measure.wait_for_model(ended, tmp_path) is not None


def test_toy_text_is_the_same_everywhere(tmp_path: Path) -> None:
    toy = script("toy")
    texts = [toy.toy_text(tmp_path / name, documents=3).read_text("utf-8") for name in "ab"]
    assert texts[0] == texts[1] and texts[0].count("\n") == 3


def test_relative_difference() -> None:
    relative = script("device_parity").relative
    assert relative(torch.ones(4), torch.ones(4)) == 0.0
    assert relative(torch.full((4,), 1.5), torch.ones(4)) == pytest.approx(0.5)
    assert np.isfinite(relative(torch.zeros(4), torch.ones(4)))


@pytest.mark.parametrize("alone", [True, False])
def test_a_kill_ends_all_processes_of_a_run(alone: bool, tmp_path: Path) -> None:
    """Also those that torchrun puts into sessions of their own; of one that is killed alone the others notice."""
    kills = script("kills")
    child = "import time; time.sleep(60)"
    parent = f"""
import subprocess, sys, os
both = [subprocess.Popen([sys.executable, "-c", {child!r}], env={{**os.environ, "RANK": str(rank)}},
                         start_new_session=True) for rank in (0, 1)]
os.wait()
for one in both:
    one.kill()
    one.wait()
"""
    going = kills.Start([sys.executable, "-c", parent], tmp_path / "log", RunFolder(tmp_path), 2)
    wait_for(lambda: len(going.ranks()) == 2, going.process)
    ranks = going.ranks()

    class Chance(random.Random):
        def random(self) -> float:
            return 0.0 if alone else 1.0

    killed, lived = going.kill(Chance(0))
    assert killed == ("one worker" if alone else "all processes") and lived > 0
    assert all(map(kills.is_gone, ranks)) and going.process.poll() is not None


# ---------------------------------------------------------------- chaos


def chaos_command(body: str) -> list[str]:
    """A command in the place of ``daybreak``."""
    return [sys.executable, "-c", body]


def test_a_plan_of_faults_depends_on_its_seed_alone() -> None:
    chaos = script("chaos")
    plans = [chaos.plan(0, number, ("prepare", "study")) for number in range(60)]
    assert plans == [chaos.plan(0, number, ("prepare", "study")) for number in range(60)]
    assert [name for name, _ in plans[:3]] == ["prepare", "study", "prepare"]
    assert {fault.kind for _, faults in plans for fault in faults} == {*chaos.ENDING, *chaos.GENTLE, "cut"}
    assert plans != [chaos.plan(1, number, ("prepare", "study")) for number in range(60)]


def test_what_ends_badly_is_distinguished() -> None:
    chaos = script("chaos")

    def wrong(code: int, output: str, kind: str = "") -> str:
        fault = chaos.Fault(kind, 0.5, 0.5) if kind else None
        return str(chaos.wrong_end(chaos.Ended(code, output, 0.0, 0.0, 0), fault))

    assert wrong(0, "done") == wrong(2, "daybreak: The disk is full. Free some.", "disk") == ""
    assert wrong(-9, "", "kill") == wrong(143, "daybreak: stopped.", "terminate") == ""
    assert wrong(-9, "", "disk").startswith("exit code -9")
    assert wrong(2, "nothing", "memory") == "exit code 2 without a message"
    assert wrong(1, "Traceback (most recent call last)\nKeyError: 'a'", "kill one") == "a traceback: KeyError: 'a'"


@pytest.mark.parametrize(
    ("kind", "code"), [("kill", -9), ("kill one", -9), ("terminate", -15), ("interrupt", -2), ("pause", 0)]
)
def test_a_fault_strikes_a_running_command(kind: str, code: int, tmp_path: Path) -> None:
    chaos = script("chaos")
    body = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    body += "until = time.process_time() + 0.6\nwhile time.process_time() < until: pass\nprint('ended')"
    usual = chaos.Ended(0, "", 1.0, 0.5, 1 << 30)
    ended = chaos.play(chaos_command(body), tmp_path / "log.txt", tmp_path, chaos.Fault(kind, 0.4, 0.0), usual)
    assert ended.hit and ended.code == code and ("ended" in ended.output) == (kind == "pause")
    assert ended.processor >= 0.2


def test_a_start_with_little_memory_and_one_with_another_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chaos = script("chaos")
    usual = chaos.Ended(0, "", 1.0, 0.5, 1 << 30)
    monkeypatch.setattr(chaos, "CLOCK_SECONDS", 0.0)
    for size, jump in ((0.1, 86400), (0.9, -86400)):
        fault = chaos.Fault("clock", 0.5, size)
        body = "import time; print(time.time())"
        ended = chaos.play(chaos_command(body), tmp_path / "log.txt", tmp_path, fault, usual)
        assert float(ended.output) == pytest.approx(time.time() + jump, abs=3600)
    body = "bytes(1 << 30)"
    ended = chaos.play(chaos_command(body), tmp_path / "log.txt", tmp_path, chaos.Fault("memory", 0.5, 0.5), usual)
    assert ended.hit and "MemoryError" in ended.output and "traceback" in chaos.wrong_end(ended, None)


STAND_IN = """
import pathlib, sys
out = pathlib.Path({out!r})
out.mkdir(exist_ok=True)
number = out / "number"
if number.exists() and number.read_text() != "12345":
    sys.exit("daybreak: 'number' is damaged. Restore it.") if {strict} else number.write_text("123")
else:
    number.write_text("12345")
"""


@pytest.mark.parametrize("strict", [True, False])
def test_a_cut_file_is_restored_for_a_message_and_a_wrong_result_is_found(
    strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chaos = script("chaos")
    body = STAND_IN.replace("{strict}", str(strict)).replace("sys.exit(", "(print(")
    body = body.replace('Restore it.")', 'Restore it."), sys.exit(2))')
    monkeypatch.setattr(
        chaos.measure, "daybreak", lambda *words: chaos_command(body.replace("{out!r}", repr(words[0])))
    )
    subject = chaos.Subject(lambda given, out: [str(out)], lambda out: (out / "number").read_text())
    monkeypatch.setitem(chaos.SUBJECTS, "stand-in", subject)
    usual, expected = chaos.undisturbed("stand-in", tmp_path, tmp_path / "usual")
    assert expected == "12345"
    faults = [chaos.Fault("clock", 0.5, 0.5), chaos.Fault("cut", 0.5, 0.0)]
    found = chaos.disturbed("stand-in", faults, tmp_path, tmp_path / "000", usual, expected)
    assert all(start["hit"] for start in found["starts"] if start["fault"])
    assert [start["fault"]["kind"] for start in found["starts"] if start["fault"]] == ["clock", "cut"]
    assert found["starts"][1]["cut"] == "number" and found["equal"] is strict
    if strict:
        assert [start.get("code") for start in found["starts"]] == [0, None, 2, 0] and not found["findings"]
        assert found["starts"][2]["message"] == "'number' is damaged. Restore it."
    else:
        assert found["findings"] == ['the result differs: "123" instead of "12345"']


@takes_long
def test_the_short_form_of_chaos_disturbs_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chaos = script("chaos")
    monkeypatch.setattr(sys, "argv", ["chaos.py", "--short", "--out", str(tmp_path / "chaos.json")])
    chaos.main()
    found = json.loads((tmp_path / "chaos.json").read_text())
    assert found["benchmark"] == "chaos" and found["equal"] == len(found["runs"]) == 1 and found["findings"] == []
    assert found["starts"] > len(found["runs"][0]["starts"]) - 1 and "1 of 1 equal" in capsys.readouterr().out

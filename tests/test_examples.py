"""The examples of the documentation, run as a stranger would: trained, stopped, resumed, exported, fine-tuned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import bits, exit_code, stopped_at

from daybreak.commands.evaluate import evaluate
from daybreak.commands.export import export
from daybreak.commands.report import report
from daybreak.commands.verify import verify
from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.models.importing import load_pretrained
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.run import SpecialIds, Summary
from daybreak.training.clock import read_trace
from daybreak.training.hardware import probe
from daybreak.training.hardware.compiling import compile_blocks
from daybreak.training.objectives.objective import CausalThenMasked, Objective

pytestmark = pytest.mark.usefixtures("on_the_cpu")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RECIPES = ("own_architecture", "own_objective")
STEPS, STOPPED = 30, 10
SPECIAL = SpecialIds()


def recipe_of(name: str) -> Recipe:
    return load_recipe(EXAMPLES / f"{name}.py")


@pytest.fixture(scope="module")
def trained(data: Path, shape: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each recipe. The gate evaluates the architecture's; the other exports what ships."""
    found: dict[str, Path] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))
        for name in RECIPES:
            if found:
                judged = read_json(found["own_architecture"] / "summary.json", Summary).parity
                monkeypatch.setattr("daybreak.pretraining.run_end.check_parity", lambda *_, judged=judged, **__: judged)
            found[name] = tmp_path_factory.mktemp(name) / "run"
            assert exit_code(*words(name, data, shape), "--out", found[name]) == 0
    return found


def words(name: str, data: Path, shape: list[str]) -> list[object]:
    return ["pretrain", EXAMPLES / f"{name}.py", "--data", data, "--budget", f"{STEPS}steps", *shape]


@pytest.mark.parametrize("name", RECIPES)
def test_an_example_is_a_recipe_that_fits_together(name: str) -> None:
    recipe_of(name).check()
    assert recipe_of(name).name == name.replace("_", "-")


def test_stock_transformers_gives_the_same_as_the_architecture(trained: dict[str, Path]) -> None:
    parity = read_json(trained["own_architecture"] / "summary.json", Summary).parity
    assert parity is not None and parity.passed, parity


@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_and_leaves_a_model(name: str, trained: dict[str, Path]) -> None:
    summary = read_json(trained[name] / "summary.json", Summary)
    assert summary.steps == STEPS and {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {
        path.name for path in (trained[name] / "model").iterdir()
    }
    assert summary.validation.loss < np.log(400) - 1, "it learned nothing"


@pytest.mark.parametrize("name", RECIPES)
def test_its_report_can_be_read(name: str, trained: dict[str, Path], tmp_path: Path) -> None:
    page = report([trained[name]], tmp_path / "report.md", form="md")
    assert recipe_of(name).name in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_stopped_it_goes_on_as_if_it_had_not_been(
    name: str, trained: dict[str, Path], data: Path, shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = read_json(trained[name] / "summary.json", Summary).parity
    monkeypatch.setattr("daybreak.pretraining.run_end.check_parity", lambda *_, **__: passed)
    run = tmp_path / "run"
    asked = [*words(name, data, shape), "--out", run]
    with stopped_at(STOPPED):
        assert exit_code(*asked) == 143
    assert len(read_trace(run / "trace.jsonl")) == STOPPED + 1
    monkeypatch.setattr("daybreak.exporting.parity.check_parity", lambda *_, **__: passed)
    export(run, out=tmp_path / "now", data=data)  # the newest checkpoint, before the end
    assert (tmp_path / "now" / "model.safetensors").stat().st_size == len(bits(trained[name]))
    assert exit_code(*asked) == 0
    assert read_json(run / "summary.json", Summary).resumes == 1
    assert bits(run) == bits(trained[name])


@pytest.mark.parametrize("name", RECIPES)
def test_verify_knows_the_class_once_its_file_was_read(
    name: str, trained: dict[str, Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe_of(name)
    verify(trained[name], data=data, last=STEPS // 2)
    assert "bit for bit" in capsys.readouterr().out


def test_what_the_page_says_of_commands_that_do_not_know_a_class(
    trained: dict[str, Path], data: Path, daybreak: Any
) -> None:
    told = daybreak("verify", trained["own_objective"], "--data", data)
    assert told.returncode == 2 and "MaskedSpans, which a file of your own defines. Name that file" in told.stderr
    with pytest.raises(UserError, match="is of type 'albert'"):
        load_pretrained(trained["own_architecture"] / "model")


# ---------------------------------------------------------------- the architecture


def test_the_layers_of_the_architecture_are_one() -> None:
    once, often = (dataclasses.replace(recipe_of("own_architecture").model, layers=n) for n in (1, 3))  # type: ignore[call-arg]
    assert once.build(50).parameter_count() == often.build(50).parameter_count()


def test_the_architecture_is_stock_albert_whatever_its_weights_are() -> None:
    """After a few steps norms are still about 1 and biases about 0, so that names could be mixed up unnoticed."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    torch.manual_seed(0)
    shape = dataclasses.replace(recipe_of("own_architecture").model, layers=3, positions=40)  # type: ignore[call-arg]
    model = shape.build(60).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    stock = AlbertForMaskedLM(AlbertConfig(**shape.to_hugging_face(60, 32))).eval()
    left = stock.load_state_dict(shape.export_weights(model), strict=False)
    assert not left.unexpected_keys and set(left.missing_keys) == {
        "predictions.decoder.weight", "predictions.decoder.bias",
    }  # fmt: skip
    stock.tie_weights()
    ids = torch.randint(5, 60, (3, 20))
    attention_mask = torch.ones_like(ids, dtype=torch.bool)
    attention_mask[1, 15:] = False
    with torch.inference_mode():
        theirs = stock(input_ids=ids, attention_mask=attention_mask.long()).logits[attention_mask]
        torch.testing.assert_close(
            model.logits(ids, attention_mask=attention_mask)[attention_mask], theirs, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("causal", [False, True])
def test_chosen_positions_of_the_architecture_are_the_full_forward_gathered(causal: bool) -> None:
    torch.manual_seed(0)
    model: Encoder = recipe_of("own_architecture").model.build(60).eval()
    ids = torch.randint(5, 60, (3, 12))
    positions = torch.tensor([[0, 4, 11], [1, 2, 3], [9, 10, 11]])
    attention_mask = torch.ones_like(ids, dtype=torch.bool)
    attention_mask[0, 8:] = False
    for mask in (None, attention_mask):
        with torch.inference_mode():
            whole = model.states(ids, causal=causal, attention_mask=mask)
            some = model.states(ids, positions, causal=causal, attention_mask=mask)
        torch.testing.assert_close(some, whole.gather(1, positions[:, :, None].expand_as(some)))
        if causal:
            changed = torch.cat((ids[:, :6], torch.full_like(ids[:, 6:], 7)), dim=1)
            with torch.inference_mode():
                left = model.states(changed, causal=True, attention_mask=mask)[:, :6]
            torch.testing.assert_close(left, whole[:, :6])


def test_compiled_and_recomputed_the_architecture_has_the_same_gradients() -> None:
    def gradients(prepare: Callable[[Encoder], object]) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model: Encoder = recipe_of("own_architecture").model.build(400).train()
        prepare(model)
        for progress in (0.1, 0.9):  # causal, masked
            asked: dict[str, Any] = {"seed": 1, "position": 0, "progress": progress}
            CausalThenMasked().loss(model, rows(), **asked).sum.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    def both(model: Encoder) -> None:
        model.gradient_checkpointing = True
        compile_blocks(model, "eager")  # torch must see each block as one graph; what it makes of it is its own

    limit = torch._dynamo.config.recompile_limit
    try:
        plain, other = gradients(lambda model: None), gradients(both)
    finally:
        torch._dynamo.config.recompile_limit = limit
        torch.compiler.reset()
    assert plain.keys() == other.keys() and len(plain) > 20
    for name in plain:
        torch.testing.assert_close(other[name], plain[name], rtol=1e-4, atol=1e-4, msg=name)


# ---------------------------------------------------------------- the objective


def rows(padded: bool = False) -> Batch:
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 400, (64, 32)))
    ids[:, 0], ids[:, 31] = SPECIAL.cls, SPECIAL.sep
    attention_mask = None
    if padded:
        ids[:, 20:] = SPECIAL.pad
        attention_mask = ids != SPECIAL.pad
    return Batch(input_ids=ids, attention_mask=attention_mask)


def spans(**fields: Any) -> Any:
    return dataclasses.replace(recipe_of("own_objective").objective, **fields)


@pytest.mark.parametrize("padded", [False, True])
def test_the_objective_counts_its_targets_beforehand(padded: bool) -> None:
    objective: Objective = spans(rate=0.25)
    model = recipe_of("own_objective").model.build(400)
    batch = rows(padded)
    asked: dict[str, Any] = {"seed": 3, "position": 128, "progress": 0.5}
    loss = objective.loss(model, batch, **asked)
    assert loss.count == objective.targets(batch, **asked) > 0
    assert loss.sum.item() / loss.count == pytest.approx(np.log(400), rel=0.1)


@pytest.mark.parametrize("span", [1, 3, 5])
def test_the_objective_hides_whole_spans_and_no_special_token(span: int) -> None:
    objective, batch = spans(span=span, rate=0.3), rows()
    positions = objective.positions(batch, seed=1, position=0)
    assert positions.shape == (64, round(0.3 * 32))
    assert not {SPECIAL.cls, SPECIAL.sep} & set(batch.input_ids.gather(1, positions).flatten().tolist())
    lengths = [len(run) for row in positions.tolist() for run in runs(row)]
    # Whole pieces, but for the last one, those at the ends of a row, and neighbours, which look like one.
    assert np.mean(lengths) > 0.75 * span
    assert np.bincount(positions.flatten().numpy(), minlength=32)[1:31].min() > 0, "some position is never hidden"


def runs(places: list[int]) -> list[list[int]]:
    """Neighbours together."""
    found: list[list[int]] = []
    for place in places:
        if found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def test_the_objective_draws_by_row_of_the_run_whatever_the_batch() -> None:
    objective, batch = spans(), rows()
    whole = objective.positions(batch, seed=1, position=100)
    part = objective.positions(batch[16:32], seed=1, position=116)
    assert torch.equal(whole[16:32], part)
    assert not torch.equal(whole, objective.positions(batch, seed=2, position=100))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="span at least 1"):
        spans(span=0)
    with pytest.raises(UserError, match="cannot be split into 3 heads"):
        dataclasses.replace(recipe_of("own_architecture").model, heads=3).build(50)  # type: ignore[call-arg]


# ---------------------------------------------------------------- the task


def test_the_task_is_learned_from_by_the_exported_model(trained: dict[str, Path], tmp_path: Path) -> None:
    task, run = EXAMPLES / "own_task.toml", trained["own_architecture"]
    (found,) = evaluate(run, [str(task)], seeds=1, epochs=1, out=tmp_path, workers=1)
    assert (found.task, found.train_rows, found.dev_rows) == ("tickets", 36, 12)
    assert list(found.labels) == ["account", "billing", "delivery"]
    assert found.baseline == pytest.approx(1 / 3) and 0 <= found.mean <= 1

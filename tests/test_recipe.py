"""Recipes: all of them resolve, JSON brings them back exactly, and every default is on record in tests/golden.

After a change of a recipe that is meant: ``python tests/test_recipe.py --write``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daybreak.commands.recipes import LEARNING, SCALED, parameters, results
from daybreak.core.batch import Batch
from daybreak.core.encoder import EncoderConfig
from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.core.serialization import from_dict, to_dict
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.models.modern import ModernEncoder
from daybreak.pretraining.flops import meta_model, vocabulary_of
from daybreak.recipe import (
    SIZES,
    Origin,
    Recipe,
    first_difference,
    load_recipe,
    recipe_names,
    resolved,
    shipped_recipe,
    with_whole_paths,
)
from daybreak.schemas.run import SpecialIds
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.schedule import WarmupLinear

GOLDEN = Path(__file__).with_name("golden")
NAMES = recipe_names()


def golden(name: str) -> Path:
    return GOLDEN / f"{name}.json"


FLAGSHIP = ["daybreak-base", "daybreak-mini", "daybreak-small", "daybreak-tiny"]
SYSTEMS = ["bert-2018", "bert-8gb", "bert-gpu", "crammed", "crammed-8gpu", "crammed-legacy", "scibert"]
ADAPTING = ["daybreak-embed"]
LADDER = [f"ladder-{run:02}" for run in range(1, 14) if run != 5]
SIZED = [*SYSTEMS, *LADDER]


def test_the_family_the_systems_and_the_ladder_ship() -> None:
    assert sorted([*FLAGSHIP, *ADAPTING, *SYSTEMS, *LADDER]) == NAMES


@functools.cache
def counted(model: EncoderConfig, vocabulary: int) -> int:
    """The parameters of a model, which many recipes share."""
    return meta_model(dataclasses.replace(load_recipe("tiny"), model=model), vocabulary).parameter_count()


def variants() -> dict[str, dict[str, Any]]:
    """What --size and --faithful make of each recipe: its fingerprint, and the numbers one looks for first."""
    found = {}
    for name in SIZED:
        for size in SIZES:
            for faithful in (False, True):
                recipe = load_recipe(name, size=size, faithful=faithful)
                found[f"{name} --size {size}{' --faithful' * faithful}"] = {
                    "fingerprint": resolved(recipe)["fingerprint"],
                    "parameters": counted(recipe.model, vocabulary_of(recipe)),
                    "batch": recipe.batch,
                    "lr": recipe.optimizer.lr,
                    "init_std": to_dict(recipe.model)["init_std"],
                }
    return found


def test_every_size_is_what_is_on_record() -> None:
    assert variants() == json.loads((GOLDEN / "sizes.json").read_text()), (
        "If meant: python tests/test_recipe.py --write"
    )


@pytest.mark.parametrize("name", SIZED)
def test_every_size_fits_together_and_each_deviation_has_its_reason(name: str) -> None:
    for size in ("", *SIZES):
        ours, theirs = (to_dict(load_recipe(name, size=size, faithful=faithful)) for faithful in (False, True))
        load_recipe(name, size=size).check()
        scaled = {*SCALED, *LEARNING} if size in ("tiny", "mini", "small") else set()
        reasons = shipped_recipe(name).deviations
        for field in differences(ours, theirs):
            assert field in scaled or any(field == key or field.startswith(f"{key}.") for key in reasons), field
        for key in reasons:
            if key.split(".")[0] in ours and size in ("", "base", "large"):
                assert any(field.startswith(key) for field in differences(ours, theirs)), f"{key} does not deviate"


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            field
            for key in {**left, **right}
            for field in differences(left.get(key), right.get(key), f"{where}.{key}" if where else key)
        ]
    return [] if left == right else [where]


def test_the_parameter_counts_of_the_literature() -> None:
    assert parameters(load_recipe("crammed")) == 119_589_889
    assert parameters(load_recipe("crammed-legacy")) == 120_179_713
    assert parameters(load_recipe("bert-8gb")) == 110_946_560


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"size": "huge"}, "--size cannot be 'huge'"),
        ({"faithful": True}, "has no original"),
    ],
)
def test_a_size_or_faithfulness_that_is_not_there_is_refused(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        load_recipe("daybreak-mini", **asked)
    with pytest.raises(UserError, match="the size of the model that --init names"):
        load_recipe("embed", size="tiny")
    write_json(tmp_path / "recipe.json", resolved(load_recipe("tiny")))
    with pytest.raises(UserError, match="one size only"):
        load_recipe(tmp_path, size="mini")


def test_a_folder_with_the_name_of_a_recipe_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of downloaded files, or a run that was named after its recipe."""
    monkeypatch.chdir(tmp_path)
    Path("crammed").mkdir()
    assert load_recipe("crammed", size="mini") == shipped_recipe("crammed").build("mini", False)  # type: ignore[misc]
    write_json(Path("crammed") / "recipe.json", resolved(load_recipe("tiny")))
    assert load_recipe("crammed").name == "crammed"
    assert load_recipe("./crammed") == load_recipe(Path("crammed")) == load_recipe("tiny")
    with pytest.raises(UserError, match="one size only"):
        load_recipe("./crammed", size="mini")


@pytest.mark.parametrize(("name", "steps"), [("bert-2018", 10_000), ("scibert", 1_000), ("bert-gpu", 10_000)])
def test_a_faithful_bert_warms_up_in_steps(name: str, steps: int) -> None:
    """Exact for budgets in steps and tokens; of a time budget the number of steps is not known."""
    recipe = load_recipe(name, faithful=True)
    first_phase = recipe.phase2.start if recipe.phase2.lr > 0 else 1.0
    step_tokens = recipe.global_batch(1) * recipe.length
    for budget, total in ((recipe.budget, float(recipe.budget.removesuffix("steps"))), ("200000steps", 200_000.0)):
        assert warmup_of(recipe, budget) * total * first_phase == pytest.approx(steps)
    assert warmup_of(recipe, "1e10tok") * 1e10 / step_tokens * first_phase == pytest.approx(steps)
    assert warmup_of(recipe, "24h") == warmup_of(load_recipe(name), "24h") == load_recipe(name).schedule.warmup  # type: ignore[attr-defined]
    assert warmup_of(recipe, "100steps") == 1.0


def warmup_of(recipe: Recipe, budget: str) -> float:
    schedule = dataclasses.replace(recipe, budget=budget).run_schedule()
    assert isinstance(schedule, WarmupLinear) and schedule(schedule.warmup / 2) == pytest.approx(0.5)
    return schedule.warmup


@pytest.mark.parametrize("name", ["bert-2018", "scibert"])
def test_a_faithful_bert_predicts_at_most_20_of_128_and_75_of_512_tokens(name: str) -> None:
    objective = load_recipe(name, faithful=True).objective
    for length, limit, default in ((128, 20, 19), (512, 75, 77)):
        batch = Batch(input_ids=torch.full((2, length), 9), special=SpecialIds())
        assert objective.targets(batch, seed=0, position=0, progress=0.0) == 2 * min(limit, default)
        assert load_recipe(name).objective.targets(batch, seed=0, position=0, progress=0.0) == 2 * default


def test_rung_6_of_the_ladder_differs_from_rung_4_in_compilation_only() -> None:
    changed = dataclasses.replace(load_recipe("ladder-04"), name="ladder-06", compile="off")
    assert load_recipe("ladder-06") == changed


def test_the_flagship_has_its_size_in_its_name() -> None:
    assert load_recipe("tiny", size="small") is load_recipe("daybreak-small")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_what_is_on_record(name: str) -> None:
    recorded = json.loads(golden(name).read_text())
    assert resolved(load_recipe(name)) == recorded, "If the change is meant: python tests/test_recipe.py --write"


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_loads_passes_its_check_and_has_a_description(name: str) -> None:
    recipe = load_recipe(name)
    recipe.check()
    assert recipe.name == name
    assert load_recipe(name.removeprefix("daybreak-")) is recipe
    description = shipped_recipe(name).description
    assert "daybreak run" in description.split("Command:")[1] and "--corpus" in description


def test_no_record_is_left_of_a_recipe_that_is_gone() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json") if path.stem != "sizes") == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_json_brings_a_recipe_back_exactly(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    write_json(tmp_path / "recipe.json", resolved(recipe))
    for source in (tmp_path, tmp_path / "recipe.json"):
        again = load_recipe(source)
        assert again == recipe and resolved(again) == resolved(recipe)
    assert first_difference(again, recipe) is None


def test_the_fingerprint_knows_every_value() -> None:
    recipe = load_recipe("tiny")
    other = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, epsilon=1e-9))
    assert resolved(recipe)["fingerprint"] != resolved(other)["fingerprint"]
    assert first_difference(recipe, other) == "optimizer.epsilon"
    assert first_difference(recipe, dataclasses.replace(recipe, budget="4m")) == "budget"


def test_a_folder_to_start_from_is_the_same_under_each_of_its_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier commits kept the path as it was typed; a run may have been moved with its model."""
    (tmp_path / "models" / "x").mkdir(parents=True)
    (tmp_path / "other" / "x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def begun(folder: str) -> Recipe:
        origin = Origin(init=folder, general=folder)
        return dataclasses.replace(load_recipe("tiny"), origin=origin, tokenizer=Existing(folder=folder))

    whole, relative = begun(str(tmp_path / "models" / "x")), begun("models/x")
    assert with_whole_paths(relative) == whole == with_whole_paths(whole)
    assert with_whole_paths(begun("org/name")) == begun("org/name")
    for before in (whole, relative, begun("/gone/x")):
        assert first_difference(before, relative) is None and first_difference(before, whole) is None
    for before in (begun("other/x"), begun("/gone/y"), begun("")):
        assert first_difference(before, relative) == "tokenizer.folder"
    named = dataclasses.replace(relative, origin=Origin(init="other/x", general="models/x"))
    assert first_difference(named, relative) == "origin.init"
    named = dataclasses.replace(relative, origin=Origin(init="models/x", general="other/x"))
    assert first_difference(named, relative) == "origin.general"


def damaged(tmp_path: Path, change: dict[str, Any]) -> Path:
    """recipe.json of tiny with dotted names set to other values; None removes them."""
    plain = resolved(load_recipe("tiny"))
    for dotted, value in change.items():
        *way, last = dotted.split(".")
        place = plain
        for part in way:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(plain))
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"optimizer.lrate": 1.0}, "Unknown field 'optimizer.lrate'. Did you mean 'lr'?"),
        ({"lenght": 64}, "Unknown field 'lenght'. Did you mean 'length'?"),
        (
            {"optimizer.kind": "AdamWX"},
            "this version knows. Did you mean 'AdamW'?",
        ),
        ({"model.layers": None}, "'model.layers' is missing"),
        ({"batch": "many"}, "'batch' holds 'many'"),
        ({"batch": True}, "'batch' holds True"),
        ({"model": 7}, "'model' should be an object"),
    ],
)
def test_a_recipe_file_that_does_not_fit_is_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe(damaged(tmp_path, change))
    assert named in str(error.value)


@pytest.mark.parametrize(("name", "near"), [("tinny", "tiny"), ("daybreak-smal", "daybreak-small"), ("bass", "base")])
def test_an_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserError, match=f"There is no recipe '{name}'. Did you mean '{near}'?"):
        load_recipe(name)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"budget": "soon"}, "'soon'"),
        ({"length": 4}, "sequence length of 4"),
        ({"batch": 0}, "--batch"),
        ({"batch": (1 << 20) + 1}, "--batch is 1048577. Give a number from 0 to 1,048,576."),
        (
            {"model": ModernEncoder(layers=1, hidden_size=10**26, heads=2, intermediate_size=4)},
            "--model.hidden-size is .* Give a number up to 1,048,576.",
        ),
        ({"microbatch": -1}, "--microbatch"),
        ({"max_grad_norm": 0.0}, "--max-grad-norm"),
        ({"optimizer": AdamW(lr=-1.0)}, "--optimizer.lr"),
        ({"max_grad_norm": float("nan")}, "--max-grad-norm"),
        ({"seed": 20261122110000}, "--seed 20261122110000 is too large"),
    ],
)
def test_values_that_cannot_work_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        dataclasses.replace(load_recipe("tiny"), **change).check()


def test_a_recipe_may_be_a_python_file_with_a_class_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        """
from __future__ import annotations
from dataclasses import replace, dataclass, replace
from daybreak.recipe import load_recipe
from daybreak.training.schedule import Schedule

@dataclass(frozen=True, kw_only=True)
class Half(Schedule):
    share: float = 0.5
    def __call__(self, progress, rows=0):
        return self.share

recipe = replace(load_recipe("tiny"), name="mine", schedule=Half(share=0.25))
"""
    )
    recipe = load_recipe(path)
    assert recipe.name == "mine" and recipe.schedule(0.9) == 0.25
    assert from_dict(Recipe, to_dict(recipe)) == recipe  # while its file is imported, its kinds are known
    path.write_text("recipes = 1\n")
    (tmp_path / "typed.py").write_text(
        "from dataclasses import replace\nimport daybreak\nrecipe = replace(daybreak.load_recipe('tiny'), batch='16')\n"
    )
    with pytest.raises(UserError, match=r"The recipe cannot be used: The field 'batch' holds '16', not int"):
        load_recipe(tmp_path / "typed.py")
    with pytest.raises(UserError, match="defines no 'recipe'"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gradient_checkpointing", "yes"),
        ("texts", None),
        ("batch", 8.0),
        ("seed", "1"),
        ("model", "tiny"),
        ("compile", 1),
    ],
)
def test_values_of_a_wrong_type_are_refused_before_a_run(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"The recipe cannot be used: The field '{field}'"):
        replace(load_recipe("tiny"), **{field: value}).check()


def test_numbers_of_numpy_are_numbers() -> None:
    recipe = load_recipe("tiny")
    found = replace(recipe, batch=np.int64(8), optimizer=replace(recipe.optimizer, lr=np.float32(0.5)))
    found.check()
    same = replace(recipe, batch=8, optimizer=replace(recipe.optimizer, lr=0.5))
    assert json.dumps(to_dict(found)) == json.dumps(to_dict(same))


@pytest.mark.parametrize("name", recipe_names())
def test_a_description_ends_with_published_results_an_existing_record_or_not_measured_yet(name: str) -> None:
    text = results(name)
    root = Path(__file__).resolve().parents[1]
    if "Measured:" in text:
        path = root / text.split("Measured:")[1].split()[0]
        assert path.is_file() or (path / "summary.json").is_file()
    else:
        assert text.startswith("Published:") or text == "Not measured yet."


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], __doc__
    GOLDEN.mkdir(exist_ok=True)
    for each in NAMES:
        write_json(golden(each), resolved(load_recipe(each)))
    write_json(GOLDEN / "sizes.json", variants())

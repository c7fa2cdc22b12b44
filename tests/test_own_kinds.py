"""Runs whose recipe holds classes of a user's own file: each command that reads the recipe can be given that file."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from in_process import exit_code
from small_records import PASSED

from daybreak.commands.report import report
from daybreak.commands.study_data import Preparation, study_data
from daybreak.core.encoder import EncoderConfig
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.sequences.sampler import SequencesConfig
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
from daybreak.recipe import load_recipe, resolved
from daybreak.studies.cell_runner import Cell, StudyFolder
from daybreak.training.hardware import probe
from daybreak.training.objectives.objective import Objective
from daybreak.training.optim.optimizers import OptimizerConfig
from daybreak.training.schedule import Schedule

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
OBJECTIVE, ARCHITECTURE = EXAMPLES / "own_objective.py", EXAMPLES / "own_architecture.py"
STEPS = 20


@pytest.fixture(scope="module", autouse=True)
def _light() -> Iterator[None]:
    """On the CPU, and every export passes at once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))
        for module in ("pretraining.run_end", "exporting.parity"):
            monkeypatch.setattr(f"daybreak.{module}.check_parity", lambda *_, **__: PASSED)
        yield


@pytest.fixture(scope="module")
def run(data: Path, shape: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the example of an objective, with a setting that is not its file's."""
    out = tmp_path_factory.mktemp("own") / "run"
    words = ["--data", data, "--budget", f"{STEPS}steps", "--objective.span", "5", *shape]
    assert exit_code("pretrain", OBJECTIVE, *words, "--out", out) == 0
    return out


@pytest.fixture
def unknown(run: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The run, as if its class had a name that this process never heard of; mine.py beside it defines it.

    The checkpoint from before its decay stands for its best, too.
    """
    name = "Spans" + "".join(filter(str.isalpha, request.node.name))
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.copytree(copy / "before-decay", copy / "best", dirs_exist_ok=True)
    for source, new in ((OBJECTIVE, tmp_path / "mine.py"), (run / "recipe.json", copy / "recipe.json")):
        new.write_text(source.read_text(encoding="utf-8").replace("MaskedSpans", name), encoding="utf-8")
    assert read_json(copy / "recipe.json")["own_kinds"] == [name]
    return copy


def asked(verb: str, run: Path, data: Path, out: Path) -> list[object]:
    """A command that reads the recipe of ``run``."""
    words: dict[str, list[object]] = {
        "verify": ["verify", run],
        "record": ["record", run, "--last", 5, "--out", out],
        "export": ["export", run, "--best", "--out", out],
        "pretrain": ["pretrain", run, "--out", out],
        "from": ["pretrain", "--from", run, "--extend", f"{STEPS}steps", "--out", out],
    }
    return [*words[verb], "--data", data]


@pytest.mark.parametrize("verb", ["verify", "record", "export", "pretrain", "from"])
def test_a_command_says_what_to_name_and_does_its_work_with_it(
    verb: str, run: Path, unknown: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, recipe = tmp_path / "out", read_json(unknown / "recipe.json")
    (name,) = recipe["own_kinds"]
    assert exit_code(*asked(verb, unknown, data, out)) == 2 and not out.exists()
    assert capsys.readouterr().err == (
        f"daybreak: '{unknown / 'recipe.json'}' uses {name}, which a file of your own defines. Name that "
        "file with --recipe FILE.py, or in place of the run if the command has no such flag.\n"
    )
    assert exit_code(*asked(verb, unknown, data, out), "--recipe", tmp_path / "mine.py") == 0
    if verb == "verify":
        assert "bit for bit" in capsys.readouterr().out
    elif verb == "record":
        (record,) = out.iterdir()
        assert read_json(record / "recipe.json")["own_kinds"] == [name]
    elif verb == "export":
        assert (out / "model.safetensors").is_file()
    else:
        found = read_json(out / "recipe.json")
        assert (found["own_kinds"], found["objective"]) == ([name], recipe["objective"])
        assert found["objective"]["span"] == 5
        weights = [folder / "model" / "model.safetensors" for folder in (run, out)]
        assert (weights[0].read_bytes() == weights[1].read_bytes()) == (verb == "pretrain")
        assert exit_code(*asked(verb, unknown, data, out), "--recipe", tmp_path / "mine.py") == 0  # as if to resume


def test_a_class_of_another_version_or_a_wrong_name_is_reported_likewise(
    unknown: Path, refused: Callable[..., str]
) -> None:
    """As in a folder that was written before recipe.json said which kinds do not ship."""
    plain = read_json(unknown / "recipe.json")
    (name,) = plain.pop("own_kinds")
    (unknown / "recipe.json").write_text(json.dumps(plain))
    said = refused("verify", unknown)
    assert f"'{name}' is not a kind of Objective that this version knows." in said and "with --recipe FILE.py" in said


def test_the_report_names_the_file_that_is_needed(run: Path, tmp_path: Path) -> None:
    page = report([run], tmp_path / "report.md", form="md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("daybreak pretrain")]
    assert line == (
        f"daybreak pretrain {run} --recipe FILE.py --data DATA --out {run}-again    # the same recipe, seed and budget "
        "again; FILE.py is your recipe file with MaskedSpans"
    )


def test_only_what_does_not_ship_is_named(tmp_path: Path) -> None:
    assert "own_kinds" not in resolved(load_recipe("bert-2018"))
    own = load_recipe(ARCHITECTURE)
    plain = resolved(own)
    assert plain["own_kinds"] == ["AlbertEncoder"]
    (tmp_path / "recipe.json").write_text(json.dumps(plain))
    assert load_recipe(tmp_path) == own and resolved(load_recipe(tmp_path)) == plain


def test_a_file_that_is_no_recipe_is_refused(run: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    assert "There is no recipe 'nowhere.py'" in refused("verify", run, "--recipe", "nowhere.py")
    (tmp_path / "mine.py").write_text("import json\n\nrecipe = json.dump\nrecipe = recip\n")
    said = refused("export", run, "--recipe", tmp_path / "mine.py", "--out", tmp_path / "out")
    assert "mine.py' cannot be used: line 4: NameError: name 'recip' is not defined. Correct that file." in said


# ---------------------------------------------------------------- texts against each other


def test_cells_get_the_file_that_defines_the_classes_of_ones_own(
    corpus: Path, shape: list[str], refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``daybreak pretrain`` is another process: of the recipe's file it knows what it is told."""
    cells: list[Cell] = []

    def train(cell: Cell, place: StudyFolder, lock: TextIO) -> None:
        cells.append(cell)
        raise UserError("Enough.", "Stop here.")

    monkeypatch.setattr("daybreak.studies.experiment.train_cell", train)
    asked = ["study-data", f"tales={corpus}", "--preprocessings", "raw,sorted", "--budget", "20steps"]
    recipe = f"{OBJECTIVE} --objective.span 5 {' '.join(shape)}"
    assert "Enough." in refused(*asked, "--out", tmp_path / "out", "--recipe", recipe, "--workers", "1")
    (cell,) = cells
    assert cell.words == (str(tmp_path / "out" / "recipes" / "tales-raw.json"), "--recipe", str(OBJECTIVE))
    written = json.loads(Path(cell.words[0]).read_text())
    assert (written["own_kinds"], written["objective"]["span"]) == (["MaskedSpans"], 5)
    assert written["rows"]["kind"] == "PackedRows"


def test_classes_of_ones_own_that_a_cell_could_not_know_or_evaluate_are_refused_at_once(tmp_path: Path) -> None:
    plain = Preparation(preprocessings=("raw", "filtered"))
    asked: dict[str, Any] = dict(out=tmp_path / "out", budget="20steps", threads=1, preparation=plain)
    with pytest.raises(UserError, match=r"'a, raw': It uses MaskedSpans, .* Name that file: code="):
        study_data({"a": ["nowhere"]}, recipe=load_recipe(OBJECTIVE), **asked)
    with pytest.raises(UserError, match="An exported AlbertEncoder cannot be loaded again"):
        study_data({"a": ["nowhere"]}, recipe=load_recipe(ARCHITECTURE), code=str(ARCHITECTURE), **asked)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- a method that was forgotten


def own_class(path: Path, base: str, field: str, *methods: str) -> None:
    """Write a recipe whose ``field`` is an instance of a class of that base with these methods."""
    body = "".join(f"    def {method}:\n        return 0.5\n\n" for method in methods)
    path.write_text(
        "from dataclasses import dataclass, replace\nfrom daybreak.recipe import load_recipe\n"
        "from daybreak.training.objectives.objective import Objective\n"
        "from daybreak.training.schedule import Schedule\n\n"
        f"@dataclass(frozen=True, kw_only=True)\nclass Own({base}):\n{body}"
        f'recipe = replace(load_recipe("tiny"), {field}=Own())\n'
    )


def test_a_class_of_ones_own_that_cannot_be_used_is_refused_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    own_class(path, "Objective", "objective", "stage(self, progress)", "loss(self, model, batch, **more)")
    with pytest.raises(UserError, match=r"mine.py' cannot be used: line 14: TypeError: .*abstract method '?targets'?"):
        load_recipe(path)
    own_class(path, "Schedule", "schedule", "__call__(self, progress)")
    with pytest.raises(UserError, match=r"line \d+: TypeError: write Own.__call__ as def __call__\(self, progress"):
        load_recipe(path)
    own_class(path, "Schedule", "schedule", "__call__(self, progress, *_)")
    assert load_recipe(path).schedule(0.0, 64) == 0.5


@pytest.mark.parametrize(
    "kind", [EncoderConfig, Objective, OptimizerConfig, SequencesConfig, Schedule, TokenizerConfig]
)
def test_no_plug_point_can_be_made_itself(kind: Any) -> None:
    fields = {field.name: 1.0 for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}
    with pytest.raises(TypeError, match="abstract"):
        kind(**fields)

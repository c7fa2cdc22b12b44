"""The command line: its flags are frozen, its mistakes answered in words, its exit codes those of the README.

After a change of the flags that is meant: ``python tests/test_cli.py --write``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daybreak import __version__, cli
from daybreak.commands import run
from daybreak.core.errors import Interrupted, UserError
from daybreak.core.files import write_json
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.recipe import load_recipe, recipe_names, resolved
from daybreak.schemas.old_names import FLAGS, PREPARE_FLAGS

GOLDEN = Path(__file__).with_name("golden") / "flags.txt"
Refused = Callable[..., str]


def said(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            cli.main(arguments)
        except SystemExit as left:
            return int(left.code or 0), out.getvalue()
    raise AssertionError("main always exits")


def flags() -> str:
    """One line for each option of each command."""
    os.environ["COLUMNS"] = "400"
    lines = []
    for verb in cli.COMMANDS:
        code, text = said(verb, "--help")
        assert code == 0, text
        lines += [f"{verb} {name}" for name in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9]", text)))]
    return "\n".join(lines) + "\n"


def test_the_flags_are_those_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert flags() == GOLDEN.read_text(), "If the change is meant: python tests/test_cli.py --write"


@pytest.mark.parametrize("verb", ["evaluate", "study"])
def test_help_names_every_protocol(verb: str) -> None:
    _, text = said(verb, "--help")
    offered = re.search(r"Fine-tuning protocol: ([^.]*)\.", " ".join(text.replace("│", " ").split()))
    assert offered and re.split(", | or ", offered[1]) == list(PROTOCOLS)


def test_help_breaks_lines_where_they_are_full_and_has_the_most_used_options_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """tyro would also break them where a docstring does in the source."""
    monkeypatch.setenv("COLUMNS", "100")
    _, text = said("run", "--help")
    assert "pile-subset; see daybreak prepare. Defaults to the docstrings of the " in text
    assert "Most runs need only --corpus, --budget, --out and --tasks." in " ".join(text.split())
    options = re.findall(r"(?m)^[^\w-]{1,3}(--[a-z][a-z-]+)", text)
    assert options[:3] == ["--corpus", "--tasks", "--out"] and "None}" not in text


def test_help_imports_torch_only_for_the_commands_with_a_recipe() -> None:
    script = """
import sys
from daybreak.cli import COMMANDS, dispatch
for command in sorted({*COMMANDS} - {"pretrain", "run"}):
    try:
        dispatch([command, "--help"])
    except SystemExit as left:
        assert not left.code
    assert not {"torch", "transformers"} & set(sys.modules), command
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command_and_the_first_command() -> None:
    for words in ((), ("--help",), ("-h",), ("help",)):
        code, text = said(*words)
        assert code == 0 and "daybreak run mini --corpus TEXT --budget 15m" in text
        assert all(f"  {verb} " in text for verb in cli.COMMANDS)


def test_help_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, text = said("--help")
    assert max(map(len, text.splitlines())) <= 80
    assert all(" ".join(summary.split()) in " ".join(text.split()) for summary in cli.COMMANDS.values())


def test_the_version_comes_from_a_fresh_process_without_torch() -> None:
    script = "import sys; from daybreak.cli import main\n"
    script += "try: main(['--version'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"daybreak {__version__}\n"
    done = subprocess.run([sys.executable, "-m", "daybreak", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"daybreak {__version__}\n"


@pytest.mark.parametrize(("word", "near"), [("pretain", "pretrain"), ("reports", "report"), ("evalute", "evaluate")])
def test_an_unknown_command_gets_the_nearest(word: str, near: str, refused: Refused) -> None:
    assert f"There is no command '{word}'. Did you mean '{near}'?" in refused(word)


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (("run", "--optimiser.lr", "1"), "--optimizer.lr"),
        (("pretrain", "mini", "--data", "d", "--lenght", "64"), "--length"),
        (("evaluate", "model", "--task", "cola"), "--tasks"),
    ],
)
def test_an_unknown_flag_gets_the_nearest(arguments: tuple[str, ...], near: str, refused: Refused) -> None:
    assert near in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "tinny"), "There is no recipe 'tinny'. Did you mean 'tiny'?"),
        (("run", "tiny", "--batch", "many"), "many"),
        (("run", "tiny", "my_texts", "--budget", "1m"), "'my_texts' belongs to no option. Did you mean --corpus my_"),
        (("run", "."), "'.' is not a recipe. Did you mean daybreak run tiny --corpus .?"),
        (("pretrain", "mini", "data/mine"), "'data/mine' belongs to no option. Did you mean --data data/mine?"),
        (("run", "tiny", "--corpus", "text.txt"), "A corpus needs a budget. Add one, such as --budget 15m for"),
        (("run", "--budget", "11m"), "at most 10 minutes"),
        (("run", "base"), "at most 10 minutes"),
        (("run", "--budget", ""), "empty"),
        (("prepare", "a.txt", "--evaluation", "b", "--out", "c", "--evaluation=d"), "--evaluation is given twice."),
        (("run", "--budget", "often"), "'often' is not a budget"),
        (("run", "tiny", "--budget", "1m", "--corpus", "/nowhere/at/all.txt", "--out", "OUT"), "/nowhere/at/all.txt"),
        (("prepare", "--out", "OUT"), "No text is given"),
        (("pretrain",), "--data"),
        (("pretrain", "tiny", "--data", "d", "--schedule", "Cosine"), "set schedule in a recipe file"),
        (("prepare", "text", "--out", "data", "--size", "small"), "--size needs --recipe."),
        (("prepare", "text", "--out", "data", "--faithful"), "--faithful needs --recipe."),
        (
            ("prepare", "text", "--out", "d", "--tokenizer-from", "m", "--tokenizer-kind", "ByteBPE"),
            "Give one of them.",
        ),
        (("pretrain", "mini", "--data", "data", "--new_vocabulary"), "--new-vocabulary needs --init."),
        (("pretrain", "--from", "RUN", "--extend", "8h", "--data", "data", "--budget", "3h"), "Give --extend alone."),
        (("run", "tiny", "--optimizer.kind=Muon"), "No option chooses the class of the optimizer"),
        (("verify", "/nowhere"), "/nowhere"),
        (("report",), "No run folder is given"),
        (("status", "/nowhere"), "/nowhere"),
        (("export", "/nowhere", "--out", "OUT"), "is neither a run folder nor a model"),
        (("evaluate", "/nowhere", "--tasks", "cola"), "There is no model folder '/nowhere'"),
        (("recipes", "smal"), "Did you mean 'small'?"),
        (("recipes", "--size", "mini"), "no recipe is named"),
    ],
)
def test_what_cannot_work_ends_with_2_and_a_remedy(
    arguments: tuple[str, ...], words: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    assert words in re.sub(r"\s+", " ", refused(*arguments))


@pytest.mark.parametrize("command", ["run", "prepare", "evaluate", "study", "study-data"])
def test_a_command_of_one_process_is_refused_under_torchrun(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its other copies would work on the same files, and end the first."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert cli.run_command([command, "anything"]) == 2
    assert f"daybreak {command} is a single process, but WORLD_SIZE is 8. Start it" in capsys.readouterr().err


def test_exit_codes_tell_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    def ending(error: BaseException) -> tuple[int, str]:
        def main(_: list[str]) -> None:
            raise error

        monkeypatch.setattr("daybreak.commands.status.main", main)
        return said("status", "run")

    assert ending(Interrupted(15)) == (143, "daybreak: stopped.\n"), "status keeps nothing to go on with"
    assert ending(Interrupted(2))[0] == 130
    assert ending(KeyboardInterrupt())[0] == 130
    allocator = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    no_memory = (MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), RuntimeError(allocator))
    for full in (*no_memory, RuntimeError("can't start new thread")):
        code, text = ending(full)
        assert code == 2 and text.startswith("daybreak: out of memory.") and "Traceback" not in text
    code, text = ending(RuntimeError("CUDA error: no kernel image is available for execution on the device"))
    assert code == 2 and "no code for this GPU" in text and "Traceback" not in text
    assert ending(BrokenPipeError()) == (1, "")  # daybreak status RUN | head -1
    code, text = ending(ZeroDivisionError("of ours"))
    assert code == 1 and "Traceback" in text and "this is a bug in Daybreak" in text


def test_work_that_lost_its_reader_says_that_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(_: list[str]) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("daybreak.commands.prepare.main", prepare)
    code, text = said("prepare", "texts", "--out", "data")
    assert code == 1 and text.endswith("its output was closed; the same command resumes.\n")
    assert said("prepare", "--help") == (1, "")


@pytest.mark.parametrize("flag", ["--overwrite", "--fresh"])
def test_a_command_that_would_delete_its_work_is_not_said_to_resume_it(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(_: list[str]) -> None:
        raise Interrupted(2)

    monkeypatch.setattr("daybreak.commands.pretrain.main", pretrain)
    code, text = said("pretrain", "tiny", "--data", "data", flag)
    assert code == 130 and text.endswith("daybreak: stopped; the same command without --overwrite resumes.\n")


@pytest.mark.parametrize(
    ("old", "new"), [(["--steps", "own.py"], ["--filters", "own.py"]), (["--case=web"], ["--preset=web"])]
)
def test_an_old_flag_works_and_names_its_successor(
    old: list[str], new: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[list[str]] = []
    monkeypatch.setattr("daybreak.commands.prepare.main", received.append)
    cli.dispatch(["prepare", "text", "--out", "data", *old])
    assert received == [["text", "--out", "data", *new]]
    before, after = (words[0].partition("=")[0] for words in (old, new))
    assert capsys.readouterr().err == f"daybreak: {before} is now {after}.\n"


def test_underscores_in_a_flag_are_hyphens(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    monkeypatch.setattr("daybreak.commands.prepare.prepare", lambda *_, tokenizer, **__: received.append(tokenizer))
    cli.dispatch(["prepare", "a_b.txt", "--out", "data", "--tokenizer_kind", "ByteBPE"])
    cli.dispatch(["prepare", "a_b.txt", "--out", "data", "--recipe", "tiny", "--recipe=base"])
    assert [type(each).__name__ for each in received] == ["ByteBPE", "WordPiece"]
    assert received[1] == load_recipe("base").tokenizer


def test_a_tokenizer_of_the_recipes_own_kind_is_the_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    received: list[Any] = []
    monkeypatch.setattr("daybreak.commands.prepare.prepare", lambda *_, tokenizer, **__: received.append(tokenizer))
    recipe = ["prepare", "text", "--out", "data", "--recipe", "crammed", "--tokenizer-kind"]
    cli.dispatch([*recipe, "WordPiece"])
    cli.dispatch([*recipe, "ByteBPE"])
    continued = replace(load_recipe("tiny"), tokenizer=Existing(folder="model"))  # it trains none
    write_json(tmp_path / "recipe.json", resolved(continued))
    cli.dispatch([*recipe[:4], "--recipe", str(tmp_path), "--tokenizer-kind", "ByteBPE"])
    own = load_recipe("crammed").tokenizer
    assert received == [own, ByteBPE(vocabulary=own.vocabulary), ByteBPE()]


def test_old_flags_of_a_recipe_are_parsed_into_its_current_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    monkeypatch.setattr("daybreak.commands.pretrain.pretrain", lambda recipe, **options: received.append(recipe))
    old = "--clip 0.5 --model.width 32 --model.heads 2 --later.start 0.8 --later.length 64 --no-recompute"
    cli.dispatch(["pretrain", "tiny", "--data", "data", *old.split()])
    (recipe,) = received
    assert (recipe.max_grad_norm, recipe.model.hidden_size, recipe.phase2.start) == (0.5, 32, 0.8)
    assert recipe.phase2.length == 64 and not recipe.gradient_checkpointing


def test_every_current_name_of_an_old_flag_exists() -> None:
    current = {line.split()[1] for line in GOLDEN.read_text().splitlines()}
    assert ({*FLAGS.values(), *PREPARE_FLAGS.values()} - {"--no-overwrite"}) - current <= OPTIONAL
    assert not {*FLAGS} & current


OPTIONAL = {"--rows.short-fraction", "--rows.random-fraction"}
"""Flags of recipes other than tiny, whose flags are on record."""


def test_recipes_are_listed_and_shown_in_full() -> None:
    code, text = said("recipes")
    assert code == 0 and [line.split()[0] for line in text.splitlines()[::2]] == recipe_names()
    assert "Geiping and Goldstein 2022 (arXiv 2212.14034), final code of JonasGeiping/cramming; published" in text
    assert "Daybreak's own; measured" in text and "; not measured yet" in text
    assert "flagship" not in text, "the name that the pages explain"
    code, text = said("recipes", "bert-8gb", "--size", "mini")
    assert code == 0 and "rows.mask_padding = true, originally false:" in text
    code, text = said("recipes", "crammed")
    assert code == 0 and "120 million parameters" in text
    code, text = said("recipes", "mini")
    assert code == 0 and "Measured:" in text and '"kind": "ModernEncoder"' in text and '"fingerprint"' in text


def test_a_recipe_file_brings_the_flags_of_its_own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    path = tmp_path / "mine.py"
    path.write_text(
        """
from dataclasses import dataclass, replace
from daybreak.recipe import load_recipe
from daybreak.training.schedule import Schedule

@dataclass(frozen=True, kw_only=True)
class Steady(Schedule):
    share: float = 0.5
    def __call__(self, progress, rows=0):
        return self.share

recipe = replace(load_recipe("tiny"), name="mine", schedule=Steady())
"""
    )
    code, text = said("run", str(path), "--help")
    assert code == 0 and "--schedule.share" in text and "--schedule.warmup" not in text


def test_a_recipe_after_the_corpus_gets_the_remedy() -> None:
    with pytest.raises(UserError, match="Put the recipe first: daybreak run tiny"):
        run._refuse_recipe_in_corpus(("texts", "tiny"))
    run._refuse_recipe_in_corpus(("texts",))


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--objective.causal-fraction 1.5", "causal-fraction is 1.5. Give a number in [0, 1)."),
        ("--objective.causal-targets 0", "causal-targets is 0.0. Give a number in (0, 1]."),
        ("--objective.mask-rates 0.1 0.2 0.3 0.4 0.5", "one to four fractions"),
        ("--model.layers 0", "at least 1"),
        ("--model.pooling max", "cannot be 'max'"),
    ],
)
def test_a_value_out_of_range_is_refused_in_words(flag: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        cli.dispatch(["pretrain", "tiny", "--data", str(tmp_path), *flag.split()])


@pytest.mark.parametrize("command", ["run", "pretrain"])
def test_a_mistake_quotes_a_help_command_that_works(command: str) -> None:
    code, text = said(command, "--no-such-option")
    asked = re.search(rf"daybreak ({command}) (--help)", " ".join(text.replace("│", " ").split()))
    assert code == 2 and asked, text
    code, text = said(*asked.groups())
    assert code == 0 and f"usage: daybreak {command} [RECIPE]" in text


@pytest.mark.parametrize("command", ["run", "pretrain", "prepare", "evaluate", "study", "search"])
def test_the_help_shows_no_empty_defaults(command: str) -> None:
    """Their descriptions say what is used then."""
    _, shown = said(command, "--help")
    assert "default: ''" not in shown and "default: None" not in shown and "default: )" not in shown
    assert "(default:" in shown


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], __doc__
    GOLDEN.write_text(flags())

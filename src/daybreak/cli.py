"""The command line: the only file that parses arguments. Commands are imported when they are called."""

import errno
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from daybreak import __version__
from daybreak.core.errors import Interrupted, PeerLost, UserError
from daybreak.core.serialization import nearest
from daybreak.schemas.old_names import FLAGS, PREPARE_FLAGS

DEFAULT_RECIPE = "tiny"

ATTACHED = {"--extend": "--from", "--general": "--init", "--new-vocabulary": "--init"}
"""Flags that mean nothing without another."""
STUDY_GIVES = ("--data", "--out", "--budget", "--seed", "--overwrite", "--from", "--extend")
"""Flags that a variant of a study cannot have: they are the same for all, or the study's own."""
CHOSEN_FOLDER = "runs/chosen"
"""Run folder where the size is chosen for the user, who may not know its name beforehand."""
COMMANDS = {
    "run": "all of it, in order: prepare, pretrain, evaluate, report",
    "prepare": "any text -> tokenizer and token shards",
    "plan": "a budget -> what it will buy on this machine and text, and for which size",
    "pretrain": "shards -> checkpoints -> exported model; the same command resumes",
    "export": "a run's newest checkpoint -> a Hugging Face folder",
    "evaluate": "a model -> results.json: GLUE and your own tasks",
    "init-task": "a table of labelled rows -> the task file for evaluate, by looking at its columns",
    "probe": "a model -> probes.json: what its layers and words are worth, without fine-tuning",
    "search": "words -> the passages of a run's own text that answer them, by its own model",
    "verify": "a run's recorded steps once more: bit-equal, or the first tensor that differs",
    "record": "a finished run or study -> its evidence among the records; of a run, once it was verified",
    "leaderboard": "the records -> a page: what a fixed time buys, class by class",
    "study": "recipes against each other at equal clock, in turns: which is better, and how sure",
    "study-data": "texts and what is done with them against each other, likewise: is filtering worth it?",
    "report": "run folders -> one self-contained HTML file; of several, which is better and how sure",
    "check-submission": "files for gluebenchmark.com, anyone's -> fit to send, or what is wrong",
    "status": "what a run is doing, from another shell",
    "recipes": "the recipes, and one of them in full",
    "doctor": "what this machine is, what is installed, and what stands in the way",
}

NARROWEST = 20
"""Columns of a terminal."""

LASTING = ("run", "prepare", "pretrain", "evaluate", "study", "study-data")
"""Commands that leave something to go on with."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``daybreak COMMAND ...`` and exit with 0 (done), 1 (a bug), 2 (a user error), 130 or 143 (a signal)."""
    # Threads that wait by spinning starve each other as soon as the machine has anything else to do. Short spins cost
    # a little on an idle machine and save much on a busy one (docs/log.md). libgomp reads this when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    widen_narrow_terminal()
    code = _outcome(list(sys.argv[1:] if arguments is None else arguments))
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # The threads of gloo abort now and then while the interpreter shuts down, which would replace the exit code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def widen_narrow_terminal() -> None:
    """Print for at least NARROWEST columns: tyro lays out its help forever in fewer."""
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)


def _outcome(arguments: list[str]) -> int:
    try:
        try:
            _dispatch(arguments)
        finally:
            sys.stdout.flush()
    except UserError as error:
        print(f"daybreak: {error}", file=sys.stderr)
        return 2
    except PeerLost as lost:
        print(f"daybreak: {lost} Give the same command again: it goes on from the last checkpoint.", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print("daybreak: stopped; the same command goes on from here.", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("daybreak: stopped.", file=sys.stderr)
        return 130
    except MemoryError:
        print(
            "daybreak: the memory is full. Close other programs, or ask for less at a time (--workers, --microbatch), "
            "and give the same command again: it goes on where it was.",
            file=sys.stderr,
        )
        return 2
    except BrokenPipeError:
        if arguments[0] in LASTING:
            print("daybreak: what it prints is read no more, so it stopped; the same command goes on.", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return _bug()
        where = f" in '{error.filename}'" if error.filename else ""
        why = os.strerror(error.errno).lower()
        remedy = "Free disk space and give the same command again."
        print(f"daybreak: cannot write{where}: {why}. {remedy}", file=sys.stderr)
        from daybreak.core.terminal import discard_output

        discard_output()
        return 2
    except Exception:
        return _bug()
    return 0


def _bug() -> int:
    """Print the traceback of an exception that should not have happened."""
    traceback.print_exc()
    print("daybreak: this is a bug in Daybreak; please report the lines above.", file=sys.stderr)
    return 1


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
    elif arguments[0] in ("--version", "version"):
        print(f"daybreak {__version__}")
    elif arguments[0] in COMMANDS:
        arguments = _with_current_flags(arguments)
        globals()[f"_{arguments[0].replace('-', '_')}"](arguments[1:])
    else:
        raise UserError(
            f"There is no command '{arguments[0]}'.{nearest(arguments[0], COMMANDS)}", "See daybreak --help."
        )


def _with_current_flags(arguments: list[str]) -> list[str]:
    """Replace flags of the version before by their present names, and say so."""
    names = FLAGS | (PREPARE_FLAGS if arguments[0] == "prepare" else {})
    current = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag in names:
            print(f"daybreak: {flag} is now {names[flag]}.", file=sys.stderr)
            flag = names[flag]
        current.append(flag + equals + value)
    return current


def usage() -> str:
    """What ``daybreak --help`` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {command:{width}}  {what}" for command, what in COMMANDS.items())
    return (
        "Text and a time budget in; an encoder that stock Hugging Face loads out.\n\n"
        f"  daybreak COMMAND ...\n\n{commands}\n\n"
        "daybreak run            with nothing else: a small model from the docstrings on this machine, in minutes\n"
        "daybreak run mini --corpus TEXT --budget 15m\n"
        "daybreak COMMAND --help    the flags of a command; --version"
    )


def _parse(kind: type, command: str, arguments: list[str], default: Any = None) -> Any:
    """Read flags into the dataclass ``kind``; a mistake is printed by tyro with the nearest name, exit code 2."""
    import tyro

    _refuse_swallowed(arguments)
    try:
        return tyro.cli(
            kind, prog=f"daybreak {command}", args=arguments, default=default, description=COMMANDS[command]
        )
    except SystemExit as exit_:
        if exit_.code:
            raise SystemExit(2) from None
        raise


def _refuse_swallowed(arguments: list[str]) -> None:
    """An empty value is nearly always an unset shell variable; say so rather than parse on."""
    if "" in arguments:
        raise UserError("One of the arguments is empty.", "Check the shell variables in the command.")


def _with_recipe(kind: type, command: str, arguments: list[str], **fixed: Any) -> Any:
    """Parse a command whose first word may be a recipe: the flags are that recipe's own fields.

    What decides which recipe's fields these are (its size, what it starts from) is read before the parser.
    """
    named = bool(arguments) and not arguments[0].startswith("-")
    rest = arguments[1:] if named else arguments
    _refuse_nameless(command, arguments[0] if named else "", rest)
    recipe = _chosen_recipe(command, arguments[0] if named else None, arguments)
    return _parse(kind, command, rest, kind(recipe=recipe, **fixed))


def _refuse_nameless(command: str, recipe: str, rest: list[str]) -> None:
    """``run tiny my_texts`` and ``run my_texts``: a text, or data, to which no flag belongs."""
    from daybreak.recipe import FAMILY, recipe_names

    flag, path = {"run": "--corpus", "pretrain": "--data"}.get(command, ""), Path(recipe)
    if not flag:
        return
    if rest and not rest[0].startswith("-"):
        raise UserError(f"'{rest[0]}' stands there without a flag.", f"Write {flag} {rest[0]}, if that is meant.")
    known = {recipe, FAMILY + recipe} & set(recipe_names()) or path.suffix in (".py", ".json")
    if recipe and path.exists() and not known and not (path / "recipe.json").is_file():
        raise UserError(
            f"'{recipe}' is no recipe.", f"Write daybreak {command} tiny {flag} {recipe}, if that is meant."
        )


def _chosen_recipe(command: str, name: str | None, arguments: list[str]) -> Any:
    from daybreak.recipe import load_recipe

    _refuse_unattached(arguments)
    _know_kinds_of(_value_of("--recipe", arguments))
    branch, init = _value_of("--from", arguments), _value_of("--init", arguments)
    if branch:
        from daybreak.pretraining.starting_points import extended

        budget = _value_of("--extend", arguments)
        if not budget or name or init or {"--size", "--faithful"} & {word.partition("=")[0] for word in arguments}:
            raise UserError(
                "--from goes on with a run as it is and needs to know for how long.",
                "Write daybreak pretrain --from RUN --extend 8h --data DATA --out RUN2.",
            )
        return extended(Path(branch), budget)
    size, faithful = _value_of("--size", arguments) or "", "--faithful" in arguments
    recipe = load_recipe(name or DEFAULT_RECIPE, size=size, faithful=faithful)
    if not init:
        return recipe
    from daybreak.exporting.hub import local_folder
    from daybreak.pretraining.starting_points import continued

    return continued(
        recipe,
        local_folder(init),
        parent_name="" if Path(init).exists() else init,
        new_vocabulary="--new-vocabulary" in arguments,
        general=_value_of("--general", arguments) or "" if command == "pretrain" else "",
    )


def _know_kinds_of(recipe: str | None) -> None:
    """Read a recipe file: from then on the classes that it defines are found where a run's recipe names them."""
    if recipe:
        from daybreak.recipe import load_recipe

        load_recipe(recipe)


def _refuse_unattached(arguments: list[str]) -> None:
    """Of a flag that says more about another one, which was forgotten, nothing would come."""
    given = {argument.partition("=")[0] for argument in arguments}
    for flag, other in ATTACHED.items():
        if flag in given and other not in given:
            raise UserError(
                f"{flag} says more about {other}, which is not there.", f"Add {other}, or leave {flag} out."
            )


def _run(arguments: list[str]) -> None:
    import tyro

    from daybreak.recipe import Recipe

    @dataclass(frozen=True, kw_only=True)
    class Run:
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]
        corpus: tuple[str, ...] = ()
        """Files, folders or globs of what prepare reads, hf://owner/name; none for the docstrings on this machine."""
        size: str = ""
        """tiny, mini, small, base or large; the recipe's own when empty."""
        faithful: bool = False
        """As the original was, with what we hold to be its faults."""
        init: str = ""
        """Continue this model: a run, or a Hugging Face folder or hub name of a (Modern)BERT or a crammed BERT."""
        new_vocabulary: bool = False
        """With --init: a vocabulary of the text's own, its pieces started from the old ones."""
        general: tuple[str, ...] = ()
        """With --init: general text, on which what the model forgets is measured."""
        document: str = ""
        """What one document of a text file is: file, line, blank-line or auto; as the recipe says when empty."""
        split_sentences: bool = False
        """Find the sentences in prose, for recipes that need them."""
        text_field: str = "text"
        """Field of a .jsonl object that holds the text."""
        out: Path | None = None
        """Run folder, runs/tiny and so on by default. The same folder again resumes."""
        overwrite: bool = False
        """Delete the run folder first."""
        tasks: str = ""
        """Tasks to fine-tune on afterwards, by comma: cola,rte,glue5,my_task.toml."""
        task_dir: Annotated[str, tyro.conf.arg(aliases=("--glue-dir",))] = ""
        """Folder of the tasks' files as distributed: GLUE's (CoLA/ ...), SciBERT's data (ner/ ...); hf://nyu-mll/glue."""
        seeds: int = 3
        """Fine-tuning seeds of each task."""
        baselines: bool = True
        """Fit the bag-of-words baseline of each task too."""
        track: tuple[str, ...] = ()
        """Where the numbers go beside the run folder: wandb, tensorboard, trackio; each needs the extra track."""
        price: float | None = None
        """Of an hour of this machine, in any currency: the report says what the run cost."""
        deadline: str = ""
        """When all of it is to be done, 07:00 or 2026-11-23 07:00, in the place of --budget."""
        open: bool = False
        """Open the report in the browser at the end."""

    arguments, out = _with_size(arguments)
    asked = _with_recipe(Run, "run", arguments)
    _refuse_swallowed_recipe(asked.corpus)
    _refuse_unbudgeted(asked, arguments)
    from daybreak.commands.run import run
    from daybreak.core.deadline import Deadline

    run(
        _with_texts(asked),
        corpus=asked.corpus,
        general=asked.general,
        text_field=asked.text_field,
        out=asked.out or out or _default_folder(asked.recipe.name),
        overwrite=asked.overwrite,
        tasks=_by_comma(asked.tasks),
        task_dir=asked.task_dir or None,
        seeds=asked.seeds,
        baselines=asked.baselines,
        track=asked.track,
        price=asked.price,
        deadline=Deadline.parse(asked.deadline) if asked.deadline else None,
        open_report=asked.open,
    )


def _with_size(arguments: list[str]) -> tuple[list[str], Path | None]:
    """With a text and a time but no recipe, the size is chosen here; that of the run where it has begun.

    Returns:
        The arguments with a recipe in front, and the folder of the run, where none is named.
    """
    time = _value_of("--budget", arguments) or _value_of("--deadline", arguments)
    told = [_value_of(flag, arguments) for flag in ("--size", "--init", "--from")]
    named = bool(arguments) and not arguments[0].startswith("-")
    if named or not time or _value_of("--corpus", arguments) is None or any(told) or {"-h", "--help"} & set(arguments):
        return arguments, None
    from daybreak.core.deadline import Deadline
    from daybreak.training.clock import Budget

    out = Path(_value_of("--out", arguments) or CHOSEN_FOLDER)
    if (out / "recipe.json").is_file() and "--overwrite" not in arguments:
        return [str(out), *arguments], out
    by = _value_of("--deadline", arguments)
    budget = Budget.parse(f"{max(1, round(Deadline.parse(by).left()))}s" if by else time)
    if budget.unit != "seconds":
        return arguments, None
    from daybreak.core.terminal import say
    from daybreak.pretraining.planning import size_for
    from daybreak.recipe import FAMILY

    size = size_for(budget).removeprefix(FAMILY)
    say(f"Size: {size}, the one that makes most of {by or time} on this machine (daybreak run SIZE chooses another).")
    return [size, *arguments], out


def _with_texts(asked: Any) -> Any:
    """The recipe, with what the flags say of the texts."""
    texts = asked.recipe.texts
    texts = replace(
        texts,
        document=asked.document or texts.document,
        split_sentences=asked.split_sentences or texts.split_sentences,
    )
    return replace(asked.recipe, texts=texts)


def _refuse_swallowed_recipe(corpus: tuple[str, ...]) -> None:
    """``run --corpus a.txt tiny``: the list takes the recipe for one more text."""
    from daybreak.recipe import FAMILY, recipe_names

    for word in corpus:
        if not Path(word).exists() and {word, FAMILY + word} & set(recipe_names()):
            raise UserError(
                f"'{word}' stands among the texts of --corpus.",
                f"Name the recipe first: daybreak run {word} --corpus TEXT.",
            )


def _refuse_unbudgeted(asked: Any, arguments: list[str]) -> None:
    """A corpus of one's own deserves a chosen budget; the built-in one is too small for a long run."""
    from daybreak.training.clock import Budget

    budgeted = any(argument.split("=")[0] == "--budget" for argument in arguments)
    if budgeted and asked.deadline:
        raise UserError("--deadline and --budget both say how long the run takes.", "Give one of them.")
    if asked.corpus and not budgeted and not asked.deadline:
        raise UserError("A corpus needs a budget.", "Add one, for a first look --budget 15m.")
    if asked.deadline and not asked.corpus:
        raise UserError("--deadline needs a corpus.", "Add --corpus TEXT; the built-in one has minutes of its own.")
    budget = Budget.parse(asked.recipe.budget)
    if not asked.corpus and budget.unit == "seconds" and budget.amount > 600:
        raise UserError(
            f"Without a corpus a budget of {budget.text} is too much: the docstrings on this machine are worth at most "
            "10 minutes.",
            "Add --corpus TEXT, or give --budget 10m or less.",
        )


def _prepare(arguments: list[str]) -> None:
    import tyro

    from daybreak.data.pipeline.cluster import LOCAL, Slurm, chosen_workers
    from daybreak.data.pipeline.preprocessing import AS_IT_IS, Preprocessing
    from daybreak.data.tokenizers.tokenizer import TokenizerConfig, WordPiece

    @dataclass(frozen=True, kw_only=True)
    class Prepare:
        text: Annotated[tuple[str, ...], tyro.conf.Positional]
        """Files, folders or globs: .txt .md .jsonl .csv .tsv .parquet .html, Wikipedia dumps, datatrove's .ds;
        hf://owner/name; - for standard input."""
        out: Path
        """Folder for the tokenizer and the shards."""
        recipe: str = ""
        """Prepare as this recipe wants it: its tokenizer, its documents. The flags below change that."""
        size: str = ""
        """Of the recipe: tiny, mini, small, base or large."""
        faithful: bool = False
        """The recipe as the original was."""
        tokenizer_kind: str = ""
        """WordPiece or ByteBPE; the recipe's, or WordPiece, by default."""
        tokenizer: TokenizerConfig = field(default_factory=WordPiece)
        tokenizer_from: str = ""
        """Take over the tokenizer in this folder (a model's) instead of training one; for .ds, the one they are of."""
        compare: str = ""
        """A tokenizer folder: say how many pieces the two vocabularies share."""
        document: str = "auto"
        """What one document of a text file is: file, line, blank-line or auto."""
        split_sentences: bool = False
        """Find the sentences in prose, for recipes that predict the next one."""
        chunk_characters: int = 0
        """Cut documents at spaces into documents of about so many characters; 0 for whole ones."""
        text_field: str = "text"
        """Field of a record, or column of a table, that holds the text."""
        preprocessing: Annotated[Preprocessing, tyro.conf.arg(name="")] = AS_IT_IS
        workers: int = 0
        """Processes that read side by side; 0 for as many as there are cores. They change nothing of the result."""
        on: str = LOCAL
        """Where text is read: local, or by --workers tasks of a cluster that shares its disk, ray or slurm."""
        slurm: Slurm = field(default_factory=Slurm)
        push_to_hub: str = ""
        """owner/name of a private data set on the hub to put the result into; needs --with-text."""
        with_text: bool = False
        """The text may leave this machine: prepared tokens are the text."""

    asked = _parse(
        Prepare, "prepare", arguments, Prepare(text=tyro.MISSING, out=tyro.MISSING, **_preparation(arguments))
    )
    if not asked.text:
        raise UserError("No text was named.", "Write the files first: daybreak prepare TEXT... --out DATA.")
    if asked.push_to_hub and not asked.with_text:
        raise UserError("Prepared tokens are the text itself.", "Add --with-text if it may leave this machine.")
    from daybreak.commands.prepare import prepare

    prepare(
        asked.text,
        asked.out,
        tokenizer=asked.tokenizer,
        document=asked.document,
        text_field=asked.text_field,
        split_sentences=asked.split_sentences,
        chunk_characters=asked.chunk_characters,
        compare=asked.compare,
        preprocessing=asked.preprocessing,
        workers=chosen_workers(asked.on, asked.workers, asked.slurm),
    )
    if asked.push_to_hub:
        from daybreak.exporting.hub import push_to_hub

        push_to_hub(asked.out, asked.push_to_hub, kind="dataset", with_text=asked.with_text)


def _preparation(arguments: list[str]) -> dict[str, Any]:
    """What --recipe, --tokenizer-kind and --tokenizer-from make the defaults of the other flags."""
    recipe, model = _value_of("--recipe", arguments), _value_of("--tokenizer-from", arguments)
    chosen: dict[str, Any] = {}
    if recipe:
        from daybreak.core.serialization import to_dict
        from daybreak.recipe import load_recipe

        found = load_recipe(recipe, size=_value_of("--size", arguments) or "", faithful="--faithful" in arguments)
        chosen = {"tokenizer": found.tokenizer, **to_dict(found.texts)}
    if kind := _value_of("--tokenizer-kind", arguments):
        from daybreak.core.serialization import nearest
        from daybreak.data.tokenizers.byte_bpe import ByteBPE
        from daybreak.data.tokenizers.tokenizer import WordPiece

        kinds = {"WordPiece": WordPiece, "ByteBPE": ByteBPE}
        if kind not in kinds:
            raise UserError(f"'{kind}' is no kind of tokenizer.{nearest(kind, kinds)}", f"Use {' or '.join(kinds)}.")
        chosen["tokenizer"] = kinds[kind](vocabulary=chosen["tokenizer"].vocabulary) if chosen else kinds[kind]()
    if model:
        from daybreak.data.tokenizers.tokenizer_import import Existing
        from daybreak.exporting.hub import local_folder

        chosen["tokenizer"] = Existing(folder=str(local_folder(model)))
    return chosen


def _asked_pretrain(arguments: list[str]) -> Any:
    """The flags of ``pretrain``, which are those of a variant of ``study`` too."""
    import tyro

    from daybreak.recipe import Recipe

    @dataclass(frozen=True, kw_only=True)
    class Pretrain:
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]
        size: str = ""
        """tiny, mini, small, base or large; the recipe's own when empty."""
        faithful: bool = False
        """As the original was, with what we hold to be its faults."""
        init: str = ""
        """Continue this model: a run, or a Hugging Face folder or hub name of a (Modern)BERT or a crammed BERT."""
        new_vocabulary: bool = False
        """With --init: a vocabulary of the text's own, its pieces started from the old ones."""
        general: str = ""
        """With --init: prepared general text, on which what the model forgets is measured."""
        from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None
        """Go on with this run from its last checkpoint before the decay, for --extend."""
        extend: str = ""
        """How long: 8h, 2e9tok, 10000steps."""
        recipe_: Annotated[str, tyro.conf.arg(name="recipe")] = ""
        """Where a run is named whose recipe holds classes of your own: the Python file that defines them."""
        data: Path
        """Folder made by daybreak prepare."""
        out: Path | None = None
        """Run folder, runs/tiny and so on by default. The same folder again resumes."""
        overwrite: bool = False
        """Delete the run folder first."""
        track: tuple[str, ...] = ()
        """Where the numbers go beside the run folder: wandb, tensorboard, trackio; each needs the extra track."""
        price: float | None = None
        """Of an hour of this machine, in any currency: the report says what the run cost."""

    return _with_recipe(Pretrain, "pretrain", arguments, data=tyro.MISSING)


def _plan(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Plan:
        recipes: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
        """Candidates; the flagship from tiny to base by default."""
        data: Path
        """Folder made by daybreak prepare."""
        budget: str
        """A time: 90s, 30m, 24h, 2d."""
        price: float | None = None
        """Of an hour of this machine, in any currency."""
        out: Path | None = None
        """Write the plan here as JSON, too."""

    asked = _parse(Plan, "plan", arguments)
    from daybreak.commands.plan import plan
    from daybreak.recipe import load_recipe

    recipes = [load_recipe(name) for name in asked.recipes]
    plan(data=asked.data, budget=asked.budget, recipes=recipes, price=asked.price, out=asked.out)


def _pretrain(arguments: list[str]) -> None:
    from daybreak.core.process import process_started

    started = process_started()
    asked = _asked_pretrain(arguments)
    out = asked.out or _default_folder(asked.recipe.name)
    from daybreak.commands.pretrain import Watching, pretrain

    watching = Watching(track=asked.track, price=asked.price)
    pretrain(asked.recipe, data=asked.data, out=out, overwrite=asked.overwrite, watching=watching, started=started)


def _search(arguments: list[str]) -> None:
    import tyro

    from daybreak.searching.query import Method

    @dataclass(frozen=True, kw_only=True)
    class Search:
        run: Annotated[Path, tyro.conf.Positional]
        """Run folder with an exported model."""
        words: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
        """The query. Without it, the index is built and nothing else."""
        top: int = 10
        """Passages to show."""
        method: Method = "hybrid"
        """hybrid, dense (vectors alone) or bm25 (words alone)."""
        data: Path | None = None
        """The run's prepared data; RUN/data by default, else where the index found them."""
        index: Path | None = None
        """Folder of the index; RUN/search by default."""
        export: Path | None = None
        """Write all passages and vectors to this Parquet file, for a vector database."""
        rebuild: bool = False
        """Build the index anew."""

    asked = _parse(Search, "search", arguments)
    from daybreak.commands.search import search

    search(
        asked.run,
        " ".join(asked.words),
        top=asked.top,
        method=asked.method,
        data=asked.data,
        index=asked.index,
        export=asked.export,
        rebuild=asked.rebuild,
    )


def _verify(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Verify:
        run: Annotated[Path, tyro.conf.Positional]
        """Run folder, finished or not."""
        data: Path | None = None
        """The run's prepared data; RUN/data by default."""
        last: int = 0
        """Only the last so many steps, from the newest checkpoint before them; 0 for all from the start."""
        recipe: str = ""
        """Of a run whose recipe holds classes of your own: the Python file that defines them."""

    asked = _parse(Verify, "verify", arguments)
    _know_kinds_of(asked.recipe)
    from daybreak.commands.verify import verify

    verify(asked.run, data=asked.data, last=asked.last)


def _record(arguments: list[str]) -> None:
    import tyro

    from daybreak.schemas.records import VERIFIED_STEPS

    @dataclass(frozen=True, kw_only=True)
    class Record:
        run: Annotated[Path, tyro.conf.Positional]
        """Run folder, finished; or the folder of a finished study."""
        data: Path | None = None
        """The run's prepared data; RUN/data by default."""
        out: Path = Path("records")
        """Folder of all records."""
        name: str = ""
        """Of the new folder, behind the date; recipe, budget and seed by default."""
        last: int = VERIFIED_STEPS
        """Steps at the end to verify at least; 0 for all."""
        recipe: str = ""
        """Of a run whose recipe holds classes of your own: the Python file that defines them."""

    asked = _parse(Record, "record", arguments)
    _know_kinds_of(asked.recipe)
    from daybreak.commands.record import record

    record(asked.run, out=asked.out, data=asked.data, name=asked.name, last=asked.last)


def _leaderboard(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Leaderboard:
        records: Annotated[Path, tyro.conf.Positional] = Path("records")
        """Folder of all records."""
        out: Path | None = None
        """Write the page here; otherwise it is printed."""

    asked = _parse(Leaderboard, "leaderboard", arguments)
    from daybreak.commands.leaderboard import leaderboard

    page = leaderboard(asked.records, asked.out)
    print(asked.out or page)


@dataclass(frozen=True, kw_only=True)
class _InTurns:
    """The flags of both studies."""

    budget: str
    """Of each run: 3m, 8h; in steps or tokens no claim is made."""
    seeds: int = 2
    """Runs of each variant, or of each source and preprocessing; a claim needs 3."""
    out: Path
    """Folder of the study. The same folder again resumes, with more --seeds too."""
    threads: int = 0
    """Of each run; 0 for as many as there are usable cores."""
    repeat_void: bool = False
    """Run once more what another process of this machine disturbed."""
    question: str = ""
    """Heading of the result and of the entry in --log."""
    log: Path | None = None
    """A Markdown file, such as docs/log.md, that gets the result above its other entries."""

    def shared(self) -> dict[str, Any]:
        return {flag.name: getattr(self, flag.name) for flag in fields(_InTurns)}


def _study(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Study(_InTurns):
        variants: Annotated[tuple[str, ...], tyro.conf.Positional]
        """Two or more, each in quotes: a recipe with flags as pretrain takes them, with a name before it if you like:
        "high=mini --optimizer.lr 4e-3"."""
        data: Path
        """Folder made by daybreak prepare, the same for all."""
        tasks: str = ""
        """By comma, as evaluate takes them: each model is fine-tuned on these too, also those of a finished study."""
        task_dir: str = ""
        """Folder of the tasks' files, or hf://nyu-mll/glue."""
        protocol: str = "quick"
        """Of the fine-tunings: quick, cramming, electra, transfer, bert or scibert."""
        task_seeds: int | None = None
        """Fine-tunings of each model on each task; as many as the protocol has by default."""

    asked = _parse(Study, "study", arguments)
    variants = [_variant(text, asked.data) for text in asked.variants]
    from daybreak.commands.study import study

    study(
        variants,
        data=asked.data,
        tasks=_by_comma(asked.tasks),
        task_dir=asked.task_dir or None,
        protocol=asked.protocol,
        task_seeds=asked.task_seeds,
        **asked.shared(),
    )


def _study_data(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class StudyData(_InTurns):
        texts: Annotated[tuple[str, ...], tyro.conf.Positional]
        """NAME=TEXT: a source, and a file, folder or glob of it; a name may come again with more of its text."""
        recipe: str = DEFAULT_RECIPE
        """What is trained, in quotes with flags as pretrain takes them: "tiny --batch 8"."""
        preprocessings: str = "raw,filtered,sorted,deduplicated"
        """By comma: raw, then what is to be compared with it; each stands on those before it."""
        order: str = "full-stops"
        """Of the rows where they are sorted."""
        threshold: float = 0.25
        """Of the filter: documents with so many tokens a character or more are left out."""
        tokenizer_from: str = ""
        """Take over the tokenizer in this folder (a model's) instead of training one on all sources."""
        document: str = "auto"
        """What one document of a text file is: file, line, blank-line or auto."""
        text_field: str = "text"
        """Field of a record, or column of a table, that holds the text."""
        workers: int = 0
        """Processes that read side by side; 0 for as many as there are cores. They change nothing of the result."""

    asked = _parse(StudyData, "study-data", arguments)
    texts = _named_texts(asked.texts)
    trained = _variant(asked.recipe, Path("data"))
    code = _value_of("--recipe", trained.words) or (trained.words[0] if trained.words[0].endswith(".py") else "")
    from daybreak.commands.study_data import Preparation, study_data

    tokenizer = None
    if asked.tokenizer_from:
        from daybreak.data.tokenizers.tokenizer_import import Existing
        from daybreak.exporting.hub import local_folder

        tokenizer = Existing(folder=str(local_folder(asked.tokenizer_from)))
    preparation = Preparation(
        preprocessings=_by_comma(asked.preprocessings),
        tokenizer=tokenizer,
        **{name: getattr(asked, name) for name in ("order", "threshold", "document", "text_field", "workers")},
    )
    study_data(texts, recipe=trained.recipe, code=code, preparation=preparation, **asked.shared())


def _named_texts(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """``wiki=a.txt wiki=b.txt books=books/`` -> the texts of each name."""
    found: dict[str, list[str]] = {}
    for word in texts:
        name, mark, text = word.partition("=")
        if not mark or not name or not text:
            raise UserError(f"'{word}' is no NAME=TEXT.", "Give every text a name, as in wiki=wiki.jsonl.")
        found.setdefault(name, []).append(text)
    return found


def _variant(text: str, data: Path) -> Any:
    """``high=mini --optimizer.lr 4e-3`` -> its name and its recipe, read as ``pretrain`` reads it."""
    import re
    import shlex

    found = re.match(r"([^\s=/-][^\s=/]*)=(.*)", text, re.DOTALL)
    name, flags = (found[1], found[2]) if found else (text, text)
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise UserError(f"The variant '{text}' cannot be read: {error}.", "Correct its quotes.") from None
    if not words:
        raise UserError(f"The variant '{text}' names no recipe.", 'Write "NAME=RECIPE FLAGS".')
    for word in words:
        if word.partition("=")[0] in STUDY_GIVES:
            raise UserError(
                f"The variant '{name}' cannot have {word.partition('=')[0]}: the study gives it.", "Leave it out."
            )
    from daybreak.studies.experiment import Variant

    try:
        recipe = _asked_pretrain([*words, "--data", str(data)]).recipe
    except UserError as error:
        raise UserError(f"The variant '{name}': {error.sentence}", error.remedy) from None
    return Variant(name=" ".join(name.split()), recipe=recipe, words=tuple(words))


def _export(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Export:
        run: Annotated[Path, tyro.conf.Positional]
        """Run folder; or a published model of a known family, to write it in our layout."""
        out: Path
        """Folder for the model."""
        attend_padding: bool | None = None
        """Of a published crammed BERT: whether words look at padding; as it was trained by default."""
        data: Path | None = None
        """The run's prepared data; RUN/data by default."""
        best: bool = False
        """The checkpoint of the best interim validation in place of the newest."""
        onnx: bool = False
        """Also write onnx/model.onnx, checked in ONNX Runtime; needs the extra serve."""
        recipe: str = ""
        """Of a run whose recipe holds classes of your own: the Python file that defines them."""
        push_to_hub: str = ""
        """owner/name of a private model on the hub to put the folder into; it carries no text of yours."""

    asked = _parse(Export, "export", arguments)
    _know_kinds_of(asked.recipe)
    from daybreak.commands.export import export

    folder = export(
        asked.run,
        out=asked.out,
        data=asked.data,
        attend_padding=asked.attend_padding,
        best=asked.best,
        onnx=asked.onnx,
    )
    if asked.push_to_hub:
        from daybreak.exporting.hub import push_to_hub

        push_to_hub(folder, asked.push_to_hub, kind="model")


def _evaluate(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Evaluate:
        model: Annotated[Path, tyro.conf.Positional]
        """Hugging Face folder or run folder."""
        tasks: str
        """By comma: names such as cola, glue, glue5, bc5cdr, sci-cite, or the path of a .toml file."""
        task_dir: Annotated[str, tyro.conf.arg(aliases=("--glue-dir",))] = ""
        """Folder of the tasks' files as distributed: GLUE's (CoLA/ ...), SciBERT's data (ner/ ...); hf://nyu-mll/glue."""
        protocol: str = "quick"
        """quick, small, cramming, electra, transfer, bert or scibert: how each task is fine-tuned."""
        epochs: int | None = None
        """Epochs in place of the protocol's; the result then says so."""
        rate: float | None = None
        """Peak learning rate in place of the protocol's."""
        rows: int | None = None
        """Training rows in place of the protocol's; 0 for all."""
        frozen: bool = False
        """Train the head alone; the encoder stays as it is."""
        seeds: int | None = None
        """Fine-tunings of each task; as many as the protocol has by default."""
        out: Path | None = None
        """Folder of results.json; beside the model by default."""
        save: Path | None = None
        """Keep the first seed's model here, as a stock classifier."""
        submission: Path | None = None
        """Write the files for gluebenchmark.com into this folder."""
        untrained: bool = False
        """Fine-tune the same shape from random weights: what pretraining is worth."""
        workers: int | None = None
        """Fine-tunings at a time; one a GPU or a CPU core by default, needed for a cluster."""
        backend: str = "processes"
        """processes of this machine, or a ray cluster."""
        price: float | None = None
        """Of an hour of this machine: the forecast then says what the evaluation will cost."""
        overwrite: bool = False
        """Do every fine-tuning again, those that are done too."""
        baselines: bool = True
        """Fit the bag-of-words baseline on the same training rows too."""

    asked = _parse(Evaluate, "evaluate", arguments)
    from daybreak.commands.evaluate import evaluate

    told = {**vars(asked), "task_dir": asked.task_dir or None}
    evaluate(told.pop("model"), _by_comma(told.pop("tasks")), **told)


def _probe(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Probe:
        model: Annotated[Path, tyro.conf.Positional]
        """Hugging Face folder or run folder."""
        tasks: str = ""
        """By comma: tasks to read off each layer; glue5 when only --task-dir is given."""
        task_dir: str = ""
        """Folder of the tasks' files as distributed, or hf://nyu-mll/glue."""
        text: tuple[str, ...] = ()
        """Held-out text, or one folder of prepared data; the run's own by default."""
        rows: int = 2000
        """Training rows of each task at most."""
        out: Path | None = None
        """Folder of probes.json; beside the model by default."""

    asked = _parse(Probe, "probe", arguments)
    from daybreak.commands.probe import probe

    probe(
        asked.model,
        tasks=_by_comma(asked.tasks),
        task_dir=asked.task_dir or None,
        text=asked.text,
        rows=asked.rows,
        out=asked.out,
    )


def _check_submission(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class CheckSubmission:
        path: Annotated[Path, tyro.conf.Positional]
        """The folder, or the zip."""

    asked = _parse(CheckSubmission, "check-submission", arguments)
    from daybreak.commands.check_submission import check_submission

    check_submission(asked.path)


def _report(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Report:
        runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
        """Run folders, or folders with results.json; several are overlaid, and each is compared with the first. Or one
        folder of prepared data, for a page about the text."""
        out: Path | None = None
        """The page; RUN/report.html (or .md) of the first run by default."""
        format: str = "html"
        """html, or md: its words and tables without the plots."""
        text: bool = True
        """Quote held-out sentences, and what was left out of a corpus."""
        open: bool = False
        """Open the page in the browser."""

    asked = _parse(Report, "report", arguments)
    if not asked.runs:
        raise UserError("No run folder was named.", "Write it first: daybreak report RUN --out report.html.")
    from daybreak.commands.report import report

    out = asked.out or asked.runs[0] / f"report.{asked.format}"
    page = report(asked.runs, out, form=asked.format, text=asked.text)
    from daybreak.core.terminal import open_in_browser

    print(page)
    if asked.open:
        open_in_browser(page)


def _doctor(arguments: list[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Doctor:
        folder: Path = Path(".")
        """Where runs would be written."""
        torch: bool = False
        """Also import torch, which takes seconds, and multiply matrices on the device that a run would use."""

    asked = _parse(Doctor, "doctor", arguments)
    from daybreak.commands.doctor import doctor

    if not doctor(asked.folder, with_torch=asked.torch):
        raise SystemExit(2)


def _init_task(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class InitTask:
        table: Annotated[Path, tyro.conf.Positional]
        """A .csv, .tsv, .jsonl or .parquet file with one example a row."""
        out: Path | None = None
        """The task file; beside the table, with the ending .toml, by default."""
        overwrite: bool = False
        """Replace a task file that is there."""

    asked = _parse(InitTask, "init-task", arguments)
    from daybreak.commands.init_task import init_task

    init_task(asked.table, asked.out, overwrite=asked.overwrite)


def _status(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Status:
        run: Annotated[Path, tyro.conf.Positional]
        """Run folder."""

    asked = _parse(Status, "status", arguments)
    from daybreak.commands.status import status

    print(status(asked.run))


def _recipes(arguments: list[str]) -> None:
    import tyro

    @dataclass(frozen=True, kw_only=True)
    class Recipes:
        name: Annotated[str, tyro.conf.Positional] = ""
        """Show this one in full; the list of all when empty."""
        size: str = ""
        """tiny, mini, small, base or large; the recipe's own when empty."""
        faithful: bool = False
        """As the original was, with what we hold to be its faults."""

    asked = _parse(Recipes, "recipes", arguments)
    from daybreak.commands.recipes import catalogue, described

    print(described(asked.name, size=asked.size, faithful=asked.faithful) if asked.name else catalogue())


def _by_comma(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _default_folder(name: str) -> Path:
    from daybreak.recipe import FAMILY

    return Path("runs") / name.removeprefix(FAMILY)


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The value of a flag before the parser has seen it; it decides which recipe's flags the parser offers."""
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(flag + "="):
            return argument.partition("=")[2]
    return None

"""The commands of ``daybreak``: one file each, with its options (a dataclass), ``main`` and the function that does it.

To add a command, add a file ``commands/NAME.py`` with a function ``main(arguments)`` and a line here. The files are
imported when their command is called. None but ``pretrain`` and ``run``, whose options depend on a recipe, may import
torch before the options are parsed.
"""

import sys

from daybreak.schemas.old_names import FLAGS, PREPARE_FLAGS

COMMANDS = {
    "run": "Prepare, pretrain, evaluate and report in one go.",
    "prepare": "Turn text into a tokenizer and token shards.",
    "plan": "Forecast what a budget reaches on this machine and text, and choose the model size.",
    "pretrain": "Train a model on prepared data and export it. The same command resumes.",
    "export": "Write the model of a run, or a published model, as a Hugging Face folder.",
    "evaluate": "Fine-tune a model on GLUE and your own tasks; writes results.json.",
    "predict": "Label new rows with a saved classifier, averaged with a bag-of-words model.",
    "init-task": "Write a task file for a table of labeled rows.",
    "probe": "Measure a model without fine-tuning: layers, masked tokens and search; writes probes.json.",
    "search": "Search a run's own text with its model, with BM25, or with both.",
    "verify": "Repeat the recorded steps of a run and compare the weights bit for bit.",
    "record": "Add a finished run, after verification, or a finished study to the records.",
    "leaderboard": "Rank the records by budget class, as a Markdown page.",
    "study": "Compare recipes at equal training time, with confidence intervals.",
    "study-data": "Compare sources of text and their preprocessing at equal training time.",
    "report": "Write one self-contained HTML page about one run, or compare several.",
    "check-submission": "Check files for gluebenchmark.com before you upload them.",
    "status": "Show the progress of a run from another shell.",
    "recipes": "List the recipes, or show one in full.",
    "doctor": "Check this machine and installation for problems.",
}
"""Name -> what ``daybreak --help`` says of it."""

MAINS = {"check-submission": "evaluate.main_of_check_submission"}
"""Where the function of a command is, if it is not ``main`` in a file of the command's name."""


def main_of(command: str) -> tuple[str, str]:
    """Return the module and the function of a command."""
    file, function = MAINS.get(command, f"{command.replace('-', '_')}.main").split(".")
    return f"{__name__}.{file}", function


def with_current_flags(command: str, *arguments: str) -> list[str]:
    """Return the arguments of a command with the current names of flags, and print a notice for each earlier name.

    The parser accepts ``_`` for ``-`` in a flag. Some flags are read before it, so they get one spelling here.
    """
    names = FLAGS | (PREPARE_FLAGS if command == "prepare" else {})
    current = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if flag in names:
            print(f"daybreak: {flag} is now {names[flag]}.", file=sys.stderr)
            flag = names[flag]
        current.append(flag + equals + value)
    return current

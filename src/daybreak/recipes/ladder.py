"""The ladder: the ablation runs of Cramming in one table, ``ladder-01`` to ``ladder-13``.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034); the runs are those of the scripts in JonasGeiping/cramming. Run 5
needs the SCRIPT objective, which Daybreak does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from daybreak.models.bert import BertEncoder
from daybreak.recipe import Procedure, Recipe
from daybreak.recipes import _crammed as cramming
from daybreak.recipes import _sizes
from daybreak.recipes._bert import hidden_size_of

BOOKS = "BOOKS_AND_WIKIPEDIA"
AS_CRAMMED = {"rows.order": "see the recipe crammed, which lists the other deviations as well"}
UNSORTED = {"see crammed": "its deviations in the sequences, the special ids and the gradients apply here as well"}
UNFINISHED = {
    "schedule": "the original counts 8 million microbatches, and a day covers a few hundred thousand of them; here the "
    "schedule is the part that a day on the original's GPU covers, so that a shorter run warms up as well",
    **UNSORTED,
}


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One recipe of the ladder."""

    summary: str
    run: str
    """Trunk, training and text of that run, by the names of its configuration files."""
    results: str
    corpus: str = "TEXT"
    build: Callable[[str, str, bool], Recipe]
    """(name, size, faithful) -> the recipe."""
    deviations: dict[str, str] = field(default_factory=lambda: AS_CRAMMED)
    procedure: Procedure = cramming.FILTERED

    def description(self, name: str) -> str:
        """What the docstring of a recipe file holds: summary, paper, command, results."""
        number = int(name.rpartition("-")[2])  # of the run in the original scripts
        return (
            f"{self.summary}\n\n"
            f"Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run {number} of its scripts:\n"
            f"{self.run}.\n"
            f"Command: daybreak run {name} --corpus {self.corpus} --budget 24h\n"
            f"{self.results}"
        )


def _measured(part: int) -> str:
    return f"Measured: records/2026-11-21-ladder-{part}.json (size mini, 3 minutes on a CPU, Wikipedia)."


def _bert(size: str, faithful: bool) -> BertEncoder:
    """BERT with the dropout of its original training."""
    dropout = _sizes.dropout(hidden_size_of(size), faithful)
    return cramming.hugging_face_bert(size, faithful, dropout)


def _run_1(name: str, size: str, faithful: bool) -> Recipe:
    return cramming.original(name, _bert(size, faithful), size, faithful, finished=False, order="shuffled")


def _run_8(name: str, size: str, faithful: bool) -> Recipe:
    trunk = cramming.crammed_bert(size, faithful)
    trunk = replace(trunk, dropout=_sizes.dropout(trunk.hidden_size, faithful))
    return cramming.original(name, trunk, size, faithful, finished=True)


def _run_13(name: str, size: str, faithful: bool) -> Recipe:
    return cramming.original(name, _bert(size, faithful), size, faithful, finished=True)


def _final(name: str, size: str, faithful: bool, *, order: str = "") -> Recipe:
    return cramming.final(name, cramming.crammed_bert(size, faithful), size, faithful, order=order)


def _cosine(name: str, size: str, faithful: bool, *, batch: int) -> Recipe:
    return cramming.budget_cosine(name, cramming.crammed_bert(size, faithful), size, faithful, batch=batch)


RUNGS = {
    "ladder-01": Rung(
        summary="Rung 1: BERT with its original training for a day; the schedule does not finish.",
        run="hf-bert-base with bert-original on books and Wikipedia, mixed precision",
        results=_measured(1),
        corpus=BOOKS,
        procedure=cramming.UNFILTERED,
        deviations=UNFINISHED,
        build=_run_1,
    ),
    "ladder-02": Rung(
        summary="Rung 2: rung 1 in float32.",
        run="hf-bert-base with bert-original on books and Wikipedia, float32",
        results=_measured(1),
        corpus=BOOKS,
        procedure=cramming.UNFILTERED,
        deviations=UNFINISHED,
        build=lambda name, size, faithful: replace(_run_1(name, size, faithful), precision="float32"),
    ),
    "ladder-03": Rung(
        summary="Rung 3: the 24-hour BERT of Izsak et al., a large pre-norm model.",
        run="crammed-large-izsak with bert-izsak",
        results=_measured(1),
        build=lambda name, size, faithful: cramming.budget_linear(name, cramming.izsak(size, faithful), size, faithful),
    ),
    "ladder-04": Rung(
        summary="Rung 4: the final recipe of Cramming.",
        run="crammed-bert with bert-o4, text filtered and sorted",
        results="Published: as in the recipe crammed.\n" + _measured(1),
        build=_final,
    ),
    "ladder-06": Rung(
        summary="Rung 6: rung 4 without torch.compile; the same as rung 4 where compiling does not pay, as on a CPU.",
        run="crammed-bert with bert-o4, inductor not tuned",
        results="Not measured yet.",
        deviations={**AS_CRAMMED, "compiling": "the original compiles without tuning; compile is off here"},
        build=lambda name, size, faithful: replace(_final(name, size, faithful), compile="off"),
    ),
    "ladder-07": Rung(
        summary="Rung 7: rung 4 on books and Wikipedia, not sorted; without --faithful it differs only in its text.",
        run="crammed-bert with bert-o4 on bookcorpus-wikipedia",
        results=_measured(1),
        corpus=BOOKS,
        procedure=cramming.UNFILTERED,
        deviations=UNSORTED,
        build=lambda name, size, faithful: _final(name, size, faithful, order="shuffled"),
    ),
    "ladder-08": Rung(
        summary="Rung 8: the crammed architecture with BERT's original training, its schedule fitted to the budget.",
        run="crammed-bert with bert-original, budget-cosine, 6 % warmup",
        results=_measured(2),
        build=_run_8,
        deviations={
            **AS_CRAMMED,
            "optimizer.decay": "the original excludes norms from weight decay by a name that does not match; here they "
            "do not decay",
        },
    ),
    "ladder-09": Rung(
        summary="Rung 9: the crammed architecture with AdamW at 5e-4, a cosine schedule and 1536 sequences a step.",
        run="crammed-bert with bert-base",
        results=_measured(2),
        build=lambda name, size, faithful: _cosine(name, size, faithful, batch=1536),
    ),
    "ladder-10": Rung(
        summary="Rung 10: rung 9 with 8192 sequences a step.",
        run="crammed-bert with bert-base at batch 8192",
        results=_measured(2),
        build=lambda name, size, faithful: _cosine(name, size, faithful, batch=8192),
    ),
    "ladder-11": Rung(
        summary="Rung 11: the architecture of BERT-base with the final training.",
        run="hf-bert-base with bert-o4",
        results=_measured(2),
        build=lambda name, size, faithful: cramming.final(
            name, cramming.hugging_face_bert(size, faithful, 0.0), size, faithful
        ),
    ),
    "ladder-12": Rung(
        summary="Rung 12: the simple crammed architecture with the final training.",
        run="crammed-bert-simple with bert-o4",
        results=_measured(2),
        build=lambda name, size, faithful: cramming.final(
            name, cramming.crammed_simple(size, faithful), size, faithful
        ),
    ),
    "ladder-13": Rung(
        summary="Rung 13: BERT-base with BERT's original training, its schedule fitted to the budget.",
        run="hf-bert-base with bert-original, budget-cosine, on the Pile",
        results=_measured(2),
        build=_run_13,
    ),
}
"""Recipes by name."""

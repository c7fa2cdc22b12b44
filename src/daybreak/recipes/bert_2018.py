"""BERT as Google trained it: masked words and next sentences, 128 tokens and then 512.

Paper: Devlin et al. 2018 (arXiv 1810.04805), and google-research/bert.
Command: daybreak run bert-2018 --corpus TEXT --budget 24h (one sentence a line, blank lines between documents; prose
with --split-sentences).
Promise: published, GLUE test average 79.6 for base after 1,000,000 steps of 256 rows (table 1 of the paper).
"""

from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.recipe import Recipe, Texts
from daybreak.recipes import _bert, _sizes
from daybreak.training.objectives.masked import Masked
from daybreak.training.optim.optimizers import BertAdam
from daybreak.training.phases import SecondPhase
from daybreak.training.schedule import WarmupLinear

DEVIATIONS = {
    "budget": "a day; the original counts 1,000,000 steps, which on one card is weeks",
    "rows are drawn on the fly": "the original writes ten masked copies of the text to disk and repeats them",
    "the 512-token phase has 77 predictions a row": "as the original's files for 512 tokens; the rest is its 15 %",
    "[UNK] is never hidden": "the original spares [CLS] and [SEP] only",
    "the rate of the schedule follows the budget": "90 % of it at 128 tokens whatever the budget is counted in",
}


def sized(size: str, faithful: bool) -> Recipe:
    wide = _bert.hidden_size(size or "base")
    return Recipe(
        name="bert-2018",
        texts=Texts(document="blank-line"),
        tokenizer=WordPiece(vocabulary=_sizes.vocabulary(size, 30_522)),
        rows=SentencePairs(),
        model=_bert.google(size or "base", faithful),
        objective=Masked(rate=0.15, count="rounded", next_sentence=True),
        optimizer=BertAdam(
            lr=_sizes.rate(1e-4, wide, faithful), epsilon=1e-6, weight_decay=0.01, decay=("matrices", "embeddings")
        ),
        schedule=WarmupLinear(warmup=0.01),
        length=128,
        phase2=SecondPhase(start=0.9, length=512),
        batch=_sizes.batch(size or "base", 256),
        max_grad_norm=1.0,
        budget="1000000steps" if faithful else "24h",
    )


recipe = sized("base", False)

"""SciBERT: a vocabulary of the field's own, 128 tokens first, then 512 with a fresh schedule.

Paper: Beltagy et al. 2019 (arXiv 1903.10676), and allenai/scibert.
Command: daybreak run scibert --corpus TEXT --split-sentences --budget 24h; with the vocabulary and the weights of a
general model instead (basevocab): --init MODEL.
Promise: published, held-out masked accuracy 71.9 % and next-sentence accuracy 99.4 % after 800,000 steps on a TPU v3-8
(allenai/scibert, issue 32).
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
    "budget": "a day; the original counts 800,000 steps",
    "phase2.start": "the original's phases took five and two days, which is how a budget of time is shared; its share "
    "of the steps is 62.5 %",
    "the vocabulary is WordPiece": "the original trains SentencePiece BPE and rewrites it by hand into BERT's format",
    "the warm-up is 0.2 % of each phase": "the original's 1,000 and then 100 steps",
    "77 predictions a row at 512 tokens": "the original stops at 75",
    "the optimizer of the second phase remembers nothing": "the published commands resume in the first phase's folder",
}


def sized(size: str, faithful: bool) -> Recipe:
    wide = _bert.hidden_size(size or "base")
    return Recipe(
        name="scibert",
        texts=Texts(document="auto", split_sentences=True),
        tokenizer=WordPiece(vocabulary=_sizes.vocabulary(size, 31_000)),
        rows=SentencePairs(),
        model=_bert.google(size or "base", faithful),
        objective=Masked(rate=0.15, count="rounded", next_sentence=True),
        optimizer=BertAdam(
            lr=_sizes.rate(1e-4, wide, faithful), epsilon=1e-6, weight_decay=0.01, decay=("matrices", "embeddings")
        ),
        schedule=WarmupLinear(warmup=0.002),
        length=128,
        phase2=SecondPhase(
            start=0.625 if faithful else 0.71,
            length=512,
            batch=_sizes.batch(size or "base", 64),
            lr=_sizes.rate(1e-5, wide, faithful),
        ),
        batch=_sizes.batch(size or "base", 256),
        max_grad_norm=1.0,
        budget="800000steps" if faithful else "24h",
    )


recipe = sized("base", False)

"""BERT on several GPUs of one machine (guotong1988/BERT-GPU), with the batch given per device.

Source: README and run_pretraining_gpu_v2.py of guotong1988/BERT-GPU, now BERT-pre-training.
Command: torchrun --nproc-per-node 4 -m daybreak pretrain bert-gpu --data DATA --budget 24h
         or on one device: daybreak run bert-gpu --corpus TEXT --budget 24h
Published: QQP accuracy 90.1 and AUC 96.3 after pretraining to a loss of 2.05 (README of the original).
Measured: records/2026-11-21-systems-bert.json (one CPU process, size mini, 8 minutes, Wikipedia).
"""

from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.recipe import Devices, Procedure, Recipe, Texts
from daybreak.recipes import _bert, _sizes
from daybreak.training.objectives.masked import Masked
from daybreak.training.optim.optimizers import BertAdam
from daybreak.training.schedule import WarmupLinear

DEVIATIONS = {
    "budget": "a day; the original trains for 300,000 steps",
    "schedule.warmup_steps": "the original warms up for 10,000 steps; a budget in time does not tell the number of "
    "steps, so the warm-up is one thirtieth of the budget from base on, also with --faithful if the budget is a time",
    "gradients are averaged over all targets of all devices": "the original sums them over devices, which changes "
    "weight decay and clipping relative to the gradient",
    "gradients are clipped once, after the reduction": "the original clips on each device before it",
}
PROCEDURE = Procedure(protocol="bert", tasks=("qqp",))


def build(size: str, faithful: bool) -> Recipe:
    hidden_size = _bert.hidden_size_of(size)
    batch = _sizes.batch(size, 32)
    return Recipe(
        name="bert-gpu",
        texts=Texts(document="blank-line"),
        tokenizer=WordPiece(vocabulary=_sizes.vocabulary(size, 30_522)),
        rows=SentencePairs(),
        model=_bert.google(size, faithful),
        word_vectors=_sizes.word_vectors(hidden_size, faithful),
        objective=Masked(
            rate=0.15,
            count="rounded",
            next_sentence=True,
            next_sentence_weight=_sizes.next_sentence_weight(hidden_size, faithful),
        ),
        optimizer=BertAdam(
            lr=_sizes.bert_rate(5e-5, hidden_size, faithful),
            beta2=_sizes.bert_beta2(hidden_size, faithful),
            epsilon=1e-6,
            weight_decay=0.01,
            decay=("matrices", "embeddings"),
        ),
        schedule=WarmupLinear(
            warmup=_sizes.bert_warmup(1 / 30, hidden_size, faithful), warmup_steps=10_000 if faithful else 0
        ),
        length=128,
        batch=0,
        devices=Devices(batch=batch, rate_rule="none", reference=batch),
        max_grad_norm=1.0,
        budget="300000steps" if faithful else "24h",
    )


recipe = build("base", False)

"""BERT on several GPUs of one machine (guotong1988/BERT-GPU), with the batch given per device.

Source: README and run_pretraining_gpu_v2.py of guotong1988/BERT-GPU, now BERT-pre-training.
Command: torchrun --nproc-per-node 4 -m daybreak pretrain bert-gpu --data DATA --budget 24h
         or on one device: daybreak run bert-gpu --corpus TEXT --budget 24h
Published: QQP accuracy 90.1 and AUC 96.3 after pretraining to a loss of 2.05 (README of the original).
Measured: records/2026-11-21-systems-bert.json (one CPU process, size mini, 8 minutes, Wikipedia).
"""

from daybreak.recipe import Devices, Procedure, Recipe, Texts
from daybreak.recipes import _bert, _sizes

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
    batch = _sizes.batch(size, 32)
    return _bert.on_sentence_pairs(
        "bert-gpu",
        size,
        faithful,
        texts=Texts(document="blank-line"),
        vocabulary=30_522,
        lr=5e-5,
        warmup=1 / 30,
        warmup_steps=10_000,
        steps=300_000,
        batch=0,
        devices=Devices(batch=batch, rate_rule="none", reference=batch),
    )


recipe = build("base", False)

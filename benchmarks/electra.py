"""Pretrain a small ELECTRA on prepared data for a given time, as a published low-compute baseline.

    python benchmarks/electra.py --data DATA --budget 8m --model OUT/electra --out electra.json

After Clark et al., ELECTRA (arXiv 2003.10555), section 3 and its table of small models, on transformers' own classes: a
discriminator of 12 layers x 256 with 4 heads, intermediate size 1024 and embeddings of 128; a generator of a quarter of
the hidden size, which shares the embeddings; 15 % of the tokens masked; the loss of the generator at these plus 50
times the discriminator's at all tokens; AdamW at 5e-4 with a decay of 0.01, epsilon 1e-6, dropout 0.1, 128 sequences of
128 tokens. Unlike the original, the schedule (warm-up, then linear to 0) is fitted to the time, because a run of
minutes is shorter than 10,000 steps of warm-up. The clock starts with the process; saving is not charged. The
discriminator is saved as a folder for daybreak evaluate.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import measure
import torch
import torch.nn.functional as F
import toy
from judged import Stopwatch
from reference import Timer, linear
from torch import Tensor, nn

from daybreak.data.sequences.sampler import StreamRows
from daybreak.data.sequences.shards import open_shards
from daybreak.models.layers import take
from daybreak.schemas.run import SpecialIds
from daybreak.training.hardware.probe import choose_device
from daybreak.training.objectives.objective import choose

RATE, WEIGHT = 0.15, 50.0
QUARTER = 4
CURVE_SECONDS = 5.0
TOY = {"layers": 2, "hidden_size": 32, "heads": 2, "embedding": 16}
SMALL = {"layers": 12, "hidden_size": 256, "heads": 4, "embedding": 128}


class Electra(nn.Module):
    """Generator and discriminator, which share their embeddings."""

    def __init__(self, vocabulary: int, length: int, shape: dict[str, int], special: SpecialIds):
        from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

        super().__init__()
        facts: dict[str, Any] = {
            "vocab_size": vocabulary, "embedding_size": shape["embedding"], "num_hidden_layers": shape["layers"],
            "max_position_embeddings": max(512, length), "pad_token_id": special.pad,
        }  # fmt: skip
        width, heads = shape["hidden_size"], shape["heads"]
        small: dict[str, Any] = {"hidden_size": width // QUARTER, "num_attention_heads": max(1, heads // QUARTER)}
        self.generator = ElectraForMaskedLM(ElectraConfig(**facts, **small, intermediate_size=width))
        large: dict[str, Any] = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width}
        self.discriminator = ElectraForPreTraining(ElectraConfig(**facts, **large))
        # The decoder is the word embeddings transposed, as in the paper's code.
        self.generator.electra.embeddings = self.discriminator.electra.embeddings
        self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight

    def losses(self, ids: Tensor, positions: Tensor, mask: int) -> tuple[Tensor, Tensor, Tensor]:
        """Generator loss at masked positions [B, K] of ``ids`` [B, L], discriminator loss, and its accuracy."""
        answers = ids.gather(1, positions)
        states = self.generator.electra(input_ids=ids.scatter(1, positions, mask)).last_hidden_state
        guesses = self.generator.generator_predictions(take(states, positions))
        logits = self.generator.generator_lm_head(guesses).float()
        generating = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        with torch.no_grad():
            noise = -torch.empty_like(logits).exponential_().log()  # Gumbel: the largest is a draw from the softmax
            drawn = (logits + noise).argmax(dim=2)
        shown = ids.scatter(1, positions, drawn)
        replaced = shown != ids  # a draw that hits the original counts as original
        told = self.discriminator(input_ids=shown).logits.float()
        discriminating = F.binary_cross_entropy_with_logits(told, replaced.float())
        return generating, discriminating, ((told > 0) == replaced).float().mean()


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups: weight decay except for biases and norms."""
    plain = [p for name, p in model.named_parameters() if p.ndim > 1]
    return [
        {"params": plain, "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


def trained(chosen: argparse.Namespace, data: Path, seconds: float) -> tuple[Electra, dict[str, Any]]:
    """Train until ``seconds`` after the start of this process; return the model and its curve."""
    timer, shards, device = Timer(seconds, Stopwatch()), open_shards(data), choose_device()
    special, half = shards.manifest.special, device.type == "cuda"
    torch.manual_seed(chosen.seed)
    shape = TOY if chosen.short else SMALL
    model = Electra(shards.manifest.vocabulary, chosen.length, shape, special).to(device).train()
    rows = StreamRows().build(shards.train, chosen.length, chosen.seed, special)
    optimizer = torch.optim.AdamW(groups(model), lr=chosen.rate, eps=1e-6, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: linear(timer.progress()))
    timer.begin()
    curve, step, due = [], 0, 0.0
    while timer.progress() < 1.0 or step == 0:
        ids = torch.from_numpy(rows.take(step * chosen.batch, chosen.batch).ids).to(device)
        positions = choose(ids, RATE, seed=chosen.seed, position=step * chosen.batch, special=special)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            generating, discriminating, hits = model.losses(ids, positions, special.mask)
        (generating + WEIGHT * discriminating).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        step += 1
        if timer.elapsed() >= due:
            due = timer.elapsed() + CURVE_SECONDS
            curve.append(
                {"seconds": timer.elapsed(), "step": step, "generator_loss": generating.item(),
                 "discriminator_loss": discriminating.item(), "hits": hits.item()}
            )  # fmt: skip
    tokens = step * chosen.batch * chosen.length
    parameters = sum(parameter.numel() for parameter in model.discriminator.parameters())
    facts = {"steps": step, "tokens": tokens, "parameters": parameters, "elapsed": timer.elapsed(), "curve": curve}
    return model, {**facts, "shape": shape, "epochs": step * chosen.batch / rows.rows_per_epoch}


def save(model: Electra, tokenizer: Path, out: Path) -> None:
    """Save the discriminator with its tokenizer for transformers."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(tokenizer, out)
    model.discriminator.save_pretrained(out)


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare; toy data with --short")
    parser.add_argument("--budget", default="8m")
    parser.add_argument("--model", type=Path, help="where the discriminator goes; in --work by default")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    seconds = 20.0 if chosen.short else measure.budget_seconds(chosen.budget)
    if chosen.short:
        measure.use_one_thread()
        chosen.batch, chosen.length = 4, 32
    names = ("budget", "rate", "batch", "length", "seed")
    found = measure.record("electra", {name: getattr(chosen, name) for name in names})
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        model, facts = trained(chosen, data, seconds)
        save(model, data / "tokenizer", chosen.model or work / "electra")
    found |= facts
    measure.finish(found, chosen.out)
    last = facts["curve"][-1]
    print(
        f"{facts['steps']:,} steps, {facts['tokens'] / 1e6:.2f}M tokens in {facts['elapsed']:.0f} s; generator "
        f"{last['generator_loss']:.3f}, discriminator {last['discriminator_loss']:.3f}, hits {last['hits']:.1%}"
    )


if __name__ == "__main__":
    main()

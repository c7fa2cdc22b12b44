"""What ``daybreak record`` files beside a run's own files: records/NAME/record.json. Units as in ``records``."""

from __future__ import annotations

from dataclasses import dataclass, field

from daybreak.schemas.run import Environment

RECORD_FILE = "record.json"
RULES = 1
"""Of the speedrun in RULES.md; a record says under which it was filed."""
NAMED_TEXTS = 3
VERIFIED_STEPS = 500
"""Fewest of the last steps that the speedrun wants verified; all of a shorter run."""


def tolerance(seconds: float) -> float:
    """How far from its budget a run may end, in seconds (RULES.md)."""
    return max(0.01 * seconds, 1.0)


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What ``daybreak verify`` found equal bit for bit."""

    first: int
    """The checkpoint that it began at, a step; 0 is the beginning of the run."""
    last: int
    gradient_norms: int
    """How many recorded ones were compared."""
    weights: list[str]
    """Which: checkpoints by their folder, and the exported model."""
    loss: float | None = None
    """Held-out loss of the exported model, judged again; None where the run was not finished."""


@dataclass(frozen=True, kw_only=True)
class DataIdentity:
    """The text of a run. Losses compare where the three fingerprints are equal."""

    tokenizer: str
    """Fingerprint, see ``Manifest.tokenizer``."""
    train: str
    """Fingerprint of the training shards, made from their hashes; empty where a run was filed without them."""
    heldout: str
    """Fingerprint of the held-out rows as they are shown to a model, the masked positions and the answers."""
    vocabulary: int
    train_documents: int
    train_tokens: int
    heldout_tokens: int
    texts: int
    """Files and other sources that it came from."""
    names: list[str]
    """Of the first few, without paths; data.json has all."""

    @property
    def known(self) -> bool:
        return bool(self.train and self.heldout)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.tokenizer, self.train, self.heldout


@dataclass(frozen=True, kw_only=True)
class RecordedResult:
    """One task in short; results.json beside it has the rest."""

    protocol: str
    task: str
    model: str
    """pretrained or untrained, see ``TaskResult.model``."""
    metric: str
    mean: float
    spread: float
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Record:
    """All of records/NAME/record.json, made from the run's own files."""

    rules: int
    """Version of the speedrun's rules; 0 where a run was filed without this file."""
    date: str
    """Day on which the run started, UTC: 2026-11-22."""
    recipe: str
    """Name."""
    fingerprint: str
    """Of the whole recipe, as in recipe.json."""
    variant: str
    """Of the recipe without its seed: runs that share it are one variant."""
    seed: int
    budget: str
    """As it was asked for."""
    seconds: float | None
    """That in seconds; None for a budget in tokens or steps."""
    elapsed: float
    """Charged to the budget."""
    wall: float
    resumes: int
    device: str
    """cpu or cuda."""
    threads: int
    processes: int
    precision: str
    batch: int
    machine: Environment
    """Names, cores, memory, versions."""
    transformers: str
    """Version, of the parity gate."""
    commit: str
    """Of the checkout that filed and verified the run; empty where it was installed otherwise."""
    parameters: int
    steps: int
    tokens: int
    epochs: float
    tokens_per_second: float
    loss: float
    """On all held-out positions, at the end."""
    accuracy: float
    unigram_loss: float
    """Of word frequencies alone on the same positions."""
    positions: int
    data: DataIdentity
    parent: str
    """Model or run that it starts from; empty from random weights."""
    verified: Verified | None
    """None where a run was filed without this file."""
    load: float | None
    """The highest one-minute load meanwhile; None where nobody watched it."""
    others: float | None
    """Cores that other processes used, on average; None where nobody counted."""
    void: str
    """Why its time counts for nothing; empty where it counts."""
    results: list[RecordedResult] = field(default_factory=list)
    kilowatt_hours: float | None = None
    """Of the accelerators; None where they do not tell."""

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def hardware(self) -> str:
        """The machine in words."""
        many = f", {self.processes} processes" if self.processes > 1 else ""
        if self.on_gpu:
            return f"{self.machine.device}{many}"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        cores = f"{self.machine.cores} core{'s' if self.machine.cores > 1 else ''}"
        return f"{self.machine.device}, {cores}, {threads}{many}"

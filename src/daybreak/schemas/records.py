"""Types of records/NAME/record.json, written by ``daybreak record``. Units as in ``schemas.run``."""

from __future__ import annotations

from dataclasses import dataclass, field

from daybreak.schemas.run import Environment

RECORD_FILE = "record.json"
RULES = 1
"""Version of the speedrun rules in RULES.md, stored in each record."""
NAMED_TEXTS = 3
VERIFIED_STEPS = 500
"""Number of last steps that the speedrun requires to be verified; all of a shorter run."""


def tolerance(seconds: float) -> float:
    """Largest allowed difference of a run's time from its budget, in seconds (RULES.md)."""
    return max(0.01 * seconds, 1.0)


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Parts of a run that ``daybreak verify`` reproduced bit for bit."""

    first: int
    """Step of the checkpoint where verification started; 0 for the start of the run."""
    last: int
    gradient_norms: int
    """Number of recorded gradient norms that were compared."""
    weights: list[str]
    """Weights that were compared: checkpoints by folder name, and the exported model."""
    loss: float | None = None
    """Held-out loss of the exported model, evaluated again; None if the run was not finished."""


@dataclass(frozen=True, kw_only=True)
class DataIdentity:
    """Identity of a run's text. Losses are comparable if all three fingerprints are equal."""

    tokenizer: str
    """Fingerprint, see ``Manifest.tokenizer``."""
    train: str
    """Fingerprint of the training shards, made from their hashes; empty if it is not known."""
    heldout: str
    """Fingerprint of the held-out inputs, masked positions and answers."""
    vocabulary: int
    train_documents: int
    train_tokens: int
    heldout_tokens: int
    texts: int
    """Number of files and other sources."""
    names: list[str]
    """Names of the first few, without paths; data.json has all."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.tokenizer, self.train, self.heldout


@dataclass(frozen=True, kw_only=True)
class RecordedResult:
    """Result of one task; results.json has the details."""

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
    """Content of records/NAME/record.json, made from the files of the run."""

    rules: int
    """Version of the speedrun rules; 0 for a run recorded without this file."""
    date: str
    """Day on which the run started, UTC: 2026-11-22."""
    recipe: str
    """Name of the recipe."""
    fingerprint: str
    """Fingerprint of the recipe, as in recipe.json."""
    variant: str
    """Fingerprint of the recipe without its seed: runs that share it are one variant."""
    seed: int
    budget: str
    """As the user wrote it."""
    seconds: float | None
    """Budget in seconds; None for a budget in tokens or steps."""
    elapsed: float
    """Charged to the budget."""
    wall: float
    resumes: int
    device: str
    """cpu or cuda."""
    threads: int
    processes: int
    """The most that the run had at a time, each with that many threads."""
    precision: str
    batch: int
    machine: Environment
    """Device, cores, memory, versions."""
    transformers: str
    """Version of transformers in the parity check."""
    commit: str
    """Commit of the checkout that recorded the run; empty if Daybreak was installed as a package."""
    parameters: int
    steps: int
    tokens: int
    epochs: float
    tokens_per_second: float
    loss: float
    """Final loss on all held-out positions."""
    accuracy: float
    unigram_loss: float
    """Loss of the unigram baseline on the same positions."""
    positions: int
    data: DataIdentity
    parent: str
    """Model or run that it starts from; empty for random weights."""
    verified: Verified | None
    """None for a run recorded without this file."""
    load: float | None
    """Highest one-minute load average during the run; None if not measured."""
    others: float | None
    """Mean number of cores used by other processes; None if not measured."""
    void: str
    """Why its time is void; empty if it is not."""
    results: list[RecordedResult] = field(default_factory=list)
    kilowatt_hours: float | None = None
    """Energy of the accelerators; None if they do not report it."""

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

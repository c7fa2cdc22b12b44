"""An embedding finish: in the last part of a run, a contrastive loss on spans of one document joins the masked loss.

Sequences 2i and 2i + 1 of the run are two spans of one document. The embedding of a sequence is what sentence-
transformers computes: the mean of the last hidden states over all positions but padding, scaled to length 1. The loss
is InfoNCE (van den Oord et al., arXiv 1807.03748) in the symmetric form of SimCLR (Chen et al., arXiv 2002.05709,
equation 1): each span has to pick its partner out of all spans of the optimizer step. Both losses come from one forward
pass, in which a tenth or more of the tokens are masked.

Over several microbatches or processes the gradient is still exact, as in GradCache (Gao et al., arXiv 2101.06983): a
first pass without gradients computes all embeddings of the step and the gradient of the loss for each of them; the
second pass computes the gradients of the weights.

B sequences, L positions, K requested positions, D hidden size, N sequences of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError, check_option


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The embedding finish: the last part of a run, which adds a contrastive loss for embeddings to the masked loss."""

    start: float = 1.0
    """Fraction of the run at which the finish starts; 1 for no finish, 0 for the whole run."""
    weight: float = 0.3
    """Weight of the mean contrastive loss; that of the mean masked loss is 1."""
    temperature: float = 0.05
    """Divisor of the cosine similarities."""
    length: int = 64
    """Positions of a sequence."""
    batch: int = 0
    """Sequences of a step; 0 for as many as give a step the same number of tokens as before."""
    shortest: int = 12
    """Minimum number of tokens of a span."""
    longest: int = 60
    """Maximum number of tokens of a span."""
    views: float = 0.1
    """Fraction of the pairs that are replaced by sequences of views, so that the model still compares segments."""
    ordinary: float = 0.5
    """Fraction of the pairs that are replaced by ordinary sequences, so that the masked loss does not rise."""

    def __post_init__(self) -> None:
        check_option("--finish.start", self.start, 0 <= self.start <= 1, "in [0, 1]")
        check_option("--finish.temperature", self.temperature, self.temperature > 0, "above 0")
        check_option("--finish.weight", self.weight, self.weight >= 0, "of at least 0")
        check_option("--finish.batch", self.batch, self.batch >= 0, "of at least 0")
        if self.views < 0 or self.ordinary < 0 or not self.views + self.ordinary < 1:
            raise UserError(
                "--finish.views and --finish.ordinary must not be negative, and their sum must be below 1.",
                "Give two fractions whose sum is below 1.",
            )
        if not 4 <= self.shortest <= self.longest or self.shortest > self.length - 2:
            raise UserError(
                f"--finish.shortest {self.shortest} and --finish.longest {self.longest} do not fit each other or "
                f"--finish.length {self.length}.",
                "Give spans of at least 4 tokens, and sequences of 2 positions more than the shortest span.",
            )

    @property
    def enabled(self) -> bool:
        """Whether the run has an embedding finish."""
        return self.start < 1

    def is_active(self, progress: float) -> bool:
        """Whether ``progress`` lies in the finish."""
        return self.enabled and progress >= self.start

    def sequences(self, batch: int, length: int) -> int:
        """Return the sequences of a step, an even number.

        Args:
            batch, length: sequences of a step before, and their positions.
        """
        return max(2, (self.batch or batch * length // self.length) // 2 * 2)


def embed(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the mean of ``states`` [B, L, D] over ``attention_mask`` [B, L] at unit length, float32 [B, D]."""
    if attention_mask is None:
        return F.normalize(states.float().mean(dim=1), dim=1)
    weights = attention_mask[:, :, None].float()
    return F.normalize((states.float() * weights).sum(dim=1) / weights.sum(dim=1), dim=1)


def contrastive_loss(embeddings: Tensor, documents: Tensor, position: int, temperature: float) -> Tensor:
    """Return the mean InfoNCE loss, nats, over the sequences of a step whose partner is in the step too.

    Args:
        embeddings: [N, D] of unit length, of the sequences position, position + 1, ... of the run.
        documents: int64 [N], as ``Batch.passage_ids``; another span of a sequence's own passage does not count against
            it. Sequences below 0 have no partner and are not candidates.
    """
    count = len(embeddings)
    index = torch.arange(count, device=embeddings.device)
    partner = ((index + position) ^ 1) - position
    # Only the first and the last sequence may have a partner outside of the step.
    first = position % 2
    last = max(first, count - (position + count) % 2)
    with torch.autocast(embeddings.device.type, enabled=False):
        scores = embeddings.float() @ embeddings.float().T / temperature
    same_document = (documents[:, None] == documents) & (partner[:, None] != index)
    unpaired = documents < 0
    scores = scores.masked_fill(same_document | unpaired, -torch.inf)
    # A sequence without a partner has no candidates: its scores are replaced, so that no infinity reaches the gradient.
    scores = scores.masked_fill(unpaired[:, None], 0.0)[first:last]
    losses = F.cross_entropy(scores, partner[first:last], reduction="none").masked_fill(unpaired[first:last], 0.0)
    return losses.sum() / (~unpaired[first:last]).sum().clamp(min=1)


def contrastive_gradients(
    embeddings: Tensor, documents: Tensor, position: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of ``contrastive_loss`` and its gradient for each embedding, [N, D]."""
    leaves = embeddings.detach().requires_grad_()
    with torch.enable_grad():
        loss = contrastive_loss(leaves, documents, position, temperature)
        (gradients,) = torch.autograd.grad(loss, leaves)
    return loss.detach(), gradients


@dataclass(frozen=True)
class WithEmbeddings:
    """The loss of an objective with the embeddings of the same forward pass."""

    loss_of: Callable[..., LossSum]
    """``Objective.loss`` of an objective that calls the model once."""

    def loss(self, model: Encoder, batch: Batch, **arguments: object) -> LossSum:
        """Like ``Objective.loss``, with ``LossSum.embeddings``."""
        pooling = Pooling(model)
        result = self.loss_of(pooling, batch, **arguments)
        return replace(result, embeddings=pooling.embeddings)

    def embeddings(self, model: Encoder, batch: Batch, **arguments: object) -> Tensor:
        """Return the embeddings [B, D] of ``loss``, without gradients and without the decoder."""
        pooling = Pooling(model, only=True)
        try:
            with torch.no_grad():
                self.loss_of(pooling, batch, **arguments)
        except _Pooled:
            pass
        assert pooling.embeddings is not None
        return pooling.embeddings


class _Pooled(Exception):
    """Raised when the embeddings are ready and the objective's use of the states is not needed."""


class Pooling(Encoder):
    """An encoder that computes all states of the last layer, and keeps their embeddings.

    Args:
        only: stop the caller once the embeddings are ready.
    """

    def __init__(self, model: Encoder, *, only: bool = False):
        super().__init__()
        self._model, self._only = model, only
        self.vocabulary, self.hidden_size = model.vocabulary, model.hidden_size
        self.compiled, self.compiled_loss = model.compiled, model.compiled_loss  # read by ``decoded``
        self.embeddings: Tensor | None = None
        """[B, D] of the last forward pass; None before."""

    def states(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        states = self._model.states(ids, causal=causal, attention_mask=attention_mask, token_type_ids=token_type_ids)
        self.embeddings = embed(states, attention_mask)
        if self._only:
            raise _Pooled
        if positions is None:
            return states
        flat = positions + torch.arange(len(ids), device=ids.device)[:, None] * ids.shape[1]
        return states.flatten(0, 1).index_select(0, flat.reshape(-1)).view(*positions.shape, -1)

    def transform(self, states: Tensor) -> Tensor:
        return self._model.transform(states)

    @property
    def decoder(self) -> nn.Linear:
        return self._model.decoder

"""Regional torch.compile, in place: the blocks of a model share compiled code, everything else runs eagerly.

Blocks of equal structure and shapes share one compiled graph. A run compiles at most one graph for each stage (causal
or masked), length and kind of block: the first if it differs, local and global ones, and the last. The embedding finish
compiles its graphs twice, without gradients and with them. The number of requested positions, K, may change along a
run: the last block's graph holds for every K, but on a GPU torch makes another one for multiples of 8. A smaller last
microbatch has another shape and its own graphs; microbatches of one size avoid this. Dropout draws differ from those of
uncompiled code.

Where K differs from batch to batch, the last block is not compiled. On a GPU the order of its sums depends on the first
K that a process meets, so a resumed run and a replay would differ in the last bits.

B sequences, L positions, K chosen positions.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from daybreak.core.encoder import Encoder, call_block
from daybreak.core.errors import Interrupted, PeerLost, UserError, reason
from daybreak.core.files import cache_folder
from daybreak.core.terminal import say
from daybreak.training.objectives.loss import loss_and_gradient

MAX_GRAPHS = 64
"""Torch's default limit, 8, is too low for two lengths of a model with local layers."""
DETERMINISTIC: dict[str, Any] = {"deterministic": True}
"""Options of inductor. Without them each process times variants of a kernel on a GPU, which sum in different orders, so
a replay may differ in the last bits. Torch's global setting is no alternative: each compilation resets it."""

Backend = str | Callable[..., Any]
"""A compiler: its name in torch, or a function."""


def keep_compiled() -> None:
    """Store compiled code in the user's cache folder, where later runs of the same shapes find it.

    Torch's default is a temporary folder, which a restart or another container does not have. An existing
    TORCHINDUCTOR_CACHE_DIR stays in force, and so does torch's default if the cache folder cannot be written.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    try:
        folder = cache_folder() / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a user without a home
        return
    if os.access(folder, os.W_OK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def compile_blocks(model: Encoder, backend: Backend = "inductor", *, count_varies: bool = False) -> None:
    """Let ``model`` call its blocks by compiled code during training; ``model.compiled = None`` undoes it.

    Nothing is compiled before the first call. No module is wrapped: names and the state dict stay the same.

    Args:
        count_varies: whether K differs from batch to batch, see ``Objective.count_varies``.
    """
    from torch import _dynamo

    keep_compiled()
    # Silences "Not enough SMs to use max_autotune_gemm" on consumer GPUs; Daybreak does not autotune.
    logging.getLogger("torch._inductor.utils").setLevel(logging.ERROR)
    torch.compiler.reset()  # graphs of an earlier model in this process count against the limit
    _dynamo.config.recompile_limit = MAX_GRAPHS
    # Inside DistributedDataParallel torch splits each graph at 25 MiB of parameters, to send gradients earlier. A block
    # is small enough to be sent whole, and split graphs round differently than those of one process.
    _dynamo.config.optimize_ddp = False
    # A graph break would hide that a block cannot be compiled: require one whole graph, or raise.
    options = DETERMINISTIC if backend == "inductor" else None
    compiled = torch.compile(call_block, backend=backend, dynamic=False, fullgraph=True, options=options)

    def call(
        block: nn.Module, x: Tensor, mask: Tensor | None, causal: bool, positions: Tensor | None, *tables: Tensor
    ) -> Tensor:
        if positions is not None and count_varies:
            return call_block(block, x, mask, causal, positions, *tables)
        if positions is not None and positions.shape[1] > 1:  # torch specializes sizes of 1
            _dynamo.mark_dynamic(positions, 1)
            if mask is not None and mask.shape[2] > 1:
                _dynamo.mark_dynamic(mask, 2)
        return compiled(block, x, mask, causal, positions, *tables)

    model.compiled = call
    if next(model.parameters()).is_cuda:
        # For one number of targets only: with several, the order of the sums would depend on the first in a process.
        model.compiled_loss = torch.compile(
            loss_and_gradient, backend=backend, dynamic=False, fullgraph=True, options=options
        )


def try_compiled(
    model: Encoder, step: Callable[[], None], backend: Backend = "inductor", *, count_varies: bool = False
) -> str | None:
    """Compile the blocks of ``model`` and run ``step`` once; on failure continue uncompiled and return why.

    Args:
        step: a forward and a backward pass in training mode. Its only effect must be gradients, which are dropped.
        count_varies: as in ``compile_blocks``.

    Raises:
        torch.OutOfMemoryError: ``step`` does not fit into memory; the model stays compiled, for a smaller microbatch.
    """
    try:
        compile_blocks(model, backend, count_varies=count_varies)
        step()
    except torch.OutOfMemoryError:
        raise
    except (UserError, Interrupted, PeerLost):
        model.compiled = None
        raise
    except Exception as error:
        # If the compiler was not the cause, the same step raises the error again uncompiled.
        model.compiled = None
        why = why_not_compiled(error)
        say_not_compiled(why)
        return why
    finally:
        model.zero_grad(set_to_none=True)
    return None


def why_not_compiled(error: Exception) -> str:
    """The first line of the compiler's error message, which torch wraps in an error of its own."""
    return reason(getattr(error, "inner_exception", error))


def say_not_compiled(why: object) -> None:
    say(f"The model could not be compiled ({why}); training continues without torch.compile.")


def failed_to_compile(error: BaseException) -> bool:
    """Whether ``error`` came from the compiler rather than from the model or the machine; a new stage compiles again.

    Triton compiles at the first launch of a kernel. Its errors then, such as OutOfResources if a kernel needs more
    registers or shared memory than the GPU has, do not mean that the memory is full.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    if isinstance(error, (TorchDynamoException, FailOnRecompileLimitHit)):
        return True
    return any(cls.__module__.partition(".")[0] == "triton" for cls in type(error).__mro__)

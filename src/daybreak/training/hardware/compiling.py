"""Regional torch.compile, in place: the blocks of a trunk share compiled code, everything else runs as written.

Blocks alike in make and shapes share one compiled graph, so a run compiles at most one for each stage (causal or
masked), length and kind of block: the first where it is made differently, local and global ones, and the last. How
many positions are asked, K, may change: the last block's graph holds for every K. A ragged last microbatch has its own
rows and so its own graphs; microbatches of one size cost none. Dropout draws other numbers than uncompiled.

B rows, L positions, K chosen positions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from daybreak.core.encoder import Encoder, called
from daybreak.core.errors import Interrupted, PeerLost, UserError, reason
from daybreak.core.terminal import say

MOST_GRAPHS = 64
"""Torch's own limit, 8, is less than two lengths of a model with local layers need."""

Backend = str | Callable[..., Any]
"""What torch calls a compiler: its name, or a function."""


def keep_compiled() -> None:
    """Have torch keep compiled code in the user's cache folder, where the next run of the same shapes finds it.

    By itself torch keeps it among temporary files, which a restart or another container does not have. A folder named
    by TORCHINDUCTOR_CACHE_DIR stays.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(home) / "daybreak" / "compiled"))


def compile_blocks(model: Encoder, backend: Backend = "inductor") -> None:
    """Have ``model`` call its blocks by compiled code while it trains; ``model.compiled = None`` undoes it.

    Nothing is compiled before the first call. No module is wrapped: names and the state dict stay as they are.
    """
    from torch import _dynamo

    keep_compiled()
    torch.compiler.reset()  # graphs of an earlier model in this process would count against the limit
    _dynamo.config.recompile_limit = MOST_GRAPHS
    # A graph in pieces would hide that a block stopped being compilable: one whole graph, or an error.
    compiled = torch.compile(called, backend=backend, dynamic=False, fullgraph=True)

    def call(
        block: nn.Module, x: Tensor, mask: Tensor | None, causal: bool, slots: Tensor | None, *tables: Tensor
    ) -> Tensor:
        if slots is not None and slots.shape[1] > 1:  # torch treats sizes of 1 apart
            _dynamo.mark_dynamic(slots, 1)
            if mask is not None and mask.shape[2] > 1:
                _dynamo.mark_dynamic(mask, 2)
        return compiled(block, x, mask, causal, slots, *tables)

    model.compiled = call


def try_compiled(model: Encoder, step: Callable[[], None], backend: Backend = "inductor") -> str | None:
    """Compile the blocks of ``model`` and run ``step`` once; where that fails, go back to how they are written.

    Args:
        step: a forward and a backward pass in training mode. It must leave nothing but gradients, which are dropped.

    Returns:
        Why compiling failed, for the records; None where it works.
    """
    try:
        compile_blocks(model, backend)
        step()
    except (UserError, Interrupted, PeerLost):
        model.compiled = None
        raise
    except Exception as error:
        # Whatever it was: if it was not the compiler, the same step will say so again uncompiled.
        model.compiled = None
        why = reason(getattr(error, "inner_exception", error))  # torch wraps what the compiler said
        say(f"The model could not be compiled ({why}); training goes on without.")
        return why
    finally:
        model.zero_grad(set_to_none=True)
    return None


def failed_to_compile(error: BaseException) -> bool:
    """Whether ``error`` came from the compiler rather than from the model or the machine: a new stage compiles anew.

    Triton compiles when a kernel is first launched: what it raises then, such as OutOfResources where a kernel wants
    more registers or shared memory than the GPU has, is no full memory.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    if isinstance(error, (TorchDynamoException, FailOnRecompileLimitHit)):
        return True
    return any(cls.__module__.partition(".")[0] == "triton" for cls in type(error).__mro__)

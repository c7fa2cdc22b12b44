"""How many graphs a run of the flagship compiles on a GPU: its blocks captured whole, on CUDA tensors without numbers.

Prints JSON: after each moment of a run, how many graphs there are.
"""

from __future__ import annotations

import json
import os
import sys

import device  # before torch
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from daybreak.models.modern import ModernEncoder
from daybreak.training.hardware.compiling import compile_blocks
from daybreak.training.objectives.finish import embed
from daybreak.training.objectives.loss import GPU_CHUNK
from daybreak.training.objectives.objective import decoder_loss

MOMENTS = ((True, 19), (False, 19), (False, 16), (False, 13), (False, 10))
"""Causal or not, and how many positions are asked, as the flagship goes along."""
FINISH = (False, True, False, True)
"""Whether the embeddings of a microbatch are computed with gradients: each step of the finish begins without them."""
TARGETS = (2 * GPU_CHUNK + 5, 3 * GPU_CHUNK + 4)
"""Of the loss at two mask rates: only its whole chunks are compiled, which have one shape."""


def main() -> None:
    device.answer()
    torch.nn.init.trunc_normal_ = lambda tensor, *_, **__: tensor
    found = {}
    for name, more in {"global": {"layers": 4}, "local": {"layers": 5, "global_every": 3, "window": 16}}.items():
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = ModernEncoder(hidden_size=64, heads=2, intermediate_size=48, **more).build(101)
            for module in model.modules():
                for key, parameter in list(module._parameters.items()):
                    if parameter is not None:
                        module._parameters[key] = torch.nn.Parameter(torch.empty_like(parameter, device="cuda"))
            counter = CompileCounterWithBackend("eager")
            compile_blocks(model.train(), counter)
            counts = []
            for causal, asked in MOMENTS:
                ids = torch.zeros(4, 64, dtype=torch.int64, device="cuda")
                positions = torch.zeros(4, asked, dtype=torch.int64, device="cuda")
                with torch.autocast("cuda", torch.bfloat16):
                    model.features(ids, positions, causal=causal).float().sum().backward()
                counts.append(counter.frame_count)
            for gradients in FINISH:
                ids = torch.zeros(8, 32, dtype=torch.int64, device="cuda")
                attention_mask = torch.ones(8, 32, dtype=torch.bool, device="cuda")
                with torch.autocast("cuda", torch.bfloat16), torch.set_grad_enabled(gradients):
                    embeddings = embed(model.states(ids, attention_mask=attention_mask), attention_mask)
                if gradients:
                    embeddings.sum().backward()
                counts.append(counter.frame_count)
            for targets in TARGETS:
                features = torch.zeros(targets, 64, device="cuda", requires_grad=True)
                answers = torch.zeros(targets, dtype=torch.int64, device="cuda")
                with torch.autocast("cuda", torch.bfloat16):
                    decoder_loss(model, features, answers).sum.backward()
                counts.append(counter.frame_count)
            found[name] = counts
    json.dump(found, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # autograd's thread for the pretended device may still run; torch would abort the process at its end


if __name__ == "__main__":
    main()

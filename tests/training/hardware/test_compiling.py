"""Compiled blocks: few graphs, the same numbers, the same names, and a way back when the compiler fails."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from needs import takes_long
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import utils as inductor
from torch.nn.parallel import DistributedDataParallel
from toy_run import equal, journaled, training

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, EncoderConfig
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import Decisions
from daybreak.training.checkpoint import START
from daybreak.training.hardware.compiling import compile_blocks, failed_to_compile, keep_compiled, try_compiled
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.step import CompilationFailed, MicrobatchTooLarge, accumulate

VOCABULARY, ROWS = 101, 4
OBJECTIVE = CausalThenMasked(causal_fraction=0.2, causal_targets=0.3, mask_rates=(0.3, 0.25, 0.2, 0.15))
STAGES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Progress in the causal stage and at each of the four mask rates."""

SHAPES = {
    "modern": ModernEncoder(layers=5, hidden_size=32, heads=2, intermediate_size=24, global_every=3, window=10),
    "bert": BertEncoder(layers=2, hidden_size=32, heads=2, intermediate_size=48, dropout=0.1, attention_dropout=0.1),
    "crammed": CrammedEncoder(layers=2, hidden_size=32, heads=2, intermediate_size=24, dropout=0.1),
}
KINDS = {"modern": 4, "bert": 2, "crammed": 2}
"""The last block, the others, ModernBERT's first, which has no norm, and its local ones."""


@pytest.fixture(params=SHAPES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    limit = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = limit
    torch.compiler.reset()


def built(shape: EncoderConfig) -> Encoder:
    torch.manual_seed(3)
    return shape.build(VOCABULARY).train()


def batch(length: int, padded: bool = False) -> Batch:
    ids = torch.randint(5, VOCABULARY, (ROWS, length), generator=torch.Generator().manual_seed(length))
    attention_mask = torch.arange(length)[None] < torch.tensor([[length], [length // 2], [length], [length - 3]])
    return Batch(input_ids=ids, attention_mask=attention_mask if padded else None)


def backward(model: Encoder, rows: Batch, progress: float) -> float:
    torch.manual_seed(7)  # dropout's
    loss = OBJECTIVE.loss(model, rows, seed=1, position=0, progress=progress).sum
    loss.backward()
    return loss.item()


def trained(model: Encoder, steps: int = 6) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(steps):
        backward(model, batch(16), number / steps)
        optimizer.step()
        optimizer.zero_grad()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_run_compiles_once_for_each_stage_length_and_kind_of_block(name: str) -> None:
    model, counter = built(SHAPES[name]), CompileCounterWithBackend("eager")
    compile_blocks(model, counter)
    counts = []
    for length in (32, 64):
        for progress in STAGES:
            for _ in range(2):
                backward(model, batch(length), progress)
            counts.append(counter.frame_count)
    kinds = KINDS[name]
    # Causal, then masked: nothing more at the other mask rates.
    assert counts == [n * kinds for n in (1, 2, 2, 2, 2, 3, 4, 4, 4, 4)]


def test_judging_compiles_nothing_whatever_its_shapes(name: str) -> None:
    model, counter = built(SHAPES[name]), CompileCounterWithBackend("eager")
    plain = built(SHAPES[name]).eval()
    compile_blocks(model, counter)
    backward(model, batch(16), 0.9)
    before = counter.frame_count
    with torch.inference_mode():
        for length in (16, 24):
            ids = batch(length).input_ids
            assert torch.equal(model.eval().logits(ids), plain.logits(ids))
    backward(model.train(), batch(16), 0.9)
    assert counter.frame_count == before > 0


@pytest.mark.parametrize(("padded", "gradient_checkpointing"), [(False, False), (True, True)])
def test_loss_and_gradients_are_those_of_the_uncompiled_model(
    name: str, padded: bool, gradient_checkpointing: bool
) -> None:
    plain, model = built(SHAPES[name]), built(SHAPES[name])
    model.gradient_checkpointing = gradient_checkpointing
    compile_blocks(model, "aot_eager")
    rows = batch(24, padded)
    assert backward(model, rows, 0.9) == pytest.approx(backward(plain, rows, 0.9), rel=1e-6)
    for (name, expected), (same, parameter) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        assert name == same
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_one_position_asked_can_be_compiled_too() -> None:
    plain, model = built(SHAPES["bert"]), built(SHAPES["bert"])
    compile_blocks(model, "aot_eager")
    rows = batch(4)  # 15 % of 4 is one position
    assert backward(model, rows, 0.9) == pytest.approx(backward(plain, rows, 0.9), rel=1e-6)


def test_a_small_gpu_is_not_warned_of_a_tuning_that_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[logging.LogRecord] = []
    monkeypatch.setattr(inductor.log, "handle", said.append)
    monkeypatch.setattr(
        inductor.DeviceProperties, "create", lambda _: SimpleNamespace(major=8, multi_processor_count=28)
    )
    compile_blocks(built(SHAPES["bert"]), "eager")
    assert not inductor.is_big_gpu.__wrapped__(torch.device("cuda")) and said == []


def test_names_and_the_state_dict_do_not_show_it() -> None:
    plain, model = built(SHAPES["crammed"]), built(SHAPES["crammed"])
    assert try_compiled(model, lambda: backward(model, batch(16), 0.9), "eager") is None
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    assert model.compiled is not None and all(parameter.grad is None for parameter in model.parameters())


def fails_at_once(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    raise RuntimeError("no compiler was found on this machine.\nA long explanation follows.")


def fails_when_run(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        raise RuntimeError("no kernel image is available.")

    return run


def breaks_after(count: int, graphs: list[Any]) -> Callable[..., Any]:
    """A compiler that fails after so many graphs, which it puts into the list."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        if len(graphs) > count:
            raise OSError("No space left on device")
        return graph.forward

    return compile_graph


@pytest.mark.parametrize("backend", [fails_at_once, fails_when_run])
def test_a_failing_compiler_leaves_a_run_that_never_compiled(
    name: str, backend: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model = built(SHAPES[name])
    why = try_compiled(model, lambda: backward(model, batch(16), 0.9), backend)
    assert why is not None and "no " in why and "\n" not in why and not why.endswith(".")
    output = capsys.readouterr()
    assert " ".join(why.split()) in " ".join((output.out + output.err).split())
    assert model.compiled is None
    expected = trained(built(SHAPES[name]))
    for key, tensor in trained(model).items():
        assert torch.equal(tensor, expected[key]), key


def test_an_error_of_the_user_is_not_taken_for_the_compilers() -> None:
    model = built(SHAPES["bert"])

    def step() -> None:
        raise UserError("The data ended.", "Bring more.")

    with pytest.raises(UserError, match="The data ended"):
        try_compiled(model, step, "eager")
    assert model.compiled is None


def test_a_full_memory_is_not_taken_for_the_compilers() -> None:
    """A smaller microbatch may fit, compiled."""
    model = built(SHAPES["bert"])

    def step() -> None:
        backward(model, batch(16), 0.9)
        raise MicrobatchTooLarge("a microbatch of 4 sequences does not fit")

    with pytest.raises(MicrobatchTooLarge):
        try_compiled(model, step, "eager")
    assert model.compiled is not None and all(parameter.grad is None for parameter in model.parameters())


def test_a_failed_compilation_says_why(tmp_path: Path) -> None:
    made = training(tmp_path)
    compile_blocks(made.model, breaks_after(0, []))
    with pytest.raises(CompilationFailed, match="No space left on device") as caught:
        accumulate(made, START, 0.5, 4)
    assert isinstance(getattr(caught.value.__cause__, "inner_exception", None), OSError)


def test_a_compiler_that_fails_at_a_later_stage_differs_from_other_errors() -> None:
    model = built(SHAPES["bert"])
    assert try_compiled(model, lambda: backward(model, batch(16), 0.1), breaks_after(2, [])) is None
    with pytest.raises(Exception) as caught:
        backward(model, batch(16), 0.9)
    assert failed_to_compile(caught.value)
    triton = type("OutOfResources", (Exception,), {"__module__": "triton.runtime.errors"})
    assert failed_to_compile(triton("out of resource: shared memory"))
    assert not failed_to_compile(torch.OutOfMemoryError("out of memory"))
    assert not failed_to_compile(UserError("The data ended.", "Bring more."))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: torch compiles for a CPU with it")
@takes_long
def test_torchs_own_compiler_learns_the_same() -> None:
    shape = ModernEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=8)
    plain, model = built(shape), built(shape)
    assert try_compiled(model, lambda: backward(model, batch(8), 0.9)) is None
    assert backward(model, batch(8), 0.9) == pytest.approx(backward(plain, batch(8), 0.9), rel=1e-5)
    for (name, expected), (_, parameter) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_no_process_chooses_kernels_by_their_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of other speed sum in another order: a replay in another process would differ in the last bits."""
    asked: list[Any] = []

    def compile_fx(graph: torch.fx.GraphModule, inputs: Any, **settings: Any) -> Callable[..., Any]:
        asked.append(settings["config_patches"])
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    model = built(SHAPES["crammed"])
    compile_blocks(model)
    backward(model, batch(8), 0.9)
    assert asked == [{"deterministic": True}] * 2  # one graph for the last block, one for the others


def test_compiled_code_is_kept_where_the_next_run_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    keep_compiled()
    assert cache_dir() == str(tmp_path / "daybreak" / "compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    keep_compiled()
    assert cache_dir() == str(tmp_path / "mine")


def test_without_a_cache_folder_torch_keeps_compiled_code_where_it_does_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_compiled()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a folder of another user
    keep_compiled()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


class WithLoss(torch.nn.Module):
    """What data parallelism wraps: a module that returns the loss."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> torch.Tensor:
        return OBJECTIVE.loss(self.model, batch(16), seed=1, position=0, progress=0.9).sum


def test_a_block_is_one_graph_inside_of_data_parallelism_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch would split a graph with more than 1 MiB of parameters."""
    monkeypatch.setattr(torch._dynamo.config, "optimize_ddp", True)
    shape = ModernEncoder(layers=3, hidden_size=256, heads=2, intermediate_size=1024)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        counts = []
        for wrap in (torch.nn.Identity(), DistributedDataParallel):
            model, counter = built(shape), CompileCounterWithBackend("eager")
            compile_blocks(model, counter)
            wrap(WithLoss(model))().backward()
            counts.append(counter.frame_count)
    finally:
        dist.destroy_process_group()
    assert counts == [3, 3]


def test_a_stage_that_does_not_compile_runs_as_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decided at that step and written down: the run ends as one that never compiled."""
    objective, graphs = CausalThenMasked(causal_fraction=0.5), []
    made = training(tmp_path / "compiled", objective=objective)
    made = replace(made, decisions=replace(made.decisions, compiled=True))
    compile_blocks(made.model, breaks_after(1, graphs))
    journaled(made)
    assert made.run is not None
    (change,) = read_json(made.run.decisions, Decisions).changes
    assert (change.step, change.compiled) == (15, False) and len(graphs) == 2
    assert "could not be compiled (No space left on device)" in " ".join(capsys.readouterr().out.split())
    plain = training(tmp_path / "plain", objective=objective)
    journaled(plain)
    assert equal(made, plain)

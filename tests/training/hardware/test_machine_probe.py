"""Devices are used, refused or passed by in one sentence, and precisions are those that the device has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from daybreak.core import process
from daybreak.core.errors import UserError
from daybreak.training.hardware import probe

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages of a fresh start on a machine without an accelerator."""
    lines: list[str] = []
    monkeypatch.setattr(probe, "_say_once", probe.functools.cache(lines.append))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    return lines


def test_without_an_accelerator_the_cpu_is_chosen_in_silence(output: list[str]) -> None:
    assert probe.choose_device() == CPU
    assert output == []


def test_apples_gpu_is_passed_by_and_said_once(output: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [probe.choose_device(), probe.choose_device()] == [CPU, CPU]
    assert output == ["Daybreak does not use Apple's GPU: it trains on the CPU of this machine."]


def test_nvidia_cards_are_used_in_silence_and_amd_cards_with_a_word(
    output: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert probe.choose_device() == torch.device("cuda", 3)
    assert output == []
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert [probe.choose_device().type for _ in range(2)] == ["cuda", "cuda"]
    assert len(output) == 1 and "ROCm (6.4)" in output[0] and "never tested" in output[0]


CHOOSES = """
import torch
from daybreak.training.hardware import probe
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
print(torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled())
print(probe.choose_device(), torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled())
"""


def test_a_container_that_rounds_float32_does_not_decide_the_arithmetic() -> None:
    """NVIDIA's containers set the variable, and torch reads it when it starts."""
    environment = {**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    done = subprocess.run([sys.executable, "-c", CHOOSES], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["high True", "cuda:0 highest False"]


def test_rounding_that_torch_cannot_undo_is_refused(output: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert probe.choose_device() == CUDA
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(UserError, match="NVIDIA_TF32_OVERRIDE=1"):
        probe.choose_device()


def test_a_process_without_a_card_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="Process 3 of this host has no GPU of its own: the host has 2"):
        probe.choose_device()


def test_an_nvidia_card_that_torch_cannot_use_is_refused(
    output: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: 600.00\nmore\n")
    monkeypatch.setattr(process, "DRIVER", driver)
    for hiding in ("", "-1", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hiding)
        assert probe.choose_device() == CPU  # as the user asks
    for using in (None, "0", "0,-1"):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if using:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", using)
        with pytest.raises(UserError, match=r"NVRM version: 600\.00.*cannot use it"):
            probe.choose_device()
    driver.unlink()
    assert probe.choose_device() == CPU
    monkeypatch.setattr(process, "DRIVER_OF_WINDOWS", tmp_path)  # as under WSL, which has no file of the version
    with pytest.raises(UserError, match=r"the driver of Windows.*cannot use it"):
        probe.choose_device()


@pytest.mark.parametrize(("half", "expected"), [(50.1, ("float32", "bfloat16")), (49.9, ("float32",))])
def test_a_cpu_tries_bfloat16_unless_its_products_are_far_slower(
    monkeypatch: pytest.MonkeyPatch, half: float, expected: tuple[str, ...]
) -> None:
    monkeypatch.setattr(probe, "matmul_rates", lambda device: {"float32": 100.0, "bfloat16": half})
    assert probe.precisions(CPU) == expected


@pytest.mark.parametrize(("half", "expected"), [(100.1, "bfloat16"), (99.9, "float32")])
def test_work_that_is_not_timed_takes_the_faster_products(
    monkeypatch: pytest.MonkeyPatch, half: float, expected: str
) -> None:
    monkeypatch.setattr(probe, "matmul_rates", lambda device: {"float32": 100.0, "bfloat16": half})
    assert probe.faster_precision(CPU) == expected


@pytest.mark.parametrize(("major", "half"), [(9, "bfloat16"), (8, "bfloat16"), (7, "float16"), (6, "float16")])
def test_cards_without_bfloat16_try_float16(
    output: list[str], monkeypatch: pytest.MonkeyPatch, major: int, half: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties: Callable[[int], object] = lambda number: type("Properties", (), {"major": major})  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert probe.precisions(CUDA) == (half,)


def test_rates_are_measured_once_in_both_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SIZE", {"cpu": 32})
    products: list[torch.dtype] = []
    multiply = torch.mm

    def counting(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        products.append(left.dtype)
        return multiply(left, right)

    monkeypatch.setattr(torch, "mm", counting)
    probe.matmul_rates.cache_clear()
    torch.manual_seed(3)
    drawn = torch.rand(4)
    torch.manual_seed(3)
    rates = probe.matmul_rates(CPU)
    assert torch.equal(torch.rand(4), drawn)  # dropout of the work that asks does not depend on who asked first
    assert probe.matmul_rates(CPU) is rates
    probe.matmul_rates.cache_clear()  # those of a size of no use
    assert products == [torch.float32, torch.bfloat16] * 5
    assert list(rates) == ["float32", "bfloat16"] and all(rate > 0 for rate in rates.values())

"""A CUDA device that is not there: tensors say ``cuda:0``, the processor computes their numbers.

What a GPU refuses is refused here, tensors of two devices in one operation above all, and every wait of the processor
for the device is counted by the line that waits. Import this before torch, in a process of its own, then ``begin()``.

What it cannot show: memory, queues, several devices, generated kernels, speed and the rounding of real kernels.
"""

from __future__ import annotations

import collections
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def _load_guard() -> None:
    """Tell torch's core of the device, before torch asks for one for the first time."""
    if "torch" in sys.modules:
        raise RuntimeError("Import tests/pretended/device.py before torch.")
    found = importlib.util.find_spec("torch")
    assert found is not None and found.submodule_search_locations
    torch_folder = Path(found.submodule_search_locations[0])
    source, torch_version = HERE / "guard.cpp", importlib.metadata.version("torch")
    name = f"pretended-cuda-{os.getuid()}-{torch_version}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    library = Path(tempfile.gettempdir()) / name
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")  # other processes may compile it, too
        include = torch_folder / "include"
        subprocess.run(
            ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", str(source), "-o", str(made)]
            + [f"-I{include}", f"-I{include}/torch/csrc/api/include"]
            + [f"-L{torch_folder}/lib", "-lc10", "-ltorch_cpu"],
            check=True,
        )
        made.replace(library)
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


_load_guard()

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

DEVICE = torch.device("cuda", 0)
ATEN = torch.ops.aten
WAITS: collections.Counter[str] = collections.Counter()
"""How often the processor waited for the device, by 'what at file:line'."""
READS = {
    ATEN._local_scalar_dense, ATEN.nonzero, ATEN.equal, ATEN.is_nonzero, ATEN.masked_select, ATEN.bincount,
    ATEN._unique2, ATEN.unique_consecutive, ATEN.unique_dim, ATEN.repeat_interleave,
}  # fmt: skip
"""Operations whose result the processor must know before it goes on."""
INDEXING = {ATEN.index, ATEN.index_put, ATEN.index_put_, ATEN._unsafe_index}
COPYING = {ATEN._to_copy, ATEN.copy_}


def waited(what: str) -> None:
    WAITS[f"{what} at {place()}"] += 1


def place() -> str:
    """The innermost line of the package that is being run."""
    frames = [frame for frame in traceback.extract_stack() if "/daybreak/" in frame.filename]
    return f"{frames[-1].filename.rpartition('/daybreak/')[2]}:{frames[-1].lineno}" if frames else "outside"


class OnDevice(torch.Tensor):
    """A tensor of the device; ``host`` holds its numbers."""

    host: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            layout=host.layout, device=DEVICE,
        )  # fmt: skip
        made.host = host.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    def __repr__(self, *_: Any, **__: Any) -> str:  # type: ignore[override]
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        waited("tolist")
        return self.host.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")

    __array__ = numpy


class Device(TorchDispatchMode):
    """Sees every operation, those that make tensors on the device among them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """Do one operation on the processor, as far as a GPU would do it."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    kind = func.overloadpacket
    if not ours and wanted != "cuda":
        return func(*args, **kwargs)
    _refuse(func, tensors, ours, wanted, kwargs)
    _count(kind, args, kwargs, ours, wanted)
    host = {**tree_map(_host, kwargs), **({"device": torch.device("cpu")} if wanted else {})}
    host.pop("pin_memory", None)
    result = func(*tree_map(_host, args), **host)
    if kind is ATEN.copy_:
        return args[0]
    moved = kind is ATEN._to_copy and wanted is not None and (wanted == "cuda") != bool(ours)
    if moved and result.data_ptr() == tree_leaves(args)[0].data_ptr():
        result = result.clone()
    if wanted == "cpu":
        return result
    result = tree_map(lambda leaf: OnDevice(leaf) if type(leaf) is torch.Tensor else leaf, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if ours else result


def _host(leaf: Any) -> Any:
    return leaf.host if isinstance(leaf, OnDevice) else leaf


def _refuse(func: Any, tensors: list[Any], ours: list[Any], wanted: str | None, kwargs: Any) -> None:
    """Raise what CUDA raises. Numbers of one element may come from the processor, and indices into the device too."""
    kind = func.overloadpacket
    strange = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.dim() > 0]
    if ours and strange and kind not in COPYING and kind not in INDEXING:
        shapes = [tuple(tensor.shape) for tensor in strange]
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({func}, {shapes}, at {place()})"
        )
    if kwargs.get("generator") is not None:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _count(kind: Any, args: Any, kwargs: Any, ours: list[Any], wanted: str | None) -> None:
    """Count what the processor waits for."""
    if kind in READS and ours:
        waited(kind.__name__)
    if kind in INDEXING and ours:
        indices = [index for index in args[1] or () if isinstance(index, torch.Tensor)]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            waited("indexing by bool")
        elif any(not isinstance(index, OnDevice) for index in indices):
            waited("indices from the processor")
    if kind is ATEN._to_copy and wanted == "cpu" and ours:
        waited("copy from the device")
    ready = kwargs.get("non_blocking") and getattr(args[0], "pretended_pinned", False)
    if kind is ATEN._to_copy and wanted == "cuda" and not ours and not ready:
        waited("copy to the device")
    if kind is ATEN.copy_ and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
        waited("copy_")


class NoGrad(torch.no_grad):
    """In place of inference mode, under which no tensor of a class like ours can be made."""

    def __init__(self, mode: bool = True):
        super().__init__()


class Event:
    """An event of a queue that is always empty."""

    def __init__(self, **_: Any):
        pass

    def record(self, *_: Any) -> None:
        pass

    def elapsed_time(self, _: Event) -> float:
        return 0.0


def begin() -> None:
    """Let torch find the device from here on."""
    import safetensors.torch

    torch.__future__.set_swap_module_params_on_conversion(True)
    answer()
    Device().__enter__()
    torch.inference_mode = NoGrad  # type: ignore[misc, assignment]
    _pinned()
    for name in ("save_file", "save"):
        setattr(safetensors.torch, name, _read_first(getattr(safetensors.torch, name)))


def answer() -> None:
    """Answer what torch and others ask of the device, and no more: no tensor is kept on it."""
    torch._C._set_only_lift_cpu_tensors(True)
    cuda: Any = torch.cuda
    answers = {
        "is_available": True, "device_count": 1, "is_bf16_supported": True, "current_device": 0, "set_device": None,
        "empty_cache": None, "get_device_name": "Pretended GPU", "max_memory_allocated": 0, "_lazy_init": None,
        "manual_seed_all": None, "manual_seed": None, "set_rng_state": None, "get_rng_state": torch.zeros(16).byte(),
        "reset_peak_memory_stats": None, "memory_allocated": 0, "mem_get_info": (1 << 34, 1 << 35),
    }  # fmt: skip
    for name, value in answers.items():
        setattr(cuda, name, lambda *_, _answer=value, **__: _answer)
    cuda.synchronize = lambda *_: waited("synchronize")
    cuda.Event = Event


def _pinned() -> None:
    """Pinned memory is memory that says so.

    ``torch.tensor`` itself stays: with another in its place transformers leaves missing weights uninitialized.
    """
    tensor: Any = torch.Tensor

    def pin(self: Any, *_: Any) -> Any:
        copy = self.clone()
        copy.pretended_pinned = True
        return copy

    tensor.pin_memory = pin
    tensor.is_pinned = lambda self, *_: getattr(self, "pretended_pinned", False)


def _read_first(save: Any) -> Any:
    def saving(tensors: dict[str, Any], *more: Any, **settings: Any) -> Any:
        return save({name: _host(tensor) for name, tensor in tensors.items()}, *more, **settings)

    return saving

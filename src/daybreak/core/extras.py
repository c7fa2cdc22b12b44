"""Optional packages: the extra of each package, its purpose, and how to install it.

The name ``daybreak`` on the package index belongs to another project, so messages name the packages themselves.
"""

from __future__ import annotations

REQUIRED = (
    "torch>=2.11,<2.14",
    "numpy>=2",
    "transformers>=5,<6",
    "tokenizers>=0.22",
    "huggingface_hub>=1",
    "safetensors>=0.5",
    "scikit-learn>=1.6",
    "scipy>=1.14",
    "threadpoolctl>=3.5",
    "joblib>=1.5",
    "rich>=14.1",
    "tyro>=1.0.17,<2",
    "docstring-parser>=0.16",
    "zstandard>=0.23",
    "plotly>=6",
    "jinja2>=3.1",
    "packaging>=24",
    "psutil>=6",
    "bm25s>=0.3,<0.4",
    "nvidia-ml-py>=12",
)
"""Required packages, as in pyproject.toml."""

EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "hub": ("reads hf:// data sets and .parquet files", ("datasets>=4", "pyarrow>=18")),
    "corpus": (
        "filters web text and books, finds near duplicates, tells languages apart",
        ("datatrove>=0.10", "xxhash>=3,<4", "regex>=2024", "fasttext-numpy2-wheel>=0.9"),
    ),
    "fast": ("encodes text several times faster", ("tokie>=0.1.4,<0.2",)),
    "serve": (
        "exports to ONNX and checks embeddings",
        ("onnx>=1.19", "onnxscript>=0.5", "onnxruntime>=1.22", "sentence-transformers>=5.1"),
    ),
    "track": ("sends a run's numbers to a tracker", ("wandb>=0.31", "tensorboard>=2.20", "trackio>=0.43")),
    "demo": ("opens a page to try a run: examples/playground.py in the repository", ("gradio>=6.31,<7",)),
}
"""Purpose and requirements, as in pyproject.toml."""


def install_hint(extra: str, *packages: str) -> str:
    """The instruction that installs an extra, or only those of its requirements that start with ``packages``."""
    return f"Install what is missing: {install_command(extra, *packages)}."


def install_command(extra: str, *packages: str) -> str:
    """The command of ``install_hint``."""
    wanted = [each for each in EXTRAS[extra][1] if not packages or each.startswith(packages)]
    return f"pip install {' '.join(repr(each) for each in wanted)}"

"""Uploads to and downloads from the Hugging Face hub, only for commands that name it.

An upload contains only the files of a model or of prepared data; prepared data, which contains the text, needs an
explicit option.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Literal

from daybreak.core.errors import UserError, reason
from daybreak.core.files import read_json, refuse_link_out, write_json, write_text
from daybreak.core.run_folder import REFUSED
from daybreak.core.serialization import to_dict
from daybreak.data.tokenizers.tokenizer import FILES
from daybreak.exporting.sentence_modules import sentence_modules
from daybreak.schemas.run import Manifest

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""Files that every exported model has."""
PARENT_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "train_budget_*.json",
)
"""Files needed to continue a model, without code and pickles. The last ones say whether Daybreak trained it."""
BUDGET_FILES = tuple(f"{part}_budget_*.json" for part in ("arch", "data", "train"))
WRITTEN = {
    "model": ["README.md", "onnx/model.onnx", *BUDGET_FILES, *FILES, *sentence_modules(0, 0)],
    "dataset": ["tokenizer/*", "*.bin"],
}
"""Files of an earlier push that are removed if the new one lacks them: with them, a repository would mix two models,
or hold text that is no longer in the data."""
HUB_NAME = re.compile(r"[\w.-]*\w(/[\w.-]*\w)?", re.ASCII)
DATASET = "hf://"
"""Prefix of a data set on the hub: ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION``."""
DATASET_NAME = re.compile(rf"{DATASET}(?P<repository>[\w.-]*\w/[\w.-]*\w)(@(?P<revision>[\w./-]+))?", re.ASCII)
PINNED = {"nyu-mll/glue": "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"}
"""Default revisions of data sets; a revision in the name overrides them."""
DATA_CARD = """---
license: other
tags:
- "daybreak"
---

# Text prepared for pretraining

Token ids of {documents:,} documents, with their tokenizer. Download the folder and give it with `--data`:
`daybreak pretrain RECIPE --data FOLDER`. The ids can be decoded, so the license of the text applies.
"""


def push_to_hub(folder: Path, repository: str, *, kind: Literal["model", "dataset"], with_text: bool = False) -> str:
    """Upload an exported model or prepared data in one commit; it replaces the files of an earlier push, and removes
    those that this model or these data do not have.

    huggingface_hub finds the token (HF_TOKEN or ``hf auth login``) and the hub (HF_ENDPOINT). Other files in a model
    folder are not uploaded.

    Args:
        folder: written by ``export`` or ``prepare``.
        repository: ``owner/name``, or ``name`` for the user's own. It is created private if it does not exist, and
            refused if it is public.
        with_text: required for data, whose token ids contain the text.

    Returns:
        The address of the repository.
    """
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch)
        if kind == "model":
            _stage(folder, staged, _model_files(folder))
        else:
            _stage_data(folder, staged, with_text)
        return _upload(staged, repository, kind)


def check_repository(name: str) -> None:
    """Raise UserError if ``name`` cannot be that of a repository, before there is something to upload."""
    if not HUB_NAME.fullmatch(name):
        raise _no_name(name)


def _no_name(repository: str) -> UserError:
    return UserError(f"'{repository}' is not a name of a repository.", "Give it as OWNER/NAME.")


def local_folder(name: str) -> Path:
    """Return the folder of a model: ``name`` itself, or the local copy of that repository."""
    if Path(name).is_dir():
        return Path(name)
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"There is no model folder '{name}'.", "Check the path, or give a hub name as OWNER/NAME.")
    fault = f"There is no folder '{name}', and the hub returned no model of that name"
    remedy = "Check the name and the network; a private model needs `hf auth login`."
    folder = _snapshot(name, fault, remedy, allow_patterns=list(PARENT_FILES))
    if (folder / "tokenizer.json").is_file():
        return folder
    return _snapshot(name, fault, remedy, allow_patterns=[*PARENT_FILES, "vocab.txt"])  # a BERT of the first releases


def dataset_folder(name: str, patterns: list[str]) -> Path:
    """Return the local copy of a data set with the files that match ``patterns``.

    Args:
        name: ``hf://OWNER/NAME``, optionally with ``@REVISION`` (a commit, tag or branch).
        patterns: paths in the repository, with * as a wildcard; patterns without a match are ignored.
    """
    parts = DATASET_NAME.fullmatch(name)
    if not parts:
        raise UserError(
            f"'{name}' is not a name of a data set.", "Give it as hf://OWNER/NAME or hf://OWNER/NAME@REVISION."
        )
    repository = parts["repository"]
    return _snapshot(
        repository,
        f"The hub did not return the data set '{name}'",
        "Check the name and the network, or download it and give the folder.",
        repo_type="dataset",
        revision=parts["revision"] or PINNED.get(repository),
        allow_patterns=patterns,
    )


def _snapshot(repository: str, fault: str, remedy: str, **options: Any) -> Path:
    """The local copy of a repository; ``fault`` and ``remedy`` are for the UserError of a failed download."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    try:
        return Path(HfApi().snapshot_download(repository, **options))
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{fault} ({reason(error)}).", remedy) from None


def _model_files(folder: Path) -> list[str]:
    if (folder / REFUSED).exists():
        raise UserError(
            f"The model in '{folder}' failed its parity check, so it is not pushed.",
            f"Read {REFUSED} there and export the model again.",
        )
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"'{folder}' is not an exported model: it has no {missing[0]}.", "Export one with daybreak export."
        )
    modules = _code_files(folder)
    budget = {path.name for pattern in BUDGET_FILES for path in folder.glob(pattern)}
    sentences = sentence_modules(0, 0)  # only their names
    known = sorted({"README.md", "onnx/model.onnx", *FILES, *modules, *sentences, *budget}.difference(MODEL_FILES))
    return [*MODEL_FILES, *(name for name in known if (folder / name).is_file())]


def _code_files(folder: Path) -> set[str]:
    """Return the names of the Python files that the classes in config.json need, those they import included.

    Raises:
        UserError: one of them is missing.
    """
    from transformers.dynamic_module_utils import get_relative_import_files

    classes = read_json(folder / "config.json").get("auto_map", {}).values()
    modules = {f"{place.split('.')[0]}.py" for place in classes}
    try:
        imported = {Path(file).name for module in modules for file in get_relative_import_files(folder / module)}
    except FileNotFoundError as error:
        raise UserError(
            f"There is no '{Path(error.filename).name}' in '{folder}'.", "Export the model again."
        ) from None
    return modules | imported


def _stage_data(folder: Path, staged: Path, with_text: bool) -> None:
    """Stage the files of the manifest, and the manifest without local paths."""
    from daybreak.exporting.budget_files import bare  # imports torch

    if not (folder / "manifest.json").is_file():
        raise UserError(f"'{folder}' has no prepared data.", "Prepare it with daybreak prepare, or check the path.")
    if not with_text:
        raise UserError(
            f"The prepared data in '{folder}' contains the text: its token ids can be decoded.",
            "Add --with-text if the text may leave this machine.",
        )
    manifest: Manifest = read_json(folder / "manifest.json", Manifest)
    blocks = [manifest.unigram_counts]
    for split in (manifest.train, manifest.heldout):
        blocks += [*split.token_files, split.document_ends, *([split.sentence_ends] if split.sentence_ends else [])]
    needed = [name for name in FILES if name == "tokenizer.json" or (folder / "tokenizer" / name).is_file()]
    _stage(folder, staged, [*(f"tokenizer/{name}" for name in needed), *(block.name for block in blocks)])
    # One fingerprint depends on local paths and times, and the others would tell who has the same text.
    manifest = replace(manifest, inputs_fingerprint="", settings_fingerprint="", content_fingerprint="")
    plain = to_dict(manifest)
    write_json(staged / "manifest.json", {**plain, "sources": bare(plain["sources"])})
    write_text(staged / "README.md", DATA_CARD.format(documents=manifest.train.documents + manifest.heldout.documents))


def _stage(folder: Path, staged: Path, names: list[str]) -> None:
    """Link the named files into an empty folder, so that no other file can be uploaded."""
    for name in names:
        if not (folder / name).is_file() or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise UserError(f"There is no '{name}' in '{folder}'.", "Restore the folder, or create it again.")
        refuse_link_out(folder, folder / name)
        (staged / name).parent.mkdir(exist_ok=True)
        os.symlink((folder / name).resolve(), staged / name)


def _upload(staged: Path, repository: str, kind: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    api = HfApi()
    try:
        created = api.create_repo(repository, repo_type=kind, private=True, exist_ok=True)
        if not api.repo_info(created.repo_id, repo_type=kind).private:
            raise UserError(
                f"'{created.repo_id}' is public, but Daybreak uploads only to private repositories.",
                "Choose another name, or make the repository private.",
            )
        api.upload_folder(
            repo_id=created.repo_id,
            folder_path=staged,
            repo_type=kind,
            commit_message=f"Upload {kind} with Daybreak",
            delete_patterns=WRITTEN[kind],
        )
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise _push_error(error, repository, kind) from None
    return str(created)


def _push_error(error: Exception, repository: str, kind: str) -> UserError:
    """The error for a failed upload."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, HFValidationError):
        return _no_name(repository)
    if isinstance(error, LocalTokenNotFoundError) or status in (401, 403, 404):
        return UserError(
            f"This user may not write to '{repository}' ({reason(error)}).",
            "Log in with `hf auth login`, or set HF_TOKEN to a token with write access.",
        )
    # daybreak export refuses the folder of before; daybreak prepare finds its data ready.
    again = "export again with another --out" if kind == "model" else "repeat the command"
    return UserError(f"Pushing to '{repository}' failed ({reason(error)}).", f"Check the network, then {again}.")

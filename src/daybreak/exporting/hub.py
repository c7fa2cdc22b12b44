"""The Hugging Face hub, which is asked only when a command names it.

Models and prepared data go there with exactly the files that belong there, and text only when told to; a model to be
continued may come from there.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path, PurePath
from typing import Literal

from daybreak.core.errors import UserError, reason
from daybreak.core.files import read_json, write_json, write_text
from daybreak.core.serialization import to_dict
from daybreak.data.tokenizers.tokenizer import FILES
from daybreak.exporting.sentence_modules import sentence_modules
from daybreak.schemas.run import Manifest

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""Without these a folder is no exported model."""
PARENT_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "special_tokens_map.json",
)
"""What continuing a model needs of it; no code, no pickle."""
HUB_NAME = re.compile(r"[\w.-]*\w(/[\w.-]*\w)?", re.ASCII)
DATASET = "hf://"
"""What the name of a data set on the hub begins with: ``hf://OWNER/NAME``, or ``hf://OWNER/NAME@REVISION``."""
DATASET_NAME = re.compile(rf"{DATASET}(?P<repository>[\w.-]*\w/[\w.-]*\w)(@(?P<revision>[\w./-]+))?", re.ASCII)
PINNED = {"nyu-mll/glue": "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"}
"""Data sets whose files are known as they were in one commit; a revision in the name overrides it."""
DATA_CARD = """---
license: other
tags:
- "daybreak"
---

# Text prepared for pretraining

Token ids of {documents:,} documents, with their tokenizer. Download the folder and name it with `--data`:
`daybreak pretrain RECIPE --data FOLDER`. The ids turn back into the text, so the licence is that of the text.
"""


def push_to_hub(
    folder: Path, repository: str, *, kind: Literal["model", "dataset"], private: bool = True, with_text: bool = False
) -> str:
    """Upload an exported model, or prepared data, in one go; an older push there is replaced file by file.

    The token is the one that the hub's own library finds: HF_TOKEN, or that of ``hf auth login``. HF_ENDPOINT names
    another hub. A model's folder gives only what a model is made of, whatever else lies in it.

    Args:
        folder: what ``export`` or ``prepare`` wrote.
        repository: ``owner/name``, or ``name`` for one's own; made when it is not there.
        private: make it visible to its owner only, and refuse one that is public already.
        with_text: needed for data, whose token ids are the corpus.

    Returns:
        The address of the repository.

    Raises:
        UserError: the folder is not what it should be, was refused by the parity gate, or the hub said no.
    """
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch)
        if kind == "model":
            _stage(folder, staged, _model_files(folder))
        else:
            _stage_data(folder, staged, with_text)
        return _upload(staged, repository, kind, private)


def local_folder(name: str) -> Path:
    """Return the folder of a model: ``name`` itself, or where the hub's library keeps its copy of that repository.

    Raises:
        UserError: there is neither such a folder nor such a repository, or the hub cannot be reached.
    """
    if Path(name).is_dir():
        return Path(name)
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"There is no model folder '{name}'.", "Check the path, or give a hub name as OWNER/NAME.")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    try:
        return Path(HfApi().snapshot_download(name, allow_patterns=list(PARENT_FILES)))
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"There is no folder '{name}', and the hub did not give a model of that name ({reason(error)}).",
            "Check the name and the network; a model that is not public needs `hf auth login`.",
        ) from None


def dataset_folder(name: str, patterns: list[str]) -> Path:
    """Return where the hub's library keeps its copy of a data set, with the files that ``patterns`` name.

    Args:
        name: ``hf://OWNER/NAME``, with ``@REVISION`` (a commit, tag or branch) if wanted.
        patterns: paths in the repository, with * for anything; what matches nothing is passed over.

    Raises:
        UserError: that is no such name, there is no such data set or revision, or the hub cannot be reached.
    """
    parts = DATASET_NAME.fullmatch(name)
    if not parts:
        raise UserError(
            f"'{name}' is no name of a data set.", "Give it as hf://OWNER/NAME or hf://OWNER/NAME@REVISION."
        )
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    repository = parts["repository"]
    revision = parts["revision"] or PINNED.get(repository)
    try:
        found = HfApi().snapshot_download(repository, repo_type="dataset", revision=revision, allow_patterns=patterns)
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"The hub did not give the data set '{name}' ({reason(error)}).",
            "Check the name and the network, or download it elsewhere and name the folder.",
        ) from None
    return Path(found)


def _model_files(folder: Path) -> list[str]:
    from daybreak.exporting.parity import REFUSED  # imports torch, which a name alone does not need

    if (folder / REFUSED).exists():
        raise UserError(
            f"The model in '{folder}' was refused by its parity gate, so it is not pushed.",
            f"Read {REFUSED} there, and export it again.",
        )
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        raise UserError(f"'{folder}' is no exported model: it holds no {missing[0]}.", "Make one with daybreak export.")
    code = read_json(folder / "config.json").get("auto_map", {}).values()
    modules = {f"{place.split('.')[0]}.py" for place in code}
    budget = {path.name for part in ("arch", "data", "train") for path in folder.glob(f"{part}_budget_*.json")}
    sentences = sentence_modules(0, 0)  # their names alone
    known = sorted({"README.md", "onnx/model.onnx", *FILES, *modules, *sentences, *budget}.difference(MODEL_FILES))
    return [*MODEL_FILES, *(name for name in known if (folder / name).is_file())]


def _stage_data(folder: Path, staged: Path, with_text: bool) -> None:
    """Lay out the files that the manifest names; it itself goes without paths of this machine."""
    from daybreak.exporting.budget_files import bare  # likewise

    if not (folder / "manifest.json").is_file():
        raise UserError(f"'{folder}' holds no prepared data.", "Make it with daybreak prepare, or check the path.")
    if not with_text:
        raise UserError(
            f"The prepared data in '{folder}' is the corpus itself: its token ids turn back into the text.",
            "Add --with-text if that text may leave this machine.",
        )
    manifest: Manifest = read_json(folder / "manifest.json", Manifest)
    blocks = [manifest.unigram_counts]
    for split in (manifest.train, manifest.heldout):
        blocks += [*split.token_files, split.document_ends, *([split.sentence_ends] if split.sentence_ends else [])]
    needed = [name for name in FILES if name == "tokenizer.json" or (folder / "tokenizer" / name).is_file()]
    _stage(folder, staged, [*(f"tokenizer/{name}" for name in needed), *(block.name for block in blocks)])
    plain = to_dict(manifest)
    # The fingerprint is that of paths and times on this machine.
    write_json(staged / "manifest.json", {**plain, "sources": bare(plain["sources"]), "inputs_fingerprint": ""})
    write_text(staged / "README.md", DATA_CARD.format(documents=manifest.train.documents + manifest.heldout.documents))


def _stage(folder: Path, staged: Path, names: list[str]) -> None:
    """Link the named files into an empty folder: what is not named cannot be uploaded."""
    for name in names:
        if not (folder / name).is_file() or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise UserError(f"There is no '{name}' in '{folder}'.", "Restore the folder, or make it again.")
        (staged / name).parent.mkdir(exist_ok=True)
        os.symlink((folder / name).resolve(), staged / name)


def _upload(staged: Path, repository: str, kind: str, private: bool) -> str:
    # Here: loading the library costs time that no other command should pay.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    api = HfApi()
    try:
        made = api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        if private and not api.repo_info(made.repo_id, repo_type=kind).private:
            raise UserError(
                f"'{made.repo_id}' is there already and public, and this push was to be private.",
                "Choose another name, make that repository private, or push publicly.",
            )
        api.upload_folder(
            repo_id=made.repo_id, folder_path=staged, repo_type=kind, commit_message=f"Upload {kind} with Daybreak"
        )
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise _told(error, repository) from None
    return str(made)


def _told(error: Exception, repository: str) -> UserError:
    """One sentence for whatever went wrong between here and the hub."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, HFValidationError):
        return UserError(f"'{repository}' is no name for a repository.", "Give it as OWNER/NAME.")
    if isinstance(error, LocalTokenNotFoundError) or status in (401, 403, 404):
        return UserError(
            f"The hub does not let this user write to '{repository}' ({reason(error)}).",
            "Log in with `hf auth login`, or set HF_TOKEN to a token that may write there.",
        )
    return UserError(
        f"Pushing to '{repository}' failed ({reason(error)}).", "Check the network, then give the same command again."
    )

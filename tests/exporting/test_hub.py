"""Pushing to a hub that lives in a thread and speaks as much of the protocol as a push needs."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import REFUSED
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.exporting.budget_files import trained_from_scratch
from daybreak.exporting.hub import MODEL_FILES, PINNED, dataset_folder, local_folder, push_to_hub
from daybreak.models.crammed import AUTO_MAP, MODELLING_FILES
from daybreak.models.importing import read_weights
from daybreak.schemas.run import Manifest


class Hub(ThreadingHTTPServer):
    """Repositories in memory. Large files are asked for like small ones, so that no second store is needed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories: dict[str, bool] = {}
        """type/owner/name -> private."""
        self.files: dict[str, bytes] = {}
        """type/owner/name/path -> content."""
        self.strange: list[str] = []
        self.asked: list[str] = []
        """Paths that were read."""
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def names(self, repository: str) -> list[str]:
        return sorted(name.removeprefix(f"{repository}/") for name in self.files)


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def say(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.give()

    def give(self) -> None:
        """A file of a repository, as the library downloads it."""
        kind = "dataset" if self.path.startswith("/datasets/") else "model"
        owner, name, _, revision, file = self.path.split("?")[0].removeprefix("/datasets").split("/", 5)[1:]
        content = self.server.files.get(f"{kind}/{owner}/{name}/{file}")
        if content is None:
            return self.say({"error": "Entry not found"}, 404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", revision if len(revision) == 40 else "0" * 40)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if "/resolve/" in self.path:
            return self.give()
        _, _, plural, owner, name, *_ = [*self.path.split("?")[0].split("/"), "", "", ""]
        key = f"{plural.removesuffix('s')}/{owner}/{name}"
        if key not in self.server.repositories:
            return self.say({"error": "Repository not found"}, 404)
        if "/tree/" in self.path:
            return self.say([{"type": "file", "path": f, "size": 1, "oid": "0"} for f in self.server.names(key)])
        return self.say(
            {
                "id": f"{owner}/{name}",
                "private": self.server.repositories[key],
                "sha": "0" * 40,
                "siblings": [{"rfilename": file} for file in self.server.names(key)],
            }
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.split("?")[0]
        if self.headers.get("Authorization") != "Bearer hf_fake":
            return self.say({"error": "Invalid username or password."}, 401)
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return self.say({"errors": [], "warnings": []})
        _, _, plural, owner, name, verb, *_ = path.split("/")
        if verb == "preupload":
            files = [file["path"] for file in json.loads(body)["files"]]
            known = [{"path": file, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for file in files]
            return self.say({"files": known})
        if verb == "commit":
            for line in body.splitlines():
                found = json.loads(line)
                if found["key"] == "file":
                    place = f"{plural.removesuffix('s')}/{owner}/{name}/{found['value']['path']}"
                    self.server.files[place] = base64.b64decode(found["value"]["content"])
                if found["key"] == "deletedFile":
                    del self.server.files[f"{plural.removesuffix('s')}/{owner}/{name}/{found['value']['path']}"]
            url = f"{self.server.address}/{owner}/{name}/commit/{'1' * 40}"
            return self.say({"commitUrl": url, "commitOid": "1" * 40, "success": True})
        self.server.strange.append(path)
        return self.say({"error": "unknown"}, 400)

    def create(self, asked: dict[str, str]) -> None:
        owner = asked.get("organization") or "me"
        if owner == "others":
            return self.say({"error": "You don't have the rights to create a model there"}, 403)
        key = f"{asked.get('type', 'model')}/{owner}/{asked['name']}"
        there = key in self.server.repositories
        self.server.repositories.setdefault(key, asked.get("visibility") == "private")
        prefix = "datasets/" if asked.get("type") == "dataset" else ""
        return self.say({"url": f"{self.server.address}/{prefix}{owner}/{asked['name']}"}, 409 if there else 200)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    # HF_ENDPOINT is read when the library is first imported, which an earlier test may have done.
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    files = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setenv("HF_TOKEN", "hf_fake")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
    assert server.strange == []


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as the export leaves it, with much in it that is nobody's business."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (*MODEL_FILES, "vocab.txt", "modelling_ours.py", "arch_budget_hours_24.json", "README.md", "stray.py"):
        (folder / name).write_text(f"this is {name}\n")
    write_json(folder / "config.json", {"auto_map": {"AutoModelForMaskedLM": "modelling_ours.Ours"}})
    (folder / "examples.json").write_text("the secret sentence")
    (folder / ".notes").write_text("the secret sentence")
    return folder


def test_a_model_goes_up_with_its_files_and_no_others(hub: Hub, model: Path) -> None:
    address = push_to_hub(model, "me/encoder", kind="model")
    wanted = sorted([*MODEL_FILES, "vocab.txt", "modelling_ours.py", "arch_budget_hours_24.json", "README.md"])
    assert hub.names("model/me/encoder") == wanted
    assert address == f"{hub.address}/me/encoder" and hub.repositories == {"model/me/encoder": True}
    assert all(hub.files[f"model/me/encoder/{name}"] == (model / name).read_bytes() for name in wanted)
    (model / "README.md").write_text("a better card\n")
    push_to_hub(model, "me/encoder", kind="model")
    assert hub.files["model/me/encoder/README.md"] == b"a better card\n"


def test_the_code_of_a_crammed_model_goes_up_with_all_that_it_imports(hub: Hub, model: Path) -> None:
    code = MODELLING_FILES
    assert len(code) > 1
    write_json(model / "config.json", {"auto_map": AUTO_MAP})
    for name, source in code.items():
        shutil.copyfile(source, model / name)
    push_to_hub(model, "me/encoder", kind="model")
    assert set(code) <= set(hub.names("model/me/encoder"))
    (model / "layers.py").unlink()
    with pytest.raises(UserError, match=r"There is no 'layers\.py'"):
        push_to_hub(model, "me/encoder", kind="model")


def test_what_an_earlier_push_left_goes_if_the_new_one_lacks_it(hub: Hub, model: Path, data: Path) -> None:
    """Or the ONNX of the earlier model would stand beside the weights of the new one."""
    (model / "onnx").mkdir()
    (model / "onnx/model.onnx").touch()
    push_to_hub(model, "me/encoder", kind="model")
    before = hub.names("model/me/encoder")
    hub.files["model/me/encoder/LICENSE"] = b"of the user"
    (model / "onnx/model.onnx").unlink()
    (model / "vocab.txt").unlink()
    (model / "README.md").unlink()  # the export of an unfinished run has no card
    (model / "arch_budget_hours_24.json").rename(model / "arch_budget_hours_48.json")
    push_to_hub(model, "me/encoder", kind="model")
    gone = {"README.md", "onnx/model.onnx", "vocab.txt", "arch_budget_hours_24.json"}
    assert set(hub.names("model/me/encoder")) == {*before, "LICENSE", "arch_budget_hours_48.json"} - gone
    push_to_hub(data, "me/text", kind="dataset", with_text=True)
    names = hub.names("dataset/me/text")
    hub.files["dataset/me/text/train-00009.tokens.bin"] = b"text of before"
    push_to_hub(data, "me/text", kind="dataset", with_text=True)
    assert hub.names("dataset/me/text") == names


def test_a_link_out_of_the_folder_does_not_go_up(hub: Hub, model: Path, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("a private key")
    (model / "README.md").unlink()
    (model / "README.md").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(UserError, match="is a link that leads out of"):
        push_to_hub(model, "me/encoder", kind="model")
    assert hub.files == {}
    (model / "README.md").unlink()
    (model / "README.md").symlink_to("vocab.txt")  # within the folder
    push_to_hub(model, "me/encoder", kind="model")
    assert hub.files["model/me/encoder/README.md"] == (model / "vocab.txt").read_bytes()


def test_a_trained_model_carries_no_held_out_sentence(hub: Hub, finished: Path, data: Path) -> None:
    push_to_hub(finished / "model", "encoder", kind="model")
    names = hub.names("model/me/encoder")
    model = finished / "model"
    own = sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file())
    assert names == own and "examples.json" not in names and hub.repositories["model/me/encoder"]
    examples = read_json(finished / "examples.json")
    assert examples
    for name in names:
        content = hub.files[f"model/me/encoder/{name}"].decode("utf-8", "ignore")
        assert not any(part.strip() in content for found in examples for part in found["text"].split("[MASK]") if part)
    assert open_shards(data).manifest.sources[0].path not in str(hub.files)


def test_a_refused_or_half_model_stays_here(hub: Hub, model: Path) -> None:
    (model / REFUSED).touch()
    with pytest.raises(UserError, match="failed its parity check"):
        push_to_hub(model, "me/encoder", kind="model")
    (model / REFUSED).unlink()
    (model / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        push_to_hub(model, "me/encoder", kind="model")
    assert hub.repositories == {}


def test_data_goes_up_only_on_request(hub: Hub, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains the text") as refused:
        push_to_hub(data, "me/text", kind="dataset")
    assert "--with-text" in refused.value.remedy and hub.repositories == {}
    data = Path(shutil.copytree(data, tmp_path / "data"))
    (data / "tokenizer/tokenizer_config.json").rename(data / "tokenizer/vocab.txt")  # as of one that was taken over
    push_to_hub(data, "me/text", kind="dataset", with_text=True)
    assert hub.repositories == {"dataset/me/text": True}
    there = tmp_path / "there"
    for name in hub.names("dataset/me/text"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(hub.files[f"dataset/me/text/{name}"])
    ours, theirs = open_shards(data), open_shards(there)
    assert (ours.heldout.read(0, 500) == theirs.heldout.read(0, 500)).all()
    assert theirs.manifest.train == ours.manifest.train and (there / "tokenizer/vocab.txt").exists()
    manifest, published = read_json(data / "manifest.json", Manifest), (there / "manifest.json").read_text()
    assert str(Path(manifest.sources[0].path).parent) not in published
    for private in (manifest.inputs_fingerprint, manifest.settings_fingerprint, manifest.content_fingerprint):
        assert private and private not in published


def test_a_public_repository_is_not_pushed_to_privately(hub: Hub, model: Path) -> None:
    hub.repositories["model/me/encoder"] = False
    with pytest.raises(UserError, match="public"):
        push_to_hub(model, "me/encoder", kind="model")
    assert hub.files == {}


def test_what_the_hub_refuses_is_one_sentence(hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for repository, said in (("others/encoder", "may not write to"), ("a//b c", "is not a name of a repository")):
        with pytest.raises(UserError, match=said) as refused:
            push_to_hub(model, repository, kind="model")
        assert "\n" not in str(refused.value)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="may not write to") as refused:
        push_to_hub(model, "me/encoder", kind="model")
    assert "HF_TOKEN" in refused.value.remedy and "hf_wrong" not in str(refused.value)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="failed") as refused:
        push_to_hub(model, "me/encoder", kind="model")
    assert "\n" not in str(refused.value) and "network" in refused.value.remedy
    assert "another --out" in refused.value.remedy, "the export is there, and export refuses its folder"


def test_a_model_to_continue_comes_from_the_hub_without_its_code(
    hub: Hub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    training = "train_budget_hours_24.json"
    (model / training).write_text('{"origin": {"init": ""}}')
    push_to_hub(model, "owner/parent", kind="model")
    found, names = local_folder("owner/parent"), [*MODEL_FILES, training]
    assert sorted(path.name for path in found.iterdir()) == sorted(names)
    assert all((found / name).read_bytes() == (model / name).read_bytes() for name in names)
    assert trained_from_scratch(found)
    assert local_folder(str(model)) == model


def test_a_tokenizer_of_the_first_releases_comes_from_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as SciBERT's, which is a vocab.txt alone."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    hub.repositories["model/owner/early"] = False
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cell", "##s"]
    files = {"vocab.txt": "\n".join(tokens).encode(), "config.json": b"{}", "pytorch_model.bin": b"a pickle"}
    hub.files |= {f"model/owner/early/{name}": content for name, content in files.items()}
    folder = local_folder("owner/early")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "vocab.txt"]
    made = Existing(folder=str(folder)).make([], tmp_path / "tokenizer")
    assert made.encode("cells", add_special_tokens=False).tokens == tokens[-2:]
    with pytest.raises(UserError, match=r"holds no model.safetensors\. .*pytorch_model.bin, a pickle, are not read"):
        read_weights(folder)


def test_a_model_that_is_nowhere_is_one_sentence(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name, said in (("owner/unknown", "the hub returned no"), ("./owner/unknown", "no model folder")):
        with pytest.raises(UserError, match=said) as refused:
            local_folder(name)
        assert "\n" not in str(refused.value)


def test_a_data_set_comes_in_its_pinned_revision_with_the_named_files_only(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    files = {f"{task}/{split}-00000-of-00001.parquet": b"rows" for task in ("rte", "ax") for split in ("train", "test")}
    for repository in ("nyu-mll/glue", "me/other"):
        hub.repositories[f"dataset/{repository}"] = False
        hub.files |= {f"dataset/{repository}/{file}": content for file, content in files.items()}
    found = dataset_folder("hf://nyu-mll/glue", ["rte/train.parquet", "rte/train-*.parquet", "RTE/train.tsv"])
    assert [path.name for path in found.rglob("*.*")] == ["train-00000-of-00001.parquet"]
    assert next(found.rglob("*.parquet")).read_bytes() == b"rows"
    asked = [path for path in hub.asked if "/datasets/" in path]  # the library may ask for a list of its own first
    assert asked and all(f"/{PINNED['nyu-mll/glue']}" in path for path in asked)
    for name, revision in (("nyu-mll/glue@v2/x", "v2%2Fx"), ("me/other", "main"), ("me/other@old", "old")):
        hub.asked.clear()
        dataset_folder(f"hf://{name}", ["ax/*"])
        assert hub.asked[0].split("?")[0] == f"/api/datasets/{name.split('@')[0]}/revision/{revision}"


def test_a_data_set_that_is_nowhere_is_one_sentence(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    said = {"hf://owner/unknown": "did not return", "hf://glue": "not a name of a data set", "hf://a/b@": "not a name"}
    for name, fault in said.items():
        with pytest.raises(UserError, match=fault) as refused:
            dataset_folder(name, ["rte/*"])
        assert "\n" not in str(refused.value) and name in refused.value.sentence
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="did not return"):
        dataset_folder("hf://owner/unknown", ["rte/*"])

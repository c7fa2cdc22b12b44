"""The page of examples/playground.py: its numbers against stock transformers, and its buttons in a browser."""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from browser_session import CHROMIUM, Browser
from needs import needs
from rendezvous import free_port
from small_models import copied_code
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

import daybreak
from daybreak.core.errors import UserError
from daybreak.exporting.hugging_face import write_model_folder
from daybreak.models.crammed import CrammedEncoder

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "playground.py"
MASKED = "the old sailor [MASK] to the harbour."


@pytest.fixture(scope="module")
def run(finished: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played") / "run"
    shutil.copytree(finished, folder)
    shutil.copytree(data, folder / "data")
    return folder


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="playground"))


@pytest.fixture(scope="module")
def playground(script: SimpleNamespace, run: Path) -> Any:
    return script.Playground(run)


def log_probabilities(run: Path, ids: list[int]) -> torch.Tensor:
    """Of all tokens at the only mask of ``MASKED``, whose position does not change when other words are masked."""
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    position = tokenizer(MASKED)["input_ids"].index(tokenizer.mask_token_id)
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(run / "model").eval()(torch.tensor([ids])).logits
    return logits[0, position].log_softmax(-1)


def test_the_predictions_are_those_of_the_model(playground: Any, run: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    best = log_probabilities(run, tokenizer(MASKED)["input_ids"]).exp().topk(5)
    rows = playground.fill_mask(MASKED)
    assert [row[0] for row in rows] == [tokenizer.decode([id]).strip() for id in best.indices.tolist()]
    assert [row[1] for row in rows] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_model_of_the_crammed_family_gives_the_predictions_of_its_export(
    script: SimpleNamespace, run: Path, tmp_path: Path
) -> None:
    """Stock transformers loads it only with the code in its folder, which the playground does not run."""
    folder, shape = tmp_path / "run" / "model", CrammedEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=32)
    torch.manual_seed(0)
    model = shape.build(AutoTokenizer.from_pretrained(run / "model").vocab_size)
    write_model_folder(folder, model=model, shape=shape, tokenizer=run / "model", length=64)
    crammed = script.Playground(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    encoded = tokenizer(MASKED, return_tensors="pt")
    with copied_code(tmp_path / "code"), torch.no_grad():
        stock = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
        logits = stock(**encoded).logits[0, (encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()]
    best = logits.softmax(-1).topk(5)
    rows = crammed.fill_mask(MASKED)
    assert [row[0] for row in rows] == [tokenizer.decode([id]).strip() for id in best.indices.tolist()]
    assert [row[1] for row in rows] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert len(crammed.dependence(MASKED)[2]) == 7 and len(crammed.similar("the old sailor", "a harbour")) == 1


def test_a_model_that_does_not_load_is_one_sentence(script: SimpleNamespace, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-20])
    with pytest.raises(UserError, match="transformers cannot load the model"):
        script.Playground(tmp_path)


def test_a_change_is_that_of_masking_the_word_alone(playground: Any, run: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    encoded = tokenizer(MASKED, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    full = log_probabilities(run, ids)
    expected = {}
    for word in ("old", "sailor", "to", "harbour", "."):
        start = MASKED.index(word)
        inside = [start <= first < last <= start + len(word) for first, last in offsets]
        masked = [tokenizer.mask_token_id if covered else id for id, covered in zip(ids, inside)]
        expected[word] = (log_probabilities(run, masked) - full)[full.argmax()].item()
    prediction, parts, rows = playground.dependence(MASKED)
    assert prediction.startswith(tokenizer.decode([int(full.argmax())]).strip())
    found = {word: change for word, change in rows if word != "the"}
    assert found == pytest.approx(expected, abs=1e-3) and len(rows) == 7
    assert [change for _, change in rows] == sorted(change for _, change in rows)
    assert "".join(part for part, _ in parts) == MASKED
    needs = dict(parts)
    assert all((needs[word] > 0) == (change < 0) for word, change in expected.items())
    assert max(abs(value) for _, value in parts if value is not None) == pytest.approx(1.0)


def test_similarities_are_those_of_mean_pooling(playground: Any, run: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(run / "model"), AutoModel.from_pretrained(run / "model").eval()
    texts = ["the old sailor", "a harbour far away", "the sailor was old and slept"]
    with torch.no_grad():
        means = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    cosines = [torch.cosine_similarity(means[0], other, 0).item() for other in means[1:]]
    rows = playground.similar(texts[0], "\n".join([texts[1], "", texts[2]]))
    assert {row[1]: row[0] for row in rows} == pytest.approx(dict(zip(texts[1:], cosines)), abs=1e-3)
    assert rows[0][0] >= rows[1][0]


def test_search_is_that_of_the_library(playground: Any, run: Path) -> None:
    results = daybreak.search(run, "the old sailor", top=5, method="bm25")
    assert [row[2] for row in playground.search("the old sailor", "bm25")] == [result.text for result in results]


def test_the_data_of_a_run_may_lie_elsewhere(script: SimpleNamespace, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("data", "search"))
    elsewhere = script.Playground(tmp_path / "run", run / "data")
    results = daybreak.search(run, "the old sailor", top=5, method="bm25")
    assert [row[2] for row in elsewhere.search("the old sailor", "bm25")] == [result.text for result in results]


@pytest.mark.parametrize("text", ["no mask here", "[MASK] and [MASK]", f"{'word ' * 200}[MASK]"])
def test_a_text_needs_one_mask_that_the_model_reads(text: str, playground: Any) -> None:
    for answer in (playground.fill_mask, playground.dependence):
        with pytest.raises(UserError, match=r"needs \[MASK\] exactly once in its first"):
            answer(text)


def test_the_example_has_the_mask_of_the_model(script: SimpleNamespace, run: Path, tmp_path: Path) -> None:
    assert script.example_of(run, "[MASK]").count("[MASK]") == 1
    assert script.example_of(run, "<mask>") == script.example_of(run, "[MASK]").replace("[MASK]", "<mask>")
    assert script.example_of(tmp_path, "<mask>").count("<mask>") == 1


def started(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **more}, check=False)


def test_a_folder_without_a_model_is_refused_in_one_line(tmp_path: Path) -> None:
    done = started(tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"There is no model in '{tmp_path / 'model'}'.")


def test_without_gradio_one_line_says_how_to_install_it(run: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['gradio'] = None\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = started(run, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "The playground needs Gradio. Install it: pip install -c constraints.txt -e '.[demo]'.\n"


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def address(run: Path, tmp_path: Path) -> Iterator[str]:
    """Where a playground of the run answers."""
    port = free_port()
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        command = [sys.executable, str(SCRIPT), str(run), "--port", str(port), "--threads", "1"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    end = time.monotonic() + 120
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@needs("the extra demo: gradio", "gradio")
def test_every_button_answers_and_nothing_comes_from_elsewhere(address: str, run: Path, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile", size=(1280, 3000)) as browser:
        browser.open(address)
        browser.wait_for("document.querySelector('#fill') !== null")
        write = """(() => {
            const box = document.querySelector('#dependence-text textarea, #dependence-text input');
            box.value = 'the [MASK] slept long';
            box.dispatchEvent(new Event('input', {bubbles: true}));
        })()"""
        browser.run(write)
        for button in ("fill", "dependence", "similar", "search"):
            browser.run(f"document.querySelector('#{button}').click()")
        number = "(table) => /[0-9]/.test(table.textContent)"
        browser.wait_for(f"Array.from(document.querySelectorAll('table')).filter({number}).length >= 4")
        page = browser.run("document.body.textContent")
        (result, *_) = daybreak.search(run, "open a file", top=1)
        assert result.text in page and "slept" in page
        loaded = "performance.getEntriesByType('resource').map((entry) => entry.name)"
        names = browser.run(loaded)
        assert names and all(name.startswith((address, "data:", "blob:")) for name in names)

"""The protocols small and distilled: heads by hand, soft targets, half precision, used embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_models import copied_code
from small_tasks import evaluation_of, quiet
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from daybreak.commands.evaluate import evaluate
from daybreak.commands.run import FineTuning
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.evaluation.baselines.bag_of_words import bag_of_words, held_out_predictions
from daybreak.evaluation.finetuning import fast_training, finetune, jobs
from daybreak.evaluation.finetuning.classifier import build_classifier, load_tokenizer
from daybreak.evaluation.finetuning.fast_training import WorkingCopy
from daybreak.evaluation.finetuning.finetune import Batches, fine_tune
from daybreak.evaluation.finetuning.fingerprints import fingerprint
from daybreak.evaluation.finetuning.heads import PooledClassifier
from daybreak.evaluation.finetuning.jobs import encode_task, initial_model, run_job, training_subset
from daybreak.evaluation.finetuning.target_units import standardized
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.kinds import KINDS, load_task, task_type
from daybreak.evaluation.tasks.known_tasks import GLUE
from daybreak.evaluation.tasks.sequences import with_segments
from daybreak.evaluation.tasks.task import LabeledRows
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.schemas.tasks import FinetuningRun

WriteTask = Callable[..., Path]
SMALL, QUICK, DISTILLED = PROTOCOLS["small"], PROTOCOLS["quick"], PROTOCOLS["distilled"]
CLASSIFICATION = KINDS["classification"]
PAIRS = LabeledRows(
    [("sun warm", "rain cold dark"), ("the day was very bright", "it"), ("storm", "the beach today")], [0, 1, 0]
)


def sample(folder: Path) -> EncodedRows:
    tokenizer = load_tokenizer(folder)
    return with_segments(CLASSIFICATION.encode(tokenizer, PAIRS, 64, 200), tokenizer)


def states(model: PooledClassifier, ids: list[int]) -> torch.Tensor:
    """float32[L, D] of one sequence without padding."""
    found: torch.Tensor = model.encoder(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)))[0][0]
    return found


@pytest.mark.parametrize("head", ["mean", "segments"])
def test_a_head_computes_what_is_written_out_row_by_row(encoder: Path, head: str) -> None:
    model = build_classifier(encoder, CLASSIFICATION, ("a", "b"), 3, False, head).eval()
    rows, tokenizer = sample(encoder), load_tokenizer(encoder)
    inputs = Batches(model, CLASSIFICATION, Padding.of(tokenizer), rows).inputs(range(3))
    with torch.inference_mode():
        answers = model(**inputs).logits
        for (first, second), answer in zip(PAIRS.texts, answers):
            a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (first, second))
            cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
            whole = states(model, cls + a + sep + b + sep)
            features = [whole.mean(0)]
            if head == "segments":
                u, v = whole[1 : 1 + len(a)].mean(0), whole[2 + len(a) : -1].mean(0)
                features += [u, v, abs(u - v), u * v]
            hidden = model.norm(nn.functional.gelu(model.dense(torch.cat(features))))
            torch.testing.assert_close(answer, model.classifier(hidden), rtol=1e-4, atol=1e-5)


def test_a_head_is_computed_in_float32_under_autocast(encoder: Path) -> None:
    model = build_classifier(encoder, CLASSIFICATION, ("a", "b"), 3, False, "segments").eval()
    inputs = Batches(model, CLASSIFICATION, Padding.of(load_tokenizer(encoder)), sample(encoder)).inputs(range(3))
    outputs: dict[str, torch.Tensor] = {}
    for name in ("encoder.layers.0.mlp.Wi", "dense", "classifier"):
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: outputs.__setitem__(name, output)
        )
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        model(**inputs)
    assert [output.dtype for output in outputs.values()] == [torch.bfloat16, torch.float32, torch.float32]


def test_distilled_mixes_labels_and_held_out_predictions_of_the_bag_of_words(
    encoder: Path, write_task: WriteTask
) -> None:
    pairs = [(f"sun {word}", f"rain {word} cold", str(number % 2)) for number, word in enumerate("abcdefghij")]
    data = load_task(read_task_file(write_task(pairs, pairs[:4], name="pairs")))
    rows, plain = encode_task(encoder, data, DISTILLED), encode_task(encoder, data, SMALL)
    assert rows.train.features == plain.train.features
    train = plain.train.rows
    guesses = held_out_predictions(CLASSIFICATION, data, train)
    expected = [0.5 * np.eye(2)[label] + 0.5 * guess for label, guess in zip(train.targets, guesses)]
    assert np.array(rows.train.targets) == pytest.approx(np.array(expected), abs=1e-6)
    assert rows.parts["dev"].targets == plain.parts["dev"].targets, "scores use the labels alone"
    logits = torch.randn(3, 2)
    loss = CLASSIFICATION.loss(
        SequenceClassifierOutput(logits=logits), CLASSIFICATION.targets(rows.train, [2, 0, 5], 9)
    )
    by_hand = -np.mean(
        [(expected[row] * logits[place].log_softmax(0).numpy()).sum() for place, row in enumerate((2, 0, 5))]
    )
    assert float(loss) == pytest.approx(by_hand, abs=1e-5)


@pytest.fixture
def partly_labeled(write_task: WriteTask, tmp_path: Path) -> Path:
    """Six labeled rows, three of dev, and a file of six rows, three of which are new."""
    rows = [(f"{word} day {number}", word) for number, word in enumerate(["sun", "rain"] * 3)]
    dev = [("sun sea", "sun"), ("rain wind", "rain"), ("cold rain", "rain")]
    more = ["text0", "rain day 1", "sun again", "sun sea", "rain again", "wind", "sun again"]
    (tmp_path / "more.tsv").write_text("\n".join(more) + "\n")
    return write_task(rows, dev, 'unlabeled = "more.tsv"')


def test_distilled_learns_what_the_bag_of_words_says_of_rows_without_labels(
    encoder: Path, partly_labeled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_task(read_task_file(partly_labeled), unlabeled_train=True)
    rows = encode_task(encoder, data, DISTILLED)
    assert data.unlabeled_train and data.unlabeled_train.texts == [("sun again",), ("rain again",), ("wind",)]
    assert len(rows.train) == 9 and rows.train.lengths[6:8] == [4, 4]
    train = training_subset(data.train, None)
    everything = dataclasses.replace(data, dev=data.unlabeled_train)
    leads = bag_of_words(CLASSIFICATION, everything, train).scored_rows["dev"][:, 2]
    expected = torch.tensor(np.stack((0 * leads, leads), axis=1)).softmax(1).numpy()
    assert np.array(rows.train.targets[6:]) == pytest.approx(expected, abs=1e-6)
    assert expected[0].argmax() != expected[1].argmax() and expected.sum(axis=1) == pytest.approx(np.ones(3))
    # The labeled rows keep the targets that they have alone.
    alone = encode_task(encoder, dataclasses.replace(data, unlabeled_train=None), DISTILLED)
    assert rows.train.targets[:6] == alone.train.targets
    monkeypatch.setattr("daybreak.evaluation.baselines.bag_of_words.AT_A_TIME", 2)
    assert encode_task(encoder, data, DISTILLED).train.targets == rows.train.targets
    assert load_task(read_task_file(partly_labeled)).unlabeled_train is None


def test_many_rows_without_labels_shorten_the_training(partly_labeled: Path, encoder: Path, tmp_path: Path) -> None:
    task = read_task_file(partly_labeled)

    def epochs(protocol: Protocol, unlabeled: int, shortens: bool = True) -> list[int]:
        texts = LabeledRows([(str(number),) for number in range(unlabeled)], [0] * unlabeled)
        data = dataclasses.replace(load_task(task), unlabeled_train=texts)
        found = evaluation_of(encoder, task, tmp_path / "cells", protocol=protocol, shortens=shortens)
        return [setting.epochs for setting in dataclasses.replace(found, data=data).settings(16)]

    # 6 labeled rows for 5 epochs; with others, at most five times as many rows are read, or one epoch.
    assert [epochs(DISTILLED, count) for count in (0, 24, 25, 54, 70, 6000)] == [[5], [5], [4], [2], [1], [1]]
    assert epochs(dataclasses.replace(DISTILLED, epochs=(2, 3)), 6000) == [1], "the same setting is tried once"
    assert epochs(DISTILLED, 6000, shortens=False) == [5]


def test_rows_without_labels_count_where_they_are_used(
    encoder: Path, partly_labeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"epochs": 1, "seeds": 1, "out": tmp_path / "out"}
    (result,) = evaluate(encoder, [str(partly_labeled)], protocol="distilled", **options)
    assert (result.train_rows, result.unlabeled_rows) == (6, 3)
    assert "6 (and 3 unlabeled) train and 3 dev rows" in capsys.readouterr().out
    (again,) = evaluate(encoder, [str(partly_labeled)], protocol="distilled", **options)
    assert again == result and "were finished" in capsys.readouterr().out
    with (tmp_path / "more.tsv").open("a") as file:
        file.write("much rain\n")
    (changed,) = evaluate(encoder, [str(partly_labeled)], protocol="distilled", **options)
    assert changed.unlabeled_rows == 4 and changed.scores["nll"] != result.scores["nll"]
    assert "was measured on other rows and is replaced" in capsys.readouterr().out
    more = (tmp_path / "more.tsv").read_text()
    (tmp_path / "more.tsv").write_text(more.replace("much rain", "much wind"))
    (other,) = evaluate(encoder, [str(partly_labeled)], protocol="distilled", untrained=True, **options)
    assert other.unlabeled_rows == 4 and not other.has_files_of(changed)
    (small,) = evaluate(encoder, [str(partly_labeled)], protocol="small", **options)
    assert small.unlabeled_rows == 0 and small.training_size == "6"
    assert "The unlabeled rows of weather are not used by small" in capsys.readouterr().out
    (tmp_path / "more.tsv").write_text("no column of this name\n")
    (again,) = evaluate(encoder, [str(partly_labeled)], protocol="small", **options)
    assert again == small and "were finished" in capsys.readouterr().out, "the file is not read"


def test_distilled_leaves_numbers_and_stock_heads_as_small_has_them(encoder: Path, write_task: WriteTask) -> None:
    numbers = load_task(
        read_task_file(write_task([("a", "0.5"), ("b", "1"), ("c", "2")], [("d", "1")], 'kind = "regression"'))
    )
    assert encode_task(encoder, numbers, DISTILLED).train.targets == encode_task(encoder, numbers, SMALL).train.targets
    assert "distillation" not in DISTILLED.recorded(Setting(1, 1e-3, 16), 16, task_type(numbers.task))
    assert {kind for kind, _ in DISTILLED.distillation} == {"single", "pair"}


def test_distilled_runs_from_rows_to_result(encoder: Path, weather: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "rows": 64, "seeds": 1}
    (result,) = evaluate(encoder, [str(weather)], protocol="distilled", out=tmp_path / "a", **options)
    (again,) = evaluate(encoder, [str(weather)], protocol="distilled", out=tmp_path / "b", **options)
    (plain,) = evaluate(encoder, [str(weather)], protocol="small", out=tmp_path / "c", **options)
    assert result.settings["distillation"] == 0.5 and "distillation" not in plain.settings
    assert result.scores == again.scores and result.scores["nll"] != plain.scores["nll"]


def test_soft_targets_are_made_once_for_all_models_of_the_same_rows(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(jobs, "held_out_predictions", lambda *a: made.append(a) or held_out_predictions(*a))

    def scores(**more: Any) -> dict[str, list[float]]:
        options: dict[str, Any] = {"epochs": 1, "rows": 64, "seeds": 1, "workers": 1}
        (result,) = evaluate(encoder, [str(weather)], protocol="distilled", out=tmp_path / "a", **options, **more)
        return result.scores

    first = scores()
    scores(untrained=True)
    assert len(made) == 1
    (file,) = (tmp_path / "a" / "cells").rglob("held-out-predictions.json")
    assert scores(overwrite=True) == first and len(made) == 1
    file.write_text(file.read_text().replace('"predictions"', '"edited"'))
    jobs._encoded_task.cache_clear()
    assert scores(overwrite=True) == first and len(made) == 2


def fine_tuned(folder: Path, rows: EncodedRows, protocol: Protocol, filler: int | None = None) -> Any:
    model = build_classifier(folder, CLASSIFICATION, ("a", "b"), 1, False, "segments")
    padding = Padding.of(load_tokenizer(folder))
    if filler is not None:
        padding = dataclasses.replace(padding, values={**padding.values, "input_ids": filler})
    fine_tune(model, CLASSIFICATION, padding, rows, protocol, Setting(12, 1e-3, 2), 1, quiet)
    return model


@pytest.mark.parametrize(("crammed", "filler"), [(False, None), (True, None), (True, -1)])
def test_only_the_used_rows_of_the_table_train_and_the_result_is_that_of_all(
    crammed: bool,
    filler: int | None,
    encoder: Path,
    write_crammed: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the padding is the last token of the vocabulary, and if other weights come before the table."""
    folder = write_crammed(tmp_path / "crammed") if crammed else encoder
    rows, protocol = sample(folder), dataclasses.replace(SMALL, weight_decay=0.3)
    monkeypatch.setattr(fast_training, "faster_precision", lambda device: "float32")
    before = build_classifier(folder, CLASSIFICATION, ("a", "b"), 1, False, "segments").state_dict()
    filler = filler and len(load_tokenizer(folder)) + filler
    plain = fine_tuned(folder, rows, dataclasses.replace(protocol, precision="float32"), filler).state_dict()
    monkeypatch.setattr(finetune.UsedRows, "restore", checked_restore)
    shrunk = fine_tuned(folder, rows, protocol, filler).state_dict()
    for name, tensor in plain.items():
        torch.testing.assert_close(shrunk[name], tensor, rtol=2e-4, atol=2e-6)
        assert not torch.equal(tensor, before[name]), f"{name} has learned, or decayed"


def checked_restore(self: fast_training.UsedRows, decay: float) -> None:
    assert len(self._table.weight) < len(self._whole)
    RESTORE(self, decay)


RESTORE = fast_training.UsedRows.restore


def test_the_master_weights_stay_float32_and_take_the_gradients_of_the_copy(encoder: Path) -> None:
    model = build_classifier(encoder, CLASSIFICATION, ("a", "b"), 1, False, "segments")
    copy, rows = WorkingCopy(model), sample(encoder)
    inputs = Batches(model, CLASSIFICATION, Padding.of(load_tokenizer(encoder)), rows).inputs(range(3))
    targets = torch.tensor(PAIRS.targets)
    CLASSIFICATION.loss(copy.model(**inputs), targets).backward()
    copy.gather()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    assert {weight.dtype for weight in copy.model.encoder.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32} == {g.dtype for g in found.values()}
    model.zero_grad()
    CLASSIFICATION.loss(model(**inputs), targets).backward()
    for name, weight in model.named_parameters():
        assert nn.functional.cosine_similarity(found[name].flatten(), weight.grad.flatten(), 0) > 0.98, name
    with torch.no_grad():
        model.dense.weight.fill_(0.5)
        next(model.encoder.parameters()).fill_(0.25)
    buffers = dict(model.named_buffers())
    assert any(tensor.is_floating_point() for tensor in buffers.values())  # frequencies of rotary positions
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in copy.model.named_buffers())
    copy.spread()
    assert (copy.model.dense.weight == 0.5).all() and (next(copy.model.encoder.parameters()) == 0.25).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_precision_is_recorded(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(fast_training, "faster_precision", lambda device: precision)
    (result,) = evaluate(encoder, [str(weather)], protocol="small", epochs=2, rate=2e-3, seeds=1, out=tmp_path)
    (file,) = (tmp_path / "cells").rglob("*seed-*.json")
    assert read_json(file, FinetuningRun).precision == precision
    assert result.hardware == "CPU, 1 thread" + ("" if precision == "float32" else ", bfloat16")
    assert result.mean > 0.9


def test_heads_and_arithmetic_count_in_the_fingerprint() -> None:
    first = fingerprint("model", "rows", QUICK, Setting(5, 5e-4, 16), 0, False)
    for name, value in {"heads": (("pair", "mean"),), "precision": "fast"}.items():
        changed = dataclasses.replace(QUICK, **{name: value})  # type: ignore[arg-type]
        assert fingerprint("model", "rows", changed, Setting(5, 5e-4, 16), 0, False) != first


def test_heads_follow_the_type_of_the_task() -> None:
    assert [task_type(GLUE[name]) for name in ("cola", "rte", "stsb")] == ["single", "pair", "number"]
    assert [SMALL.head_of(GLUE[name]) for name in ("cola", "rte", "stsb")] == ["mean", "segments", "segments"]
    assert SMALL.head_of(dataclasses.replace(GLUE["stsb"], text=("sentence1",))) == "mean"


@pytest.mark.parametrize("kind", ["text", "pair", "number"])
def test_transformers_loads_the_saved_classifier_with_its_code(
    encoder: Path, write_task: WriteTask, tmp_path: Path, kind: str
) -> None:
    """The answers of stock transformers to the dev rows have the recorded scores, and no line of Daybreak's runs."""
    words = [("sun warm", "rain cold"), ("the day [SEP] was very bright", "it"), ("storm", "the beach [SEP] today")]
    pairs = [(*words[n % 3], "ab"[n % 2]) if n % 5 else (*words[n % 3][::-1], "ab"[n % 2]) for n in range(40)]
    rows: dict[str, list[tuple[str, ...]]] = {
        "text": [(f"{first} {second}", label) for first, second, label in pairs],
        "pair": pairs,
        "number": [(first, second, str(len(first) % 5)) for first, second, _ in pairs],
    }
    task = write_task(rows[kind], rows[kind][:16], 'kind = "regression"' if kind == "number" else "", name=kind)
    saved = tmp_path / "saved"
    (result,) = evaluate(
        encoder, [str(task)], protocol="distilled", rate=1e-2, seeds=1, out=tmp_path / "out", save=saved, workers=1
    )
    code = sorted(path.name for path in saved.glob("*.py"))
    assert code == ["heads.py", "modeling_classifier.py"]
    assert not any("daybreak" in line for name in code for line in imports(saved / name))
    classes = transformers.AutoModelForSequenceClassification, transformers.AutoTokenizer
    with copied_code(tmp_path / "modules"):
        model, tokenizer = (each.from_pretrained(saved, trust_remote_code=True) for each in classes)
        assert type(model).__module__.startswith("transformers_modules.") and not model.training
    data = load_task(read_task_file(task))
    with torch.inference_mode():
        logits = [model(**tokenizer(*texts, return_tensors="pt")).logits[0].numpy() for texts in data.dev.texts]
        padded = model(**tokenizer(*zip(*data.dev.texts), padding=True, return_tensors="pt")).logits.numpy()
    assert np.stack(logits) == pytest.approx(padded, abs=1e-4)
    kinds = KINDS["regression" if kind == "number" else "classification"]
    table = kinds.evaluate(EncodedRows({}, data.dev.targets, [], data.dev), logits, data.labels)
    found = kinds.score(table, data.labels)
    assert {name: values[0] for name, values in result.scores.items()} == pytest.approx(found, abs=1e-4)
    if kind != "number":
        assert model.config.id2label == {0: "a", 1: "b"}
        classify = transformers.pipeline("text-classification", str(saved), trust_remote_code=True)
        texts = dict(zip(("text", "text_pair"), data.dev.texts[0]))
        answer = classify(texts)
        assert (answer if isinstance(answer, dict) else answer[0])["label"] == "ab"[logits[0].argmax()]
    half = classes[0].from_pretrained(saved, trust_remote_code=True, dtype=torch.bfloat16)
    batch = tokenizer(*zip(*data.dev.texts), padding=True, return_tensors="pt")
    for each in (half, model.bfloat16()):
        assert {weight.dtype for weight in each.parameters()} == {torch.bfloat16}
        assert each(**batch).logits.detach().float().numpy() == pytest.approx(padded, abs=0.2)


def imports(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.lstrip().startswith(("import ", "from "))]


def test_a_crammed_model_is_not_saved_with_a_head_that_has_code_too(
    write_crammed: Callable[..., Path], weather: Path, tmp_path: Path
) -> None:
    crammed = write_crammed(tmp_path / "model")
    with pytest.raises(UserError, match="crammed family cannot be saved with the head that small gives weather"):
        evaluate(crammed, [str(weather)], protocol="small", seeds=1, out=tmp_path, save=tmp_path / "kept")
    for protocol, offered in (("small", False), ("quick", True)):
        tasks = FineTuning(tasks=(str(weather),), task_dir=None, protocol=protocol, seeds=1)
        assert bool(tasks.saving(tmp_path)) == offered, "daybreak run names no command that is refused"


def test_no_dev_row_is_read_before_training_ends(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one setting for each task, and nothing is predicted until the last step is done."""
    task, shares = read_task_file(weather), []
    (job,) = evaluation_of(encoder, task, tmp_path, protocol=SMALL).all_jobs()

    def refuse(*given: object) -> None:
        raise RuntimeError("dev is read")

    monkeypatch.setattr("daybreak.evaluation.finetuning.jobs.predict", refuse)
    with pytest.raises(RuntimeError, match="dev is read"):
        run_job(job, lambda share, loss: shares.append(share))
    assert shares == pytest.approx([step / len(shares) for step in range(1, len(shares) + 1)])
    assert len(shares) == job.setting.epochs * 640 / job.setting.batch


@pytest.mark.parametrize("numbers", [[1.7e9 + number for number in range(9)], [1e31, 2e31, 3e31]])
def test_numbers_that_a_model_cannot_tell_apart_are_refused(numbers: list[float]) -> None:
    with pytest.raises(UserError, match="which a model cannot tell apart"):
        standardized(LabeledRows([("sun",)] * len(numbers), numbers))


def test_a_number_starts_from_the_training_mean(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    rows = [(f"sun {word}", "rain", str(number)) for number, word in enumerate("abcdefghij")]
    task = read_task_file(write_task(rows, rows[:4], 'kind = "regression"\n', name="numbers"))
    for name, mean in (("numbers", 0.0), ("stsb", 4.5)):  # the targets of the user's own tasks are standardized
        named = dataclasses.replace(task, name=name)
        (job,) = evaluation_of(encoder, named, tmp_path, protocol=SMALL).all_jobs()
        model = initial_model(job, encode_task(encoder, load_task(named), SMALL))
        assert model.classifier.bias.item() == pytest.approx(mean)

"""Protocols are frozen tables, and a changed one says so in its name."""

from __future__ import annotations

import dataclasses

import pytest
from transformers import TrainingArguments

from daybreak.core.errors import UserError
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.protocols.protocol import FROZEN_RATE, Protocol, Setting

QUICK, SCIBERT, CRAMMING, ELECTRA, TRANSFER, BERT = (
    PROTOCOLS[name] for name in ("quick", "scibert", "cramming", "electra", "transfer", "bert")
)
GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")


def one(protocol: Protocol, family: str, width: int = 768) -> Setting:
    (setting,) = protocol.settings(width, family)
    return setting


def test_quick_has_one_setting_that_follows_the_hidden_size() -> None:
    found = {width: one(QUICK, "cola", width) for width in (32, 128, 256, 384, 512, 768, 1024)}
    assert [setting.rate for setting in found.values()] == [5e-4, 5e-4, 3e-4, 2e-4, 1e-4, 5e-5, 5e-5]
    assert {(setting.epochs, setting.batch) for setting in found.values()} == {(5, 16)}
    assert QUICK.settings(300, "rte") == QUICK.settings(256, "cola")
    assert (QUICK.train_rows, QUICK.length, QUICK.seeds, QUICK.drop_last) == (2000, 128, 3, False)


def test_scibert_is_the_papers_sweep() -> None:
    settings = SCIBERT.settings(768, "sci-cite")
    assert len(settings) == len(set(settings)) == 16
    assert {setting.epochs for setting in settings} == {2, 3, 4, 5}
    assert {setting.rate for setting in settings} == {5e-6, 1e-5, 2e-5, 5e-5}
    assert {setting.batch for setting in settings} == {32}
    assert (SCIBERT.length, SCIBERT.warmup, SCIBERT.dropout) == (512, 0.1, 0.1)
    assert (SCIBERT.train_rows, SCIBERT.reported, SCIBERT.selection) == (None, "test", "shortest")


def test_bert_8gb_is_run_glue_with_its_defaults() -> None:
    protocol, defaults = PROTOCOLS["bert-8gb"], TrainingArguments()
    assert {one(protocol, family, width) for family in GLUE for width in (128, 768)} == {Setting(5, 2e-5, 32)}
    assert (protocol.length, protocol.train_rows, protocol.dropout) == (124, None, 0.1)
    assert (protocol.betas, protocol.eps) == ((defaults.adam_beta1, defaults.adam_beta2), defaults.adam_epsilon)
    assert (protocol.weight_decay, protocol.max_grad_norm) == (defaults.weight_decay, defaults.max_grad_norm)
    assert (protocol.shape, protocol.warmup) == (defaults.lr_scheduler_type, defaults.warmup_steps)


def test_the_two_first_protocols_train_as_they_always_did() -> None:
    for protocol in (QUICK, SCIBERT):
        assert (protocol.betas, protocol.eps, protocol.shape) == ((0.9, 0.999), 1e-8, "linear")
        assert (protocol.warmup, protocol.weight_decay, protocol.max_grad_norm) == (0.1, 0.01, 1.0)
        assert (protocol.layer_decay_at(768), protocol.own, protocol.starts) == (1.0, (), ())


def test_cramming_has_one_setting_for_all_tasks() -> None:
    assert {one(CRAMMING, family, width) for family in GLUE for width in (128, 768)} == {Setting(5, 4e-5, 16)}
    assert {CRAMMING.seeds_of(family) for family in GLUE} == {5}
    assert (CRAMMING.shape, CRAMMING.drop_last, CRAMMING.max_grad_norm, CRAMMING.weight_decay) == (
        "cosine",
        True,
        None,
        0.0,
    )
    assert (CRAMMING.betas, CRAMMING.eps, CRAMMING.dropout, CRAMMING.length) == ((0.9, 0.98), 1e-6, 0.1, 128)


def test_electra_follows_the_size_and_trains_two_tasks_longer() -> None:
    assert [one(ELECTRA, "cola", width).rate for width in (128, 256, 512, 768, 1024)] == [3e-4, 3e-4, 3e-4, 1e-4, 5e-5]
    assert [ELECTRA.layer_decay_at(width) for width in (256, 768, 1024)] == [0.8, 0.8, 0.9]
    assert {family for family in GLUE if one(ELECTRA, family).epochs == 10} == {"rte", "stsb"}
    assert {one(ELECTRA, family).epochs for family in GLUE} == {3, 10}
    assert {(one(ELECTRA, family).batch, ELECTRA.seeds_of(family)) for family in GLUE} == {(32, 10)}


def test_transfer_has_mosaicberts_setting_of_each_task() -> None:
    told = {  # rate, epochs, batch, their weight decay, seeds: finetuning_jobs.py and the .yaml of mosaicml/examples
        "mnli": (5e-5, 3, 48, 5e-6, 1),
        "qqp": (3e-5, 5, 16, 3e-6, 1),
        "qnli": (1e-5, 10, 16, 1e-6, 1),
        "sst2": (3e-5, 3, 16, 3e-6, 3),
        "cola": (5e-5, 10, 32, 5e-6, 4),
        "rte": (1e-5, 3, 16, 1e-5, 5),
        "mrpc": (8e-5, 10, 32, 8e-6, 5),
        "stsb": (3e-5, 10, 32, 3e-6, 5),
    }
    for family, (rate, epochs, batch, decay, seeds) in told.items():
        setting = one(TRANSFER, family)
        assert (setting.rate, setting.epochs, setting.batch) == (rate, epochs, batch), family
        assert TRANSFER.seeds_of(family) == seeds, family
        # theirs multiplies a weight by 1 - share * decay a step, AdamW by 1 - share * rate * weight decay
        assert TRANSFER.decay_of(setting) * rate == pytest.approx(decay), family
    assert dict(TRANSFER.starts) == {"rte": "mnli", "mrpc": "mnli", "stsb": "mnli"}
    assert (TRANSFER.warmup, TRANSFER.length, TRANSFER.betas) == (0.06, 256, (0.9, 0.98))


def test_what_is_recorded_is_what_was_used() -> None:
    told = TRANSFER.recorded(one(TRANSFER, "rte"), 768)
    assert told["weight_decay"] == 1.0
    assert (told["learning_rate"], told["epochs"], told["batch"], told["beta2"]) == (1e-5, 3, 16, 0.98)
    assert not {"max_grad_norm", "layer_decay", "most_train_rows"} & set(told)
    assert ELECTRA.recorded(one(ELECTRA, "cola", 1024), 1024)["layer_decay"] == 0.9
    told = QUICK.recorded(one(QUICK, "cola"), 768)
    assert (told["most_train_rows"], told["max_grad_norm"], told["weight_decay"]) == (2000, 1.0, 0.01)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "quick"),
        ({"epochs": 4, "rate": 3e-4}, "quick, 4 epochs, rate 3e-4"),
        ({"epochs": 1}, "quick, 1 epoch"),
        ({"rate": 2.5e-5}, "quick, rate 2.5e-5"),
        ({"rate": 1.0, "rows": 30000}, "quick, rate 1e0, 30000 rows"),
        ({"frozen": True}, "quick, frozen"),
        ({"frozen": True, "rate": 0.01, "epochs": 2}, "quick, 2 epochs, rate 1e-2, frozen"),
    ],
)
def test_changes_are_part_of_the_name(changes: dict[str, float], name: str) -> None:
    assert QUICK.changed(**changes).name == name  # type: ignore[arg-type]


def test_a_change_reaches_the_settings_and_nothing_else() -> None:
    changed = SCIBERT.changed(epochs=4, rate=2e-5)
    assert changed.settings(768, "mag") == changed.settings(64, "sciie") == [Setting(4, 2e-5, 32)]
    assert changed.reported == "test"
    for three in (SCIBERT.changed(epochs=3), SCIBERT.changed(rate=1e-4)):
        assert len(three.settings(64, "mag")) == 4
    assert QUICK.changed(rows=9).train_rows == 9
    assert dataclasses.replace(SCIBERT.changed(rows=9), name="scibert", train_rows=None) == SCIBERT
    for protocol in PROTOCOLS.values():
        assert protocol.changed() == protocol


def test_a_change_holds_for_tasks_with_settings_of_their_own() -> None:
    changed = TRANSFER.changed(epochs=1, rate=1e-3)
    assert {(one(changed, family).epochs, one(changed, family).rate) for family in GLUE} == {(1, 1e-3)}
    assert one(changed, "mnli").batch == 48
    assert changed.seeds_of("rte") == 5
    assert one(ELECTRA.changed(epochs=2), "rte").rate == 1e-4
    assert one(TRANSFER.changed(epochs=1), "mrpc").rate == 8e-5
    assert one(TRANSFER.changed(rate=1e-3), "mrpc").epochs == 10


def test_a_frozen_encoder_takes_a_heads_rate_unless_one_is_given() -> None:
    assert one(QUICK.changed(frozen=True), "rte").rate == FROZEN_RATE
    assert {one(TRANSFER.changed(frozen=True), family).rate for family in GLUE} == {FROZEN_RATE}
    assert one(QUICK.changed(frozen=True, rate=0.01), "rte").rate == 0.01
    assert QUICK.changed(frozen=True).frozen
    assert not QUICK.changed(rate=0.01).frozen


@pytest.mark.parametrize(
    "changes", [{"epochs": 0}, {"rows": -1}, {"rate": 0.0}, {"rate": float("nan")}, {"rate": -1.0}]
)
def test_impossible_changes_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UserError):
        QUICK.changed(**changes)  # type: ignore[arg-type]


def test_bert_tries_four_rates() -> None:
    assert [setting.rate for setting in BERT.settings(768, "rte")] == [5e-5, 4e-5, 3e-5, 2e-5]
    assert {(setting.epochs, setting.batch) for setting in BERT.settings(768, "rte")} == {(3, 32)}
    assert BERT.selection == "best"

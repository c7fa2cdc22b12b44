"""The card: valid front matter, every number it promises, nothing private."""

from __future__ import annotations

import dataclasses
import re

import pytest
import yaml

from daybreak.base.amounts import score
from daybreak.base.course_records import Change, MachineUse
from daybreak.base.records import Forgetting
from daybreak.base.task_records import Average
from daybreak.packaging.card import render_card
from daybreak.reporting.runs import read_run

CONFIG = {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert"}
CRAMMED = {
    "architectures": ["CrammedForMaskedLM"], "model_type": "daybreak-crammed",
    "auto_map": {"AutoModelForMaskedLM": "modeling_crammed.CrammedForMaskedLM"},
}  # fmt: skip


@pytest.fixture
def run(write_run):
    return read_run(write_run())


def card(run, **changes):
    parts = {"summary": run.summary, "results": run.results, "recipe": run.recipe, "config": CONFIG} | changes
    return render_card(
        parts["recipe"], parts["summary"], parts["results"], run.environment, run.manifest, parts["config"],
        changes.get("averages", ()),
    )  # fmt: skip


def judged(run, **changes):
    """The run's summary with another validation."""
    return dataclasses.replace(run.summary, validation=dataclasses.replace(run.summary.validation, **changes))


def front_matter(text: str):
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1])


def test_the_front_matter_is_what_the_hub_reads(run):
    found = front_matter(card(run))
    assert found["library_name"] == "transformers" and found["pipeline_tag"] == "fill-mask"
    assert found["license"] == "other" and "language" not in found
    assert {"daybreak", "fill-mask", "modernbert"} <= set(found["tags"])
    assert found["metrics"] == ["accuracy", "matthews correlation"]


def test_wild_names_do_not_break_the_front_matter(run):
    result = dataclasses.replace(run.results[0], metric='f1: "x" #|', scores={'f1: "x" #|': [0.1, 0.2, 0.3]})
    text = card(run, results=[result], recipe=run.recipe | {"name": "---\nlicense: mit"})
    assert front_matter(text)["metrics"] == ['f1: "x" #|'] and front_matter(text)["license"] == "other"
    assert "license: mit" not in text.splitlines()


def test_the_numbers_stand_on_it(run):
    text = card(run)
    for said in (
        "1.48 million parameters",
        "| Loss (nats per masked token) | 4.565 | 6.283 (unigram distribution) |",
        "| Accuracy | 20.6 % | 5.2 % (always the commonest token) |",
        "| Budget asked | 3m |",
        "| Time charged | 179.1 s (2m 59s) |",
        "Some CPU @ 2.5 GHz",
        "| `optimizer.lr` | 0.002 |",
        "AutoModelForMaskedLM.from_pretrained",
        "Protocol `quick`",
        "more than the seed spread",
    ):
        assert said in text
    pretrained = run.results[0]
    assert f"{100 * pretrained.mean:.1f} +- {100 * pretrained.spread:.1f}, median " in text


def test_tables_have_as_many_cells_in_every_row(run):
    for block in card(run).split("\n\n"):
        if block.startswith("|"):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_nothing_private_is_on_it(run):
    text = card(run, recipe=run.recipe | {"init": "/home/someone/secret/model"})
    assert "`docstrings.jsonl`" in text
    assert "/home" not in text and "secret" not in text
    for example in run.examples:
        assert example.text not in text


def test_a_refused_folder_says_so_at_the_top(write_run):
    text = card(read_run(write_run("refused", passed=False)))
    assert text.index("**REFUSED.**") < text.index("## Use")
    assert "logits differ by 0.4" in text and "FAILED" in text
    assert "REFUSED" not in card(read_run(write_run("fine")))


def test_before_the_end_nothing_is_claimed(run):
    text = card(run, summary=None, results=[])
    assert "nothing is claimed" in text and "## Tasks" not in text
    assert "has not been run" in text


def test_the_plateau_is_admitted(write_run):
    assert "token frequencies and little else" in card(read_run(write_run(floor=6.2)))


@pytest.mark.parametrize("config", [CONFIG, CRAMMED])
def test_the_snippet_is_python(run, config):
    text = card(run, config=config)
    snippet = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    compile(snippet[1], "card", "exec")
    assert ("trust_remote_code=True" in snippet[1]) == ("auto_map" in config)
    assert ("custom_code" in front_matter(text)["tags"]) == ("auto_map" in config)


def test_next_sentences_and_own_masks_stand_on_it_where_they_were_judged(run):
    assert "ext-sentence" not in card(run) and "As trained" not in card(run)
    summary = judged(run, own_loss=4.1, own_accuracy=0.25, next_loss=0.5, next_accuracy=0.775)
    text = card(run, summary=summary, config={"model_type": "bert"})
    assert "of the BERT architecture" in text and "and next-sentence prediction by Daybreak" in text
    assert "| Next-sentence accuracy | 77.5 % |" in text and "4.100 nats, 25.0 %" in text
    later = {"start": 0.9, "length": 512, "when_flat": False}
    assert "rows of 128 and later 512 tokens" in card(run, recipe=run.recipe | {"later": later})
    assert "bert" in front_matter(text)["tags"] and "modernbert" not in front_matter(text)["tags"]


def test_a_continued_model_says_from_what_and_at_what_price(run):
    assert "pretrained from random weights" in card(run) and "Was it worth it" not in card(run)
    found = Forgetting(general_before=2.5, general_after=2.75, own_before=3.1, own_after=1.9)
    text = card(run, summary=dataclasses.replace(run.summary, parent="owner/encoder", forgetting=found))
    assert "continued from owner/encoder with" in text and "pretrained from random weights" not in text
    assert "After continuing, own text 1.20 nats better, general text 0.25 nats worse." in text
    assert "| Own text | 3.100 | 1.900 | -1.200 |" in text and "| General text | 2.500 | 2.750 | +0.250 |" in text
    alone = dataclasses.replace(run.summary, forgetting=Forgetting(own_before=3.1, own_after=1.9))
    assert "After continuing, own text 1.20 nats better." in card(run, summary=alone)


def test_every_result_says_how_it_was_selected(run):
    text = card(run)
    assert "Protocol `quick`. Selection: last epoch." in text
    assert f"median {score(run.results[0].median)} (seed 0: " in text and "1,000 dev rows" in text
    chosen = dataclasses.replace(run.results[0], selection="3 epochs | best on dev")
    text = card(run, results=[chosen, *run.results[1:]])
    assert "Selection on which-package: 3 epochs \\| best on dev." in text
    assert "Selection on which-package, cola: last epoch." in text


def test_mismatched_stands_beside_matched(run):
    one = run.results[0]
    scores = one.scores | {"mismatched_accuracy": [0.5, 0.6, 0.7]}
    assert "; mismatched 60.0 |" in card(run, results=[dataclasses.replace(one, scores=scores)])


def test_averages_stand_on_it_only_where_there_are_any(run):
    assert "### Averages" not in card(run)
    average = Average(
        convention="electra", what="mean of 8 numbers", protocol="quick", model="pretrained", model_name="tiny",
        value=0.7123, numbers={"cola mcc": 0.7123}, seeds=3, comparable=False,
    )  # fmt: skip
    text = card(run, averages=[average])
    assert "| electra | quick | pretrained | 71.2 | mean of 8 numbers; 3 seeds or more a task |" in text


def test_a_straight_run_without_meters_says_nothing_of_them(run):
    text = card(run)
    assert "Energy" not in text and "mid-course" not in text and "work was lost" not in text
    mute = dataclasses.replace(run.summary, machine=MachineUse(processor=0.5, load=1.0, memory=1 << 30))
    assert "Energy" not in card(run, summary=mute)


def test_what_went_otherwise_than_planned_is_on_it(run):
    changes = [
        Change(
            step=1200 * place,
            why=f"out of memory: {64 >> place} | rows\nat a time",
            microbatch=64 >> place,
            world_size=1,
            threads=2,
        )
        for place in range(1, 7)
    ]
    summary = dataclasses.replace(
        run.summary, resumes=2, dropped=3, changes=changes, spent=run.summary.spent | {"lost": 41.25},
        machine=MachineUse(processor=0.5, load=1.0, memory=1 << 30, kilowatt_hours=2.613, cost=12.4),
    )  # fmt: skip
    text = card(run, summary=summary)
    assert "| Resumed | 2 times |" in text
    assert "| Energy | 2.61 kWh of the accelerators, cost 12.40 at the price given for the run |" in text
    assert "41.2 s of work was lost" in text and "3 steps left the weights as they were" in text
    assert "at step 1,200, out of memory: 32 \\| rows at a time; " in text and text.count("out of memory") == 5
    assert "; and 1 more." in text
    priced = dataclasses.replace(summary.machine, kilowatt_hours=None)
    assert "| Cost | 12.40 at the price given for the run |" in card(
        run, summary=dataclasses.replace(summary, machine=priced)
    )

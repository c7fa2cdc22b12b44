"""The card: valid front matter, every number it promises, nothing private."""

from __future__ import annotations

import dataclasses
import re

import pytest
import yaml
from fake_corpus import fake_corpus
from warm_python import SERVERS

from daybreak.core.formatting import score
from daybreak.exporting.card import render_card
from daybreak.reporting.runs import read_run
from daybreak.schemas.run import Change, Forgetting, MachineUse
from daybreak.schemas.tasks import Average

CONFIG = {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert"}
CRAMMED = {
    "architectures": ["CrammedForMaskedLM"], "model_type": "daybreak-crammed",
    "auto_map": {"AutoModelForMaskedLM": "modeling_crammed.CrammedForMaskedLM"},
}  # fmt: skip


@pytest.fixture
def run(write_run):
    return read_run(write_run())


def card(run, **changes):
    records = {name: getattr(run, name) for name in ("recipe", "summary", "results", "environment", "manifest")}
    return render_card(**{**records, "config": CONFIG, **changes})


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
        "| Loss (nats per masked token) | 4.565 | 6.283 (unigram baseline) |",
        "| Accuracy | 20.6 % | 5.2 % (always the most frequent token) |",
        "| Budget | 3m |",
        "| Time charged | 179.1 s (2m 59s) |",
        "| Not charged | preparing the text 18.4 s, parity check 6.2 s |",
        "Some CPU @ 2.5 GHz",
        "| `optimizer.lr` | 0.002 |",
        "AutoModelForMaskedLM.from_pretrained",
        "Protocol `quick`",
        "more than the standard deviation over seeds",
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
    assert text.index("**REFUSED.**") < text.index("## Use\n")
    assert "logits differ by 0.4" in text and "FAILED" in text
    assert "REFUSED" not in card(read_run(write_run("fine")))


def test_the_uses_stand_on_it(run):
    text = card(run)
    assert re.findall("^## .*", text, re.MULTILINE)[:4] == [
        "## Use", "## Intended use", "## Unsuitable use", "## Held-out quality",
    ]  # fmt: skip
    assert text.index("## Limitations") < text.index("## Citation")
    for start, said in ((1.0, "Fine-tune the encoder for search."), (0.9, "made the embeddings useful for search")):
        assert said in card(run, recipe=run.recipe | {"finish": {"start": start, "length": 64}})


def test_without_tasks_and_a_parity_check_nothing_is_claimed(run):
    text = card(run, summary=dataclasses.replace(run.summary, parity=None), results=[])
    assert "## Tasks" not in text and "has not been run" in text


def test_the_plateau_is_admitted(write_run):
    assert "token frequencies and little else" in card(read_run(write_run(floor=6.2)))


@pytest.mark.parametrize("config", [CONFIG, CRAMMED])
def test_the_snippets_are_python(run, config):
    text = card(run, config=config)
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert [re.search(r"AutoModel\w*", snippet)[0] for snippet in snippets] == [
        "AutoModelForMaskedLM", "AutoModel", "AutoModelForSequenceClassification",
    ]  # fmt: skip
    for snippet in snippets:
        compile(snippet, "card", "exec")
        loads = snippet.count(".from_pretrained(")  # each asks about the code unless it is allowed, the tokenizer's too
        assert snippet.count("trust_remote_code=True") == (loads if "auto_map" in config else 0)
    assert ("custom_code" in front_matter(text)["tags"]) == ("auto_map" in config)


def test_next_sentences_and_own_masks_stand_on_it_where_they_were_evaluated(run):
    assert "ext-sentence" not in card(run) and "As trained" not in card(run)
    summary = judged(run, own_loss=4.1, own_accuracy=0.25, next_loss=0.5, next_accuracy=0.775)
    text = card(run, summary=summary, config={"model_type": "bert"})
    assert "of the BERT architecture" in text and "and next-sentence prediction by Daybreak" in text
    assert "| Next-sentence accuracy | 77.5 % |" in text and "4.100 nats, 25.0 %" in text
    later = {"start": 0.9, "length": 512, "when_flat": False}
    assert "sequences of 128 and later 512 tokens" in card(run, recipe=run.recipe | {"phase2": later})
    never = card(run, recipe=run.recipe | {"phase2": later | {"start": 1.0, "when_flat": True}}, longest=128)
    assert "sequences of 128 tokens" in never and "sequences of more than 128 tokens" in never
    assert "bert" in front_matter(text)["tags"] and "modernbert" not in front_matter(text)["tags"]


def test_a_continued_model_says_from_what_and_at_what_price(run):
    assert "pretrained from random weights" in card(run) and "Effect of continued pretraining" not in card(run)
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
    assert "| electra | quick | pretrained | 71.2 | mean of 8 numbers; 3 seeds or more per task |" in text


def test_a_straight_run_without_meters_says_that_nobody_measured(run):
    text = card(run)
    unknown = "| Energy | not measured: no accelerator reported its power |"
    assert unknown in text and "Cost" not in text and "Changes of settings" not in text and "work was lost" not in text
    mute = dataclasses.replace(run.summary, machine=MachineUse(processor=0.5, load=1.0, memory=3 << 29))
    assert unknown in card(run, summary=mute) and "| Peak memory | 1.5 GiB (19 %) of the process |" in card(
        run, summary=mute
    )


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
        run.summary, resumes=2, dropped=3, changes=changes,
        time_by_category=run.summary.time_by_category | {"lost": 41.25},
        machine=MachineUse(processor=0.5, load=1.0, memory=1 << 30, kilowatt_hours=2.613, cost=12.4),
    )  # fmt: skip
    text = card(run, summary=summary)
    assert "| Resumed | 2 times |" in text
    assert "| Resumed | 1 time |" in card(run, summary=dataclasses.replace(summary, resumes=1))
    assert "| Energy | 2.61 kWh of the accelerators, measured |" in text
    assert "| Cost | 12.40 at the given price |" in text
    assert "41.2 s of work was lost" in text and "3 steps had non-finite or exploding values" in text
    assert "at step 1,200, out of memory: 32 \\| rows at a time; " in text and text.count("out of memory") == 5
    assert "; and 1 more." in text
    priced = dataclasses.replace(summary.machine, kilowatt_hours=None)
    assert "| Cost | 12.40 at the given price |" in card(run, summary=dataclasses.replace(summary, machine=priced))


def test_the_snippets_run_on_a_real_model(finished, monkeypatch):
    """In a process that knows transformers alone, in the folder that was exported."""
    text = (finished / "model" / "README.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    code += """
assert embeddings.shape == (2, model.config.hidden_size) and float(loss) > 0
assert "daybreak" not in __import__("sys").modules"""
    monkeypatch.chdir(finished / "model")
    done = SERVERS["bare"].run(["-c", code])
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(eval(done.stdout.strip().splitlines()[-1])) == 5


def test_the_text_is_reported_in_counts(run):
    text = card(run, corpus=fake_corpus())
    assert "(`web`)" in text and "| Exact Duplicates | 100 | 10.0 % |" in text
    assert "`rte.txt` | 31 of 2,000 | documents removed" in text and "`cola.txt` | 9 of 900 | only counted" in text
    assert "| Scripts, by letters | Latin 97.0 %, Greek 3.0 %, Han 0.0 % |" in text
    assert "| Languages, by documents | en 90.0 %, fi 10.0 % |" in text
    assert "Sign up" not in text and "/home" not in text
    assert "scores on it may be too high" in text
    blind = card(run, corpus=dataclasses.replace(fake_corpus(), contamination=[], languages={}))
    assert "was not searched for evaluation text" in blind and "not identified" in blind
    clean = dataclasses.replace(fake_corpus().contamination[0], path="glue/a|b.txt", items_found=0, documents=0)
    text = card(run, corpus=dataclasses.replace(fake_corpus(), contamination=[clean]))
    assert "| `a\\|b.txt` | 0 of 2,000 | none needed |" in text


def test_the_limits_are_those_of_the_records(run):
    text = card(run).split("## Limitations")[1].split("## ")[0]
    assert "It read 4.09 million tokens in 2m 59s on Some CPU @ 2.5 GHz" in text
    assert "no difference" not in text and "worse than the same" not in text and "memorized" not in text
    assert "more than 128 tokens" in text and "not been fine-tuned on any task" not in text
    worse = dataclasses.replace(run.results[0], mean=0.3, seeds=[0, 1])
    same = dataclasses.replace(run.results[2], mean=run.results[3].mean)
    alone = [worse, run.results[1], same, run.results[3], dataclasses.replace(run.results[0], task="topics")]
    often = dataclasses.replace(run.summary, epochs=12.0, parent="owner/encoder")
    text = card(run, results=alone, summary=often).split("## Limitations")[1]
    assert "On which-package (quick) it is worse than the same network without pretraining." in text
    assert "On cola (quick) pretraining made no difference beyond the standard deviation over seeds." in text
    assert "On topics (quick) there is no result of the same network without pretraining." in text
    assert "On which-package (quick) it or the network without pretraining has fewer than 3 seeds, too few" in text
    control = [run.results[0], dataclasses.replace(run.results[1], seeds=[0])]
    assert "it or the network without pretraining has fewer than 3 seeds" in card(run, results=control)
    assert "It read its text for 12 epochs" in text and "It was continued from owner/encoder" in text
    assert "not been fine-tuned on any task" in card(run, results=[])
    for start, longest in ((0.9, 256), (1.0, 128)):
        text = card(run, recipe=run.recipe | {"finish": {"start": start, "length": 256}})
        assert f"It was not trained on sequences of more than {longest} tokens." in text


def test_a_citation_is_bibtex_whatever_the_name(run):
    text = card(run, recipe=run.recipe | {"name": "wild } \\% {name}\n```"})
    entry = re.search(r"```bibtex\n(.*?)\n```", text, re.DOTALL)[1]
    assert entry.count("{") == entry.count("}") and "%" not in entry and "\\" not in entry
    assert entry.startswith("@misc{wild-name-2026,") and "a text encoder with 1.48 million parameters" in entry
    assert "Pretrained by Daybreak 0.1.0" in entry and f"fingerprint {run.recipe['fingerprint']}" in entry
    assert "arXiv:2412.13663" in text and "arXiv:2212.14034" in card(run, config=CRAMMED)


def test_settings_and_hardware_of_the_scores_stand_on_it(run):
    results = [dataclasses.replace(result, hardware="CPU, 2 threads") for result in run.results]
    text = card(run, results=results)
    assert "Settings: learning rate 0.0003, epochs 3, batch 32, length 128. Hardware: CPU, 2 threads." in text


def test_a_continued_model_names_its_parent_to_the_hub(run):
    assert "base_model" not in front_matter(card(run))
    parent = dataclasses.replace(run.summary, parent="owner/encoder")
    assert front_matter(card(run, summary=parent))["base_model"] == "owner/encoder"
    local = dataclasses.replace(run.summary, parent="encoder")
    assert "base_model" not in front_matter(card(run, summary=local))

"""A local page to try a run: fill-mask, the words that a prediction depends on, similar sentences, and search.

    pip install -c constraints.txt -e '.[demo]'
    python examples/playground.py runs/mini

The page opens at http://127.0.0.1:7860 and loads nothing from other hosts. The model is a class of transformers, or
Daybreak's own for the crammed family: no code in the folder runs. Search needs the prepared text of the run (RUN/data)
and builds an index in RUN/search at the first query.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from daybreak.core.errors import UserError
from daybreak.evaluation.probes.frozen import load_masked_model
from daybreak.searching.query import open_search

BATCH = 32
"""Sequences that the model reads at a time."""


class Playground:
    """The model of a run and the answers that the page shows.

    Args:
        run: run folder with an exported model.
        data: prepared data of the run, for search; RUN/data by default.
    """

    def __init__(self, run: Path, data: Path | None = None):
        found = load_masked_model(run / "model")
        self.run, self.data, self.tokenizer, self.model = run, data, found.tokenizer, found.model.cpu()
        self._searcher: Any = None

    def fill_mask(self, text: str) -> list[list[Any]]:
        """Return the five most probable tokens for the mask in ``text``: token, probability, filled sentence."""
        encoded, position = self._encode_masked(text)
        with torch.inference_mode():
            best = self.model(**encoded).logits[0, position].float().softmax(-1).topk(5)
        rows: list[list[Any]] = []
        for probability, token in zip(best.values.tolist(), best.indices.tolist()):
            filled = encoded["input_ids"][0].tolist()
            filled[position] = token
            sentence = self.tokenizer.decode(filled, skip_special_tokens=True)
            rows.append([self.tokenizer.decode([token]).strip(), round(probability, 4), sentence])
        return rows

    def dependence(self, text: str) -> tuple[str, list[tuple[str, float | None]], list[list[Any]]]:
        """Mask one other word at a time and compare the log-probability of the prediction (occlusion).

        Returns:
            the predicted token with its probability; the parts of the text, where the number of a word (-1 to 1) is
            positive if the prediction needs it; word and change in nats, the most negative change first.
        """
        encoded, position = self._encode_masked(text)
        ids = encoded["input_ids"][0]
        words: dict[int, list[int]] = {}
        for place, word in enumerate(encoded.word_ids(0)):
            if word is not None and ids[place] not in self.tokenizer.all_special_ids:
                words.setdefault(word, []).append(place)
        copies = ids.repeat(1 + len(words), 1)
        for row, places in enumerate(words.values(), start=1):
            copies[row, places] = self.tokenizer.mask_token_id
        scores = []
        with torch.inference_mode():
            for part in copies.split(BATCH):
                logits = self.model(input_ids=part, attention_mask=torch.ones_like(part)).logits[:, position]
                scores.append(logits.float().log_softmax(-1))
        log_probabilities = torch.cat(scores)
        token = int(log_probabilities[0].argmax())
        changes = (log_probabilities[1:, token] - log_probabilities[0, token]).tolist()
        spans = [(encoded.token_to_chars(0, p[0]).start, encoded.token_to_chars(0, p[-1]).end) for p in words.values()]
        largest = max((abs(change) for change in changes), default=0.0) or 1.0
        parts: list[tuple[str, float | None]] = []
        end = 0
        for (first, last), change in zip(spans, changes):
            if text[end:first]:
                parts.append((text[end:first], None))
            parts.append((text[first:last], -change / largest))
            end = last
        parts.append((text[end:], None))
        rows = [[text[first:last].strip(), round(change, 3)] for (first, last), change in zip(spans, changes)]
        probability = log_probabilities[0, token].exp().item()
        prediction = f"{self.tokenizer.decode([token]).strip()} ({100 * probability:.1f} %)"
        return prediction, parts, sorted(rows, key=lambda row: row[1])

    def similar(self, sentence: str, others: str) -> list[list[Any]]:
        """Return the lines of ``others`` with their cosine similarity to ``sentence``, the most similar first."""
        lines = [line.strip() for line in others.splitlines() if line.strip()]
        if not sentence.strip() or not lines:
            raise UserError("There is nothing to compare.", "Write a sentence, and others below it, one on each line.")
        vectors = self.embed([sentence, *lines])
        rows = [[round(cosine, 3), line] for cosine, line in zip((vectors[1:] @ vectors[0]).tolist(), lines)]
        return sorted(rows, key=lambda row: -row[0])

    def embed(self, texts: list[str]) -> torch.Tensor:
        """Return the mean of the last hidden states of each text, float [len(texts), hidden size], of unit length."""
        vectors = []
        with torch.inference_mode():
            for start in range(0, len(texts), BATCH):
                part = self.tokenizer(texts[start : start + BATCH], padding=True, truncation=True, return_tensors="pt")
                hidden = self.model.base_model(**part).last_hidden_state.float()
                mask = part["attention_mask"].unsqueeze(-1)
                vectors.append((hidden * mask).sum(1) / mask.sum(1))
        return torch.nn.functional.normalize(torch.cat(vectors), dim=-1)

    def search(self, query: str, method: str) -> list[list[Any]]:
        """Return the best passages of the run's text: score, split and document, passage."""
        if self._searcher is None:
            self._searcher = open_search(self.run, data=self.data)
        found = self._searcher.search(query, top=5, method=method)
        return [[round(one.score, 3), f"{one.split} {one.document}", one.text] for one in found]

    def _encode_masked(self, text: str) -> tuple[Any, int]:
        """Return the encoding of ``text`` and the position of its mask."""
        mask = self.tokenizer.mask_token
        encoded = self.tokenizer(text, truncation=True, return_tensors="pt")
        places = (encoded["input_ids"][0] == self.tokenizer.mask_token_id).nonzero()
        if text.count(mask) != 1 or len(places) != 1:
            longest = self.tokenizer.model_max_length
            raise UserError(
                f"The text needs {mask} exactly once in its first {longest:,} tokens.",
                f"Replace one word by {mask}.",
            )
        return encoded, int(places[0])


def example_of(run: Path, mask: str) -> str:
    """Return a held-out sentence of the run with a mask."""
    try:
        text = json.loads((run / "examples.json").read_text(encoding="utf-8"))[0]["text"]
        return str(text).replace("[MASK]", mask)  # as all examples write it, also those of a RoBERTa
    except (OSError, ValueError, LookupError, TypeError):
        return f"The {mask} was quiet that evening."


def build(playground: Playground, gr: Any) -> Any:
    """Return the page.

    Args:
        gr: the module ``gradio``.
    """

    def answer(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            try:
                return function(*values)
            except UserError as error:
                raise gr.Error(str(error), print_exception=False) from None

        return call

    def table(**widths: str) -> Any:
        columns = list(widths)
        return gr.Dataframe(
            headers=columns, column_widths=list(widths.values()), label="Result", interactive=False, wrap=True
        )

    mask = playground.tokenizer.mask_token
    example = example_of(playground.run, mask)
    with gr.Blocks(title=f"Playground: {playground.run}", analytics_enabled=False) as page:
        gr.Markdown(f"# Playground\nThe model of `{playground.run}`, on this machine only.")

        gr.Markdown(f"## Fill-mask\nReplace one word by `{mask}`.")
        text = gr.Textbox(example, label="Text", elem_id="fill-text")
        button = gr.Button("Predict", variant="primary", elem_id="fill")
        rows = table(token="22%", probability="28%", sentence="50%")
        button.click(answer(playground.fill_mask), text, rows, api_name="fill_mask")

        gr.Markdown(
            "## Dependence\nEach other word is masked in turn. The change is that of the prediction's log-probability "
            "in nats: a negative number means that the prediction needs the word."
        )
        text = gr.Textbox(example, label="Text", elem_id="dependence-text")
        button = gr.Button("Explain", variant="primary", elem_id="dependence")
        prediction = gr.Textbox(label="Prediction")
        parts = gr.HighlightedText(label="Words (red: needed, purple: in the way)", show_legend=False)
        rows = table(word="60%", change="40%")
        button.click(answer(playground.dependence), text, [prediction, parts, rows], api_name="dependence")

        gr.Markdown("## Similar sentences\nThe cosine similarity of mean-pooled embeddings.")
        sentence = gr.Textbox("How do I open a file?", label="Sentence", elem_id="similar-text")
        others = gr.Textbox(
            "Read the text of a file.\nSort a list of numbers.\nThe weather is fine today.",
            label="Others, one on each line", lines=3,
        )  # fmt: skip
        button = gr.Button("Compare", variant="primary", elem_id="similar")
        rows = table(similarity="28%", sentence="72%")
        button.click(answer(playground.similar), [sentence, others], rows, api_name="similar")

        gr.Markdown(
            "## Search\nPassages of the text that the run was trained on, and of its held-out text. "
            "The first search builds an index, which takes a while on a large text."
        )
        query = gr.Textbox("open a file", label="Query", elem_id="search-text")
        method = gr.Radio(["hybrid", "dense", "bm25"], value="hybrid", label="Method")
        button = gr.Button("Search", variant="primary", elem_id="search")
        rows = table(score="18%", document="24%", passage="58%")
        button.click(answer(playground.search), [query, method], rows, api_name="search")
    return page.queue(default_concurrency_limit=1)


def stop(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Open a local page to try the model of a run.")
    parser.add_argument("run", type=Path, help="run folder with an exported model")
    parser.add_argument("--data", type=Path, help="prepared data of the run, for search; RUN/data by default")
    parser.add_argument("--port", type=int, default=7860, help="port of the page on this machine")
    parser.add_argument("--threads", type=int, default=2, help="threads of the model")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    options = parser.parse_args()
    if not (options.run / "model" / "config.json").is_file():
        stop(f"There is no model in '{options.run / 'model'}'. Name a finished run, or export it with daybreak export.")
    try:
        import gradio
    except ModuleNotFoundError:
        stop("The playground needs Gradio. Install it: pip install -c constraints.txt -e '.[demo]'.")
    torch.set_num_threads(max(1, options.threads))
    try:
        page = build(Playground(options.run, options.data), gradio)
    except UserError as error:
        stop(str(error))
    try:
        page.launch(
            server_name="127.0.0.1",
            server_port=options.port,
            inbrowser=options.open,
            share=False,
            quiet=True,  # Gradio advises a public link
            prevent_thread_lock=True,
            ssr_mode=False,
            footer_links=[],
            theme=gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )
    except OSError:
        stop(f"Port {options.port} is taken. Choose another with --port.")
    print(f"The playground is at http://127.0.0.1:{options.port}. Ctrl+C ends it.", flush=True)
    page.block_thread()


if __name__ == "__main__":
    main()

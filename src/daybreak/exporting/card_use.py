"""How to use the model, and how to cite it: the parts of the card that a reader copies."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from daybreak.core.formatting import count
from daybreak.exporting.card_text import line
from daybreak.schemas.run import Environment, Summary

PAPERS = {
    "modernbert": "ModernBERT (arXiv:2412.13663)",
    "bert": "BERT (Devlin et al. 2018, arXiv:1810.04805)",
    "daybreak-crammed": "Cramming (Geiping and Goldstein 2022, arXiv:2212.14034)",
}
"""What config.json calls the architecture -> where it was published."""
NOT_IN_BIBTEX = re.compile(r"[^A-Za-z0-9 .,:;()/+-]+")


def use(config: dict[str, Any], length: int) -> str:
    """Fill-mask, embeddings and fine-tuning with transformers alone.

    Args:
        config: the export's config.json.
        length: positions of the longest row of training.
    """
    own_code = "auto_map" in config
    trust = ", trust_remote_code=True" if own_code else ""
    why = (
        "The architecture is none that transformers knows, so its code travels in this folder: read it, then allow it "
        "with `trust_remote_code=True`.\n\n"
        if own_code
        else ""
    )
    return "\n\n".join(["## Use", f"{why}{_fill_mask(trust)}", _embeddings(trust), _fine_tuning(trust, length)])


def _fill_mask(trust: str) -> str:
    return f"""Fill a gap:

```python
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

folder = "."  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForMaskedLM.from_pretrained(folder{trust}).eval()

batch = tokenizer(f"The {{tokenizer.mask_token}} of the function is a list.", return_tensors="pt")
with torch.no_grad():
    logits = model(**batch).logits
place = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
print(tokenizer.convert_ids_to_tokens(logits[0, place].topk(5).indices.tolist()))
```"""


def _embeddings(trust: str) -> str:
    stock = "\n\n`SentenceTransformer(folder)` of sentence-transformers gives the same, scaled to length 1."
    also = "" if trust else stock
    return f"""Sentence embeddings, as means of the last layer; for search, fine-tune it first:

```python
from transformers import AutoModel

encoder = AutoModel.from_pretrained(folder{trust}).eval()
batch = tokenizer(["A first text.", "A second one."], padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    states = encoder(**batch).last_hidden_state
seen = batch["attention_mask"].unsqueeze(-1)
embeddings = (states * seen).sum(dim=1) / seen.sum(dim=1)
```{also}"""


def _fine_tuning(trust: str, length: int) -> str:
    return f"""Fine-tune for a task, here with two labels; texts of more than {length} tokens are cut:

```python
from transformers import AutoModelForSequenceClassification

texts, labels = ["A good one.", "A bad one."], [1, 0]  # yours
classifier = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2{trust}).train()
optimizer = torch.optim.AdamW(classifier.parameters(), lr=1e-4)
for epoch in range(3):
    for at in range(0, len(texts), 16):
        batch = tokenizer(texts[at : at + 16], padding=True, truncation=True, return_tensors="pt")
        loss = classifier(**batch, labels=torch.tensor(labels[at : at + 16])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
```

`daybreak evaluate FOLDER --tasks TASK.toml` fine-tunes with the settings of a protocol, with several seeds and beside \
the same network without pretraining."""


def citation(recipe: dict[str, Any], config: dict[str, Any], summary: Summary | None, environment: Environment) -> str:
    """A BibTeX entry of what the records tell, and the paper of the architecture."""
    name = _plain(str(recipe.get("name", "encoder")))
    year = datetime.fromtimestamp(environment.started, UTC).year
    size = f" with {count(summary.parameters)} parameters" if summary else ""
    seed = f", seed {recipe['seed']}" if "seed" in recipe else ""
    marked = f", fingerprint {_plain(str(recipe['fingerprint']))}" if "fingerprint" in recipe else ""
    paper = PAPERS.get(str(config.get("model_type")))
    architecture = f" The architecture is that of {paper}." if paper else ""
    begun = f" Cite also what it was continued from: {line(summary.parent)}." if summary and summary.parent else ""
    key = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "encoder"
    return f"""## Citation

The author is who trained it, and the address where the folder lies: add both.{architecture}{begun}

```bibtex
@misc{{{key}-{year},
  title = {{{name}: a text encoder{size}}},
  year  = {{{year}}},
  note  = {{Pretrained by Daybreak {_plain(environment.daybreak)}, recipe {name}{seed}{marked}}},
}}
```"""


def _plain(text: str) -> str:
    """Without what BibTeX or a code block would take for its own."""
    return " ".join(NOT_IN_BIBTEX.sub(" ", text).split())

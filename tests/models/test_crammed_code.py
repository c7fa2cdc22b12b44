"""The code that travels with a crammed export, where nothing of Daybreak can lend a hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import save_file

from daybreak.models.crammed import CrammedEncoder

HEADS = ["", *(f"For{task}" for task in (
    "MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering"
))]  # fmt: skip
OPENING = """
import os, sys
import transformers

folder, heads = sys.argv[1], sys.argv[2:]
for head, other in zip(heads, [*heads[1:], heads[0]]):
    model = getattr(transformers, f"AutoModel{head}").from_pretrained(folder, trust_remote_code=True)
    assert type(model).__name__ == (f"Crammed{head}" if head else "CrammedModel"), type(model)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    again = os.path.join(folder, f"saved-{head}")
    model.save_pretrained(again)
    source = getattr(transformers, f"AutoModel{other}")
    source.from_pretrained(again, trust_remote_code=True, ignore_mismatched_sizes=True)
assert not any(name.startswith("daybreak") for name in sys.modules)
print("all opened")
"""


def test_every_head_opens_where_daybreak_is_not_and_what_it_saves_opens_with_another(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shape = CrammedEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=12, classifier_width=24)
    (folder / "config.json").write_text(json.dumps(shape.to_hugging_face(97, 20)))
    save_file(shape.export_weights(shape.build(97)), folder / "model.safetensors", metadata={"format": "pt"})
    for name, source in shape.modelling_files().items():
        (folder / name).write_bytes(source.read_bytes())
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "code"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", OPENING, str(folder), *HEADS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "all opened\n", done.stderr

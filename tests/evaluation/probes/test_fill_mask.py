"""The demonstration sentences: whole words are hidden, whatever the tokenizer calls its pieces and special tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from daybreak.core.encoder import Encoder
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import load_tokenizer
from daybreak.evaluation.probes.fill_mask import fill_mask
from daybreak.models.bert import BertEncoder
from daybreak.schemas.run import SpecialIds

TINY = BertEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=16, dropout=0.5)
SENTENCES = "A start . The old teacher finds the broken window near the wide river every morning . An end ."


class Watched(Encoder):
    """Remembers the rows that it was asked about."""

    def __init__(self, model: Encoder):
        super().__init__()
        self.model, self.rows = model, []

    def states(self, ids, positions=None, **more):
        assert not self.model.training
        self.rows.append((ids[0].tolist(), int(positions[0, 0])))
        return self.model.states(ids, positions, **more)

    def transform(self, states):
        return self.model.transform(states)

    @property
    def decoder(self):
        return self.model.decoder


def test_whole_words_of_held_out_sentences_are_masked(data: Path) -> None:
    shards = open_shards(data)
    tokenizer = load_tokenizer(data / "tokenizer")
    model = Watched(TINY.build(shards.manifest.vocabulary))
    found = fill_mask(model, tokenizer, shards.heldout.read(0, len(shards.heldout)), count=5)
    assert len(found) == len(model.rows) == 5
    for example, (ids, place) in zip(found, model.rows):
        assert (ids[0], ids[place], ids[-1]) == (2, 4, 3)
        assert example.text.count("[MASK]") == 1 and example.answer.isalpha() and len(example.answer) >= 4
        assert len(example.guesses) == len(example.probabilities) == 5


def test_a_sentence_that_comes_again_is_shown_once() -> None:
    sentence = "the old teacher finds the broken window near the wide river ."
    tokenizer = by_letter([sentence])
    stream = np.array(tokenizer.encode(" ".join([sentence] * 80)).ids)
    assert len(fill_mask(TINY.build(tokenizer.get_vocab_size()), tokenizer, stream, count=5)) == 1


def test_a_tokenizer_that_was_taken_over_keeps_its_own_ids() -> None:
    """Byte-level pieces, as ModernBERT's: the space belongs to the word, and the special tokens come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([SENTENCES] * 3, trainer)
    names = ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>"]
    tokenizer.add_special_tokens(names)
    special = SpecialIds(**{name[1:-1]: tokenizer.token_to_id(name) for name in names})
    torch.manual_seed(0)
    model = Watched(TINY.build(tokenizer.get_vocab_size()))
    stream = torch.tensor([*tokenizer.encode(SENTENCES).ids, special.sep]).numpy()
    (example,) = fill_mask(model, tokenizer, stream, count=1, special=special)
    ((ids, place),) = model.rows
    assert (ids[0], ids[place], ids[-1]) == (special.cls, special.mask, special.sep)
    assert example.answer in "teacher finds broken window near wide river every morning".split()
    assert example.text.split() == [word if word != example.answer else "[MASK]" for word in SENTENCES.split()[3:-3]]


def by_letter(sentences: list[str]) -> Tokenizer:
    """A WordPiece tokenizer of single wide letters and of whole words, as BERT's splits them."""
    words = sorted({word for sentence in sentences for word in sentence.split()} | set("".join(sentences)) - {" "})
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def test_chinese_sentences_are_shown() -> None:
    """Sentences end in an ideographic full stop, and words have no spaces between them."""
    sentence = "\u8fd9\u4f4d\u8001\u5e08\u6bcf\u5929\u65e9\u4e0a\u5728\u6cb3\u8fb9\u8bfb\u4e66\u3002"
    tokenizer = by_letter([sentence])
    stream = np.array(tokenizer.encode(sentence * 4).ids)
    (example,) = fill_mask(TINY.build(tokenizer.get_vocab_size()), tokenizer, stream, count=1)
    assert "[MASK]" in example.text and example.answer in sentence and len(example.answer) == 1


def test_hindi_sentences_are_shown() -> None:
    """Their words contain vowel signs, which are no letters, and they end in a danda."""
    sentence = "किसान हर सुबह नदी के पास सुंदर बगीचा देखता है ।"
    tokenizer = by_letter([sentence])
    tokenizer.normalizer = None
    stream = np.array(tokenizer.encode(" ".join([sentence] * 4)).ids)
    (example,) = fill_mask(TINY.build(tokenizer.get_vocab_size()), tokenizer, stream, count=1)
    assert "[MASK]" in example.text and example.answer in sentence.split() and len(example.answer) >= 4

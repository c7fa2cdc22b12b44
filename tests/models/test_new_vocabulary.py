"""A model moved to another vocabulary: known pieces keep their weights, new ones start from the pieces they spell."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from daybreak.models.bert import BertEncoder
from daybreak.models.modern import ModernEncoder
from daybreak.models.new_vocabulary import token_sources, with_vocabulary
from daybreak.schemas.run import SpecialIds

OLD_SPECIAL = SpecialIds(pad=0, unk=3, cls=4, sep=5, mask=6)


def wordpiece(words: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words.split())}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


OLD = wordpiece("[PAD] gene ##s [UNK] [CLS] [SEP] [MASK] pro ##tein cell a ##b")
NEW = wordpiece("[PAD] [UNK] [CLS] [SEP] [MASK] protein gene cells ##tein \u00e9t\u00e9")


def test_each_token_knows_where_it_starts() -> None:
    assert token_sources(OLD, NEW, OLD_SPECIAL, SpecialIds()) == [
        [0], [3], [4], [5], [6],  # specials go from role to role
        [7, 8],  # protein = pro ##tein
        [1],  # gene is known
        [9, 2],  # cells = cell ##s
        [8],
        [3],  # nothing spells it
    ]  # fmt: skip


def test_a_word_starts_from_the_byte_level_token_that_begins_a_word_and_a_letter_from_its_bytes() -> None:
    """From RoBERTa or ModernBERT to WordPiece: equal strings mean other text."""
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] t h e th the \u0120 \u0120the s \u00c3 \u00a9 \u00e9 .".split()
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the")]
    old = Tokenizer(models.BPE({piece: id for id, piece in enumerate(pieces)}, merges))
    old.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    new = wordpiece("[PAD] [UNK] [CLS] [SEP] [MASK] the ##s ##\u00e9 .")
    sources = token_sources(old, new, SpecialIds(), SpecialIds())[5:]
    assert [[pieces[id] for id in each] for each in sources] == [["\u0120the"], ["s"], ["\u00c3", "\u00a9"], ["."]]


@pytest.mark.parametrize("shape", [
    ModernEncoder(layers=2, hidden_size=16, heads=2, intermediate_size=12),
    BertEncoder(layers=2, hidden_size=16, heads=2, intermediate_size=32, positions=20, next_sentence=True),
])  # fmt: skip
def test_a_moved_model_predicts_the_same_for_known_tokens(shape: ModernEncoder | BertEncoder) -> None:
    torch.manual_seed(0)
    old = shape.build(OLD.get_vocab_size()).eval()
    if old.decoder.bias is not None:
        torch.nn.init.normal_(old.decoder.bias)
    new = with_vocabulary(old, shape, old=OLD, new=NEW, old_special=OLD_SPECIAL, new_special=SpecialIds()).eval()
    assert new.vocabulary == NEW.get_vocab_size()
    # [CLS] gene ##tein [SEP] in either vocabulary
    before = old.logits(torch.tensor([[4, 1, 8, 5]]))
    after = new.logits(torch.tensor([[2, 6, 8, 3]]))
    assert torch.allclose(before[..., [0, 3, 4, 5, 6, 1, 8]], after[..., [0, 1, 2, 3, 4, 6, 8]], atol=1e-6)
    assert torch.allclose(after[..., 5], before[..., [7, 8]].mean(dim=-1), atol=1e-6)
    assert torch.equal(new.decoder.weight[5], old.decoder.weight[[7, 8]].mean(dim=0))
    others = {name for name, tensor in old.state_dict().items() if tensor.shape[0] != old.vocabulary}
    assert all(torch.equal(old.state_dict()[name], new.state_dict()[name]) for name in others)

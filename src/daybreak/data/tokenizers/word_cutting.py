"""Normalizers and pre-tokenizers of WordPiece tokenizers."""

from __future__ import annotations

from tokenizers import Regex, normalizers, pre_tokenizers

# Thai with Lao, Tibetan, Burmese, Khmer: blocks of scripts without spaces whose characters are not split either.
_UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
UNSPACED = frozenset(map(chr, (*range(0x0E00, 0x10A0), *range(0x1780, 0x1800))))
UNSPACED_FRACTION = 0.01
"""Minimum fraction of such characters in a text of such a script."""


def cramming_normalizer(cased: bool) -> normalizers.Normalizer:
    """Return the normalizer of Cramming (with NFKC if accents are kept)."""
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    fold = [normalizers.NFKC()] if cased else [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    ascii_only = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"[^\x00-\x7F]+"), "")]
    return normalizers.Sequence([*quotes, *fold, *ascii_only])


def word_cutter(*, runs: bool, unspaced: bool) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits at whitespace and punctuation, as BERT does.

    Args:
        runs: consecutive marks are one word (Cramming's expression \\w+|[^\\w\\s]+).
        unspaced: words of Thai, Lao, Tibetan, Burmese and Khmer, which are whole phrases, are split after 32 letters
            with their signs, because BERT treats a word of more than 100 characters as unknown.
    """
    cutter = pre_tokenizers.Whitespace() if runs else pre_tokenizers.BertPreTokenizer()
    if not unspaced:
        return cutter
    return pre_tokenizers.Sequence(
        [cutter, pre_tokenizers.Split(Regex(rf"(?:[{_UNSPACED}]\p{{M}}{{0,2}}){{1,32}}"), "isolated")]
    )

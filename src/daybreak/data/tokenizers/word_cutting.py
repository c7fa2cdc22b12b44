"""What BERT's kind of tokenizer does before it looks for pieces: folding characters, and cutting text into words."""

from __future__ import annotations

from tokenizers import Regex, normalizers, pre_tokenizers

# Thai with Lao, Tibetan, Burmese, Khmer: blocks of the scripts that part neither words nor characters.
_UNSPACED = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
UNSPACED = frozenset(map(chr, (*range(0x0E00, 0x10A0), *range(0x1780, 0x1800))))
UNSPACED_FRACTION = 0.01
"""A text is of such a script from this share of its characters on."""


def cramming_normalizer(cased: bool) -> normalizers.Normalizer:
    """Cramming's steps in their order (NFKC where accents stay)."""
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    fold = [normalizers.NFKC()] if cased else [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
    ascii_only = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"[^\x00-\x7F]+"), "")]
    return normalizers.Sequence([*quotes, *fold, *ascii_only])


def word_cutter(*, runs: bool, unspaced: bool) -> pre_tokenizers.PreTokenizer:
    """Cut at whitespace and punctuation, as BERT does.

    Args:
        runs: marks in a row are one word (Cramming's expression \\w+|[^\\w\\s]+).
        unspaced: words of Thai, Lao, Tibetan, Burmese and Khmer, which are whole phrases, are cut after 32 letters
            with their signs. BERT takes a word of over 100 characters for unknown, whatever is in it.
    """
    cutter = pre_tokenizers.Whitespace() if runs else pre_tokenizers.BertPreTokenizer()
    if not unspaced:
        return cutter
    return pre_tokenizers.Sequence(
        [cutter, pre_tokenizers.Split(Regex(rf"(?:[{_UNSPACED}]\p{{M}}{{0,2}}){{1,32}}"), "isolated")]
    )

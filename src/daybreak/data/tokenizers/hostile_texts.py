"""Texts that tell a tokenizer from one that is only nearly the same."""

from __future__ import annotations

import random
import unicodedata

from tokenizers import Tokenizer


def hostile_texts(tokenizer: Tokenizer, seed: int = 0) -> list[str]:
    """Texts on which libraries are known to differ, or might; always the same for the same vocabulary."""
    chance = random.Random(seed)
    texts = [f"a {token} b{token}" for token in sorted(tokenizer.get_vocab()) if token[:1] in "[<" and len(token) > 2][
        :40
    ]
    texts += ["[SEP]", "[CLS][PAD]", "x[MASK]y [UNK] [sep]", "", " ", "\n", "\n\n\n", " \n a \n\n\n b  ", "a\t\r\nb"]
    texts += ["a" * size + tail for size in (99, 100, 101, 1999, 2001, 9000, 12000) for tail in ("", " b", "\n\nb")]
    texts += ["it's I'LL they'd 'sa ''s x's' \"''``", "...!!! a_b __x__ --- ###a ##a #", "3.14 1,000 x12y 12" * 3]
    texts += [
        "a\u0301 e\u0301\u0323 \ufb01 \u212b",
        "\u200b\u200d\ufeff\u00ad a\u200bb",
        "\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea",
    ]
    texts += [
        "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645",
        "\u4f60\u597d\u3002a\u4f60b",
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35" * 40,
    ]
    texts += [
        "\u0939\u093f\u0928\u094d\u0926\u0940",
        "\u110b\u1161\u11ab \uc548",
        "\u03a3\u0391\u03a3 \u0130I\u0131",
        "\0 a\x01b\x7f \x85 \u2028",
    ]
    every = [chr(code) for code in range(0x80, 0x110000, 997) if not 0xD800 <= code <= 0xDFFF]
    texts += [" ".join(f"a{one} {one}b" for one in every[place : place + 40]) for place in range(0, len(every), 40)]
    usual = [chr(code) for code in range(0x20, 0x600) if unicodedata.category(chr(code)) != "Cc"]
    texts += ["".join(chance.choices(usual, k=60)) for _ in range(200)]
    letters = "etaoinshrdlu" + "".join(map(chr, range(0x21, 0x7F)))
    texts += [
        " ".join("".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(40)) for _ in range(100)
    ]
    count = tokenizer.get_vocab_size()
    pieces = [tokenizer.decode([id]) for id in chance.sample(range(count), min(400, count))]
    glued = ["".join(chance.choices(pieces, k=3)) for _ in range(1000)]
    lines = ["\n" * chance.randint(1, 3) + "word " * chance.randint(1, 400) for _ in range(60)]
    return [*texts, " ".join(glued), "".join(glued), "".join(lines)]

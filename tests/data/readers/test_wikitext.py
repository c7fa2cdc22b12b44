from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.data.readers.wikipedia import is_disambiguation, passages

ARTICLE = """{{Infobox person
| name = Anna {{nested|x}}
| list = [[A]], [[B|c]]
}}
'''Anna''' ({{lang-fi|Anna}}; born 1950) is a [[Finland|Finnish]] [[bus]]es fan.<ref name="a">{{cite|t=[[y]]}}</ref><ref
name=b/> She &amp; he.
The second line of it.<!-- hidden [[ -->

== Life ==
* item one
# item two
: indented
; term
{| class="wikitable"
! a !! b
|-
| {{x}} || [[y]]
{|
| nested
|}
|}
[[File:Foo.jpg|thumb|A caption with [[link|text]] and {{t}}]] After the [[file]] {{convert|5|km}}.

See [http://example.org a label] and [https://example.org]. -{zh-hans:\u4f60; zh-hant:\u59b3}- __NOTOC__
<nowiki>[[kept]]</nowiki>, <math>a^2</math> x<sup>2</sup>, 1 &lt; 2
<ul><li>one</li></ul><gallery>
File:a.jpg|b
</gallery>
----
!Kung is spoken.

[[Category:People]] [[Kategorie:Leute]]
[[de:Anna]] [[:Category:Fans]] [[Foo (bar)|]]
"""


def test_an_article_is_its_prose() -> None:
    assert passages(ARTICLE, ["file", "category", "kategorie"]) == [
        "Anna (born 1950) is a Finnish buses fan. She & he. The second line of it.",
        "After the file.",
        "See a label and. \u4f60 kept, x2, 1 < 2",
        "!Kung is spoken.",
        "Category:Fans",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a {{b", ["a b"]),
        ("a [[b\n\nc]] d", ["a b", "c d"]),
        ("a {{b [[c}} d", ["a d"]),
        ("a [[b {{c]] d", ["a b c d"]),
        ("a}} b]] c\n|}", ["a b c"]),
        ("{|\n| a {{b\n|}\nafter", ["after"]),
        ("{{box|\n{|\n| a\n}}\nafter", ["after"]),
        ("{{a|b|}}after", ["after"]),
        ("{{box\n|a={{{1|}}}\n|}}\nafter", ["after"]),
        ("{{box|\n{|\n|a\n|}}}\nafter", ["after"]),
        ("a <ref>b", ["a b"]),
        ("a <ref>b</ref> c <ref>d", ["a c d"]),
        ("a <!-- b", ["a"]),
        ("a |} b {| c", ["a |} b {| c"]),
        ("{<!-- -->{ a }<!-- -->} b", ["b"]),
        ("[<!-- -->[a]<!-- -->]", ["a"]),
        ("&lt;ref&gt; is a tag", ["ref> is a tag"]),
        ("l'''homme''' d''eau''", ["lhomme deau"]),
        ("[[a|b|c]]", ["b|c"]),
        ("x {{a}} , y ({{b}}, {{c}}) z", ["x, y z"]),
        ("&#99999999999; a", ["a"]),
        ("* \n... !?", []),
        ("a<br>b<p>c", ["a b c"]),
        ("[[Kuva:b.jpg|thumb|the caption]]A [[help:it|link]] and [[one|two]].", ["A link and two."]),
        ("\u4f60\u597d\uff08{{lang|en}}\uff0c1950\u5e74\uff09\u3002", ["\u4f60\u597d\uff081950\u5e74\uff09\u3002"]),
    ],
)
def test_broken_and_small(text: str, found: list[str]) -> None:
    assert passages(text) == found


SOUP = st.lists(
    st.sampled_from(
        """{{ }} [[ ]] { } [ ] {| |} | <ref> </ref> <ref/> <ref <!-- --> <nowiki> </nowiki> <table> </table> <ul> ''
        ''' = == * # : ; http:// [http:// File: -{ }- __ A a &lt; &lt;ref &#91; &#123; &#91;[ < > / ( ) ,""".split()
        + ["\n", " ", "\n\n", "\n{|", "\n|}", "\u4f60"]
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(SOUP)
def test_bracket_soup_leaves_no_markup(pieces: list[str]) -> None:
    for paragraph in passages("".join(pieces)):
        assert not any(mark in paragraph.lower() for mark in ("{{", "}}", "[[", "]]", "<ref", "</ref", "\n"))
        assert paragraph == paragraph.strip() != ""


HOSTILE = ["[[a|", "[[ {{", "\n{|", "{|\n", "<ref ", "( ", " "]
HOSTILE += "{{ }} [[ <ref> <nowiki> <!-- '' [// -{ __A &#9 <ul>".split()


@pytest.mark.parametrize("pattern", HOSTILE)
def test_time_grows_with_the_text_only(pattern: str) -> None:
    started = time.process_time()
    passages(pattern * 50_000 + "]]}}|}" * 10_000)
    assert time.process_time() - started < 5  # in quadratic time minutes


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("'''X''' may be:\n* a\n{{disambiguation|geo}}", True),
        ("{{ Hndis |X}}", True),
        ("{{T\u00e4smennyssivu}}", True),
        ("{{\u6d88\u6b67\u4e49}}", True),
        ("{{Chess disambiguation}}", True),
        ("text __DISAMBIG__", True),
        ("{{Infobox}} on disambiguation", False),
        ("{{" * 5, False),
    ],
)
def test_pages_that_list_meanings(text: str, answer: bool) -> None:
    assert is_disambiguation(text) == answer

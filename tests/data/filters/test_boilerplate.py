from __future__ import annotations

import pytest

from daybreak.core.errors import UserError
from daybreak.data.filters.boilerplate import REASON, BookLicence, boilerplate_fraction
from daybreak.data.filters.filter import Context

LICENCE = """You may copy it, give it away or use it under the terms of the Project Gutenberg License that comes with
it. If you do not agree to the terms of this agreement, you must cease using all copies of Project Gutenberg-tm
electronic works in your possession, and ask for a refund from the person who gave them to you. Most donations go to the
Project Gutenberg Literary Archive Foundation, which owns a copyright in the collection. There are no warranties."""
PROSE = "The old man went down to the river and sat for a while under the great tree before he turned home again. "


def test_a_licence_goes_and_a_book_with_a_licence_stays() -> None:
    evaluate = BookLicence().open(Context())
    assert evaluate(LICENCE) == evaluate(LICENCE.replace("\n", " ")) == evaluate(LICENCE.upper()) == REASON
    assert (
        evaluate("Digitized by Google") == evaluate("Produced by the Online Distributed Proofreading Team.") == REASON
    )
    assert evaluate(PROSE * 50) is None
    assert evaluate(PROSE * 50 + LICENCE) is None
    assert evaluate(LICENCE + PROSE) == REASON


def test_law_and_trade_without_the_plainest_phrases_stay() -> None:
    text = "The court held that copyright in the trademark gave no right to damages, donations or a refund. " * 20
    assert boilerplate_fraction(text) == 0
    assert BookLicence().open(Context())("The Gutenberg press changed Europe. " * 5) is None


def test_the_fraction_is_what_lies_around_the_phrases() -> None:
    far = "x" * 1000
    assert boilerplate_fraction(far + "hathitrust" + far) == pytest.approx(410 / 2010)
    assert boilerplate_fraction(far + "hathitrust copyright" + far) == pytest.approx(420 / 2020)
    assert boilerplate_fraction("hathitrust" + far + "copyright") == pytest.approx((210 + 209) / 1019)
    assert boilerplate_fraction("") == 0


def test_a_fraction_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="is not possible"):
        BookLicence(most=1.5)

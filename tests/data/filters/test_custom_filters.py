from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.data.filters.custom_filters import MOST_REASONS, FilterFailed, custom_filters
from daybreak.data.filters.filter import Context
from daybreak.data.pipeline.preprocessing import Preprocessing

SHORT = """
from dataclasses import dataclass
from daybreak.data.filters.filter import DocumentFilter

@dataclass(frozen=True, kw_only=True)
class Short(DocumentFilter):
    least: int = 5

    def why(self):
        return "short documents"

    def open(self, context):
        return lambda text: "too short" if len(text) < self.least else None

steps = (Short(), Short(least=9))
"""


JUDGE = 'return lambda text: "too short" if len(text) < self.least else None'


def written(folder: Path, code: str = SHORT, name: str = "mine.py") -> str:
    (folder / name).write_text(code, encoding="utf-8")
    return str(folder / name)


def changed(old: str, new: str) -> str:
    assert old in SHORT
    return SHORT.replace(old, new)


def test_filters_of_a_file_decide_as_it_says(tmp_path: Path) -> None:
    first, second = custom_filters(written(tmp_path))
    assert [step.open(Context())("seven..") for step in (first, second)] == [None, "too short"]
    assert first.name == "Short" and first.passes == 0
    assert first.why() == f"short documents (mine.py, {first.digest})"


def test_a_step_travels_as_the_path_of_its_file(tmp_path: Path) -> None:
    """Where it arrives, its class is not known; the file is read there."""
    step = custom_filters(written(tmp_path))[1]
    sent = pickle.dumps(step)
    assert b"Short" not in sent and pickle.loads(sent) == step
    assert pickle.loads(sent).open(Context())("seven..") == "too short"


def test_the_digest_knows_the_code_and_the_values(tmp_path: Path) -> None:
    def digest(code: str) -> str:
        return custom_filters(written(tmp_path, code))[0].digest

    assert digest(SHORT) == digest(SHORT)
    assert len({digest(SHORT), digest(SHORT + "# more\n"), digest(changed("least=9", "least=8"))}) == 3
    code = "import os\n" + changed("Short(least=9)", 'Short(least=int(os.environ["LEAST"]))')
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LEAST", "3")
        three = digest(code)
        patched.setenv("LEAST", "4")
        assert digest(code) != three


def test_a_file_that_changed_on_the_way_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path)
    (step, _) = custom_filters(file)
    written(tmp_path, changed("least: int = 5", "least: int = 6"))
    with pytest.raises(UserError, match=r"mine.py' changed while the text was read"):
        step.open(Context())


def test_own_steps_stand_behind_the_case_and_before_what_looks_at_all_documents(tmp_path: Path) -> None:
    steps = Preprocessing(preset="web", filters=written(tmp_path), evaluation=("a.tsv",)).all_filters()
    names = [step.name for step in steps[-5:]]
    assert names == ["FineWebQuality", "Short", "Short", "EvaluationText", "NearDuplicates"]


def test_the_identity_of_a_preprocessing_without_own_filters_is_what_it_was() -> None:
    plain, beside = Preprocessing().identity(())
    assert "filters" not in plain and beside == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("a = 1\n", "defines no 'steps'"),
        ("steps = ()\n", "defines no 'steps'"),
        (changed("steps = (Short(), Short(least=9))", "steps = Short()"), "defines no 'steps'"),
        (changed("Short(), Short(least=9)", "Short(), Short"), "has <class 'steps_mine.Short'> in its steps"),
        (changed("Short(), Short(least=9)", "'Short',"), "has 'Short' in its steps, which is not a DocumentFilter"),
        (changed("Short(least=9)", "Short(lest=9)"), "line 15: TypeError: .*unexpected keyword argument 'lest'"),
        (changed("def open", "def opens"), "line 15: TypeError: .*Short with.* abstract method '?open"),
        (changed('return "short documents"', "pass"), "Short.why must return the purpose"),
        (changed('return "short documents"', "return 1 / 0"), "line 10: ZeroDivisionError: division by zero"),
        (changed("least: int = 5", "least: object = frozenset()"), "field of its filters is not a plain value"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_words(code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as error:
        custom_filters(written(tmp_path, code))
    assert "mine.py'" in error.value.sentence and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [("return None", "Short.open does not return a function"), ("return {}['a']", "line 13: KeyError: 'a'")],
)
def test_a_step_that_does_not_open_is_refused(body: str, said: str, tmp_path: Path) -> None:
    (step, _) = custom_filters(written(tmp_path, changed(JUDGE, body)))
    with pytest.raises(UserError, match=said):
        step.open(Context())


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("1 / 0", "line 13: ZeroDivisionError: division by zero"),
        ("text.missing()", "line 13: AttributeError: 'str' object has no attribute 'missing'"),
        ("True", "Short returns True, neither None nor a reason"),
        ("''", "Short returns '', neither"),
        ("'a\\nb'", "neither"),
        ("'a' * 101", "neither"),
        ("text", f"Short gives more than {MOST_REASONS} different reasons, such as 'a{MOST_REASONS}'"),
    ],
)
def test_a_filter_that_fails_names_the_document(verdict: str, said: str, tmp_path: Path) -> None:
    (step, _) = custom_filters(written(tmp_path, changed('"too short" if len(text) < self.least else None', verdict)))
    evaluate = step.open(Context())
    with pytest.raises(FilterFailed, match=said) as failed:
        for number in range(MOST_REASONS + 1):
            evaluate(f"a{number}")
    told = failed.value.on("document 3 of 'b.txt'")
    assert told.sentence.startswith(f"'{tmp_path / 'mine.py'}' failed on document 3 of 'b.txt': ")


def test_an_error_that_a_filter_words_itself_and_a_full_memory_pass(tmp_path: Path) -> None:
    for raised, kind in (("MemoryError()", MemoryError), ("UserError('No.', 'Yes.')", UserError)):
        body = f"def evaluate(text):\n            raise {raised}\n        return evaluate"
        code = "from daybreak.core.errors import UserError\n" + changed(JUDGE, body)
        (step, _) = custom_filters(written(tmp_path, code))
        with pytest.raises(kind):
            step.open(Context())("text")

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.core.user_code import cause, import_file, read_code


def module_of(path: Path, text: str) -> object:
    path.write_text(text, encoding="utf-8")
    return import_file(path, read_code(path), "mine")


def test_what_a_file_defines_is_what_stands_in_it_now(tmp_path: Path) -> None:
    """Byte code of an older version, of the same length and from the same second, is not believed; none is left."""
    path = tmp_path / "a.py"
    for value in (1, 2):
        found = module_of(path, f"value = {value}\n")
        os.utime(path, ns=(10**18, 10**18))
        assert found.value == value and found.__file__ == str(path)  # type: ignore[attr-defined]
    assert [one.name for one in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("a = 1\nb = c\n", "line 2: NameError: name 'c' is not defined"),
        ("a = 1\n\ndef f(:\n", "line 3: SyntaxError: "),
        ("import nothing_of_that_name\n", "line 1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError: "),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("raise ValueError\n", "line 1: ValueError."),
        ("a = '\0'\n", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_what_goes_wrong_in_a_file_is_reported_with_its_line(text: str, output: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        module_of(tmp_path / "a.py", text)
    assert error.value.sentence.startswith(f"'{tmp_path / 'a.py'}' cannot be used: {output}")
    assert "\n" not in str(error.value)


def test_what_the_file_itself_refuses_it_says_in_its_own_words(tmp_path: Path) -> None:
    code = "from daybreak.core.errors import UserError\nraise UserError('It cannot be.', 'Do otherwise.')\n"
    with pytest.raises(UserError, match=r"^It cannot be. Do otherwise.$"):
        module_of(tmp_path / "a.py", code)


def test_what_is_no_file_of_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a.py' cannot be read: no such file or directory"):
        read_code(tmp_path / "a.py")
    with pytest.raises(UserError, match="cannot be read: is a directory"):
        read_code(tmp_path)
    with pytest.raises(UserError, match=r"a.txt' is not a Python file"):
        module_of(tmp_path / "a.txt", "a = 1\n")


def test_the_line_is_the_innermost_one_of_the_file(tmp_path: Path) -> None:
    text = "import json\n\ndef inner():\n    json.loads('{')\n\ndef outer():\n    inner()\n"
    module = module_of(tmp_path / "a.py", text)
    try:
        module.outer()  # type: ignore[attr-defined]
    except ValueError as error:
        assert cause(error, tmp_path / "a.py").startswith("line 4: JSONDecodeError: ")
        assert cause(error, tmp_path / "b.py").startswith("JSONDecodeError: ")
    else:
        raise AssertionError("it must fail")

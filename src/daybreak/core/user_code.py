"""Import of a user's Python files: a recipe, or preparation steps. Errors are reported with their line."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from daybreak.core.errors import UserError, reason


def import_file(path: Path, code: bytes, prefix: str) -> ModuleType:
    """Run a Python file, and return its module.

    Args:
        code: content of the file. It is compiled here, so that no old byte code is used and none is written.
        prefix: the module's name is the prefix and the file's name; an existing module of this name is replaced.
    """
    specification = importlib.util.spec_from_file_location(f"{prefix}_{path.stem}", path)
    if specification is None:
        raise UserError(f"'{path}' is not a Python file.", "Give one that ends with .py.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except (UserError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"'{path}' cannot be used: {cause(error, path)}.", "Correct that file.") from None
    return module


def read_code(path: Path) -> bytes:
    """Read the content of a Python file."""
    try:
        return path.read_bytes()
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        raise UserError(f"'{path}' cannot be read: {why}.", "Check the path.") from None


def cause(error: BaseException, path: Path) -> str:
    """The error in the file ``path`` and its line, for use inside a sentence."""
    line, message = None, reason(error) if isinstance(error, Exception) else str(error)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, message = error.lineno, error.msg
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == str(path):
            line = number
    name = type(error).__name__
    return (f"line {line}: " if line else "") + (name if message in ("", name) else f"{name}: {message}")

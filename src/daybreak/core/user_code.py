"""Python files of the user's: a recipe, or steps of the preparation. What goes wrong in one is told with its line."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from daybreak.core.errors import UserError, reason


def import_file(path: Path, code: bytes, prefix: str) -> ModuleType:
    """Run a Python file, and return what it defines.

    Args:
        code: what is in the file. It is compiled here, so that no older byte code can stand in for it, and none is left
            beside it.
        prefix: the module is called that and the file's name; another of the same name takes its place.

    Raises:
        UserError: it raises an exception; the line is named.
    """
    specification = importlib.util.spec_from_file_location(f"{prefix}_{path.stem}", path)
    if specification is None:
        raise UserError(f"'{path}' is no Python file.", "Give one that ends with .py.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except (UserError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"'{path}' cannot be used: {cause(error, path)}.", "Mend it there.") from None
    return module


def read_code(path: Path) -> bytes:
    """
    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        raise UserError(f"'{path}' cannot be read: {why}.", "Check the path.") from None


def cause(error: BaseException, path: Path) -> str:
    """What went wrong in the file ``path``, and in which of its lines, fit to stand inside a sentence."""
    line, said = None, reason(error) if isinstance(error, Exception) else str(error)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, said = error.lineno, error.msg
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    name = type(error).__name__
    return (f"line {line}: " if line else "") + (name if said in ("", name) else f"{name}: {said}")

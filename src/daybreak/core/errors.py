"""Errors: mistakes that the user can correct, and events that end a run. Any other exception is a bug in Daybreak.

Exception
  +-- UserError    one sentence, one remedy, exit code 2
  |     +-- TooLate  the request does not fit into the time that is left
  |     +-- ReadFailed  the text could not be read now; finished work is kept
  |     +-- WriteFailed  a file or folder could not be written; finished work is kept
  +-- Interrupted  a signal stopped the run; its state is saved; exit code 128 + signal
  +-- PeerLost     another process of the run is gone; this one can only save and exit
"""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can correct: printed as one sentence and one remedy, without a traceback.

    Args:
        sentence: what is wrong, with the name of the file, field or value. Ends with a full stop.
        remedy: an instruction to correct it. Ends with a full stop.
    """

    def __init__(self, sentence: str, remedy: str):
        super().__init__(f"{sentence} {remedy}")
        self.sentence = sentence
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str]]:
        return type(self), (self.sentence, self.remedy)  # so that it travels between processes


class TooLate(UserError):
    """The request does not fit into the time that is left; no part of it was started."""


class TooShort(UserError):
    """A time budget ends before the first steps of a run."""


class ReadFailed(UserError):
    """The text could not be read for a reason that may pass, such as a lost connection; finished work is kept."""


class WriteFailed(UserError):
    """A file or folder could not be written, such as on a full disk; finished work is kept."""


class Interrupted(Exception):
    """Raised after a signal, when everything worth keeping is on disk."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        return 128 + self.signal_number


class PeerLost(Exception):
    """Another process of this run ended or is cut off, so the ranks can no longer communicate.

    Args:
        sentence: description of the loss. Ends with a full stop.
    """

    def __init__(self, sentence: str):
        super().__init__(sentence)
        self.sentence = sentence


def check_option(name: str, value: float, valid: bool, wanted: str) -> None:
    """Raise UserError unless ``valid``; ``wanted`` completes "Give a number"."""
    if not valid:
        raise UserError(f"{name} is {value}.", f"Give a number {wanted}.")


def reason(error: Exception) -> str:
    """The first line of a library's error message without its full stop, for use inside a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".")

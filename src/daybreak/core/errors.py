"""What can go wrong: the user can mend it, the world ended the run, or, by any other exception, it is our bug.

Exception
  +-- UserError    one sentence, one remedy, exit code 2
  |     +-- TooLate  what was asked for does not fit into the time that is left
  +-- Interrupted  a signal asked us to leave; state is saved; exit code 128 + signal
  +-- PeerLost     another process of the run is gone; this one can only save and leave
"""

from __future__ import annotations


class UserError(Exception):
    """A fault that the user can mend: printed as one sentence and one remedy, without a traceback.

    Args:
        sentence: what is wrong, naming the file, field or value. Ends with a full stop.
        remedy: what to do about it, as an instruction. Ends with a full stop.
    """

    def __init__(self, sentence: str, remedy: str):
        super().__init__(f"{sentence} {remedy}")
        self.sentence = sentence
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str]]:
        return type(self), (self.sentence, self.remedy)  # so that it travels between processes


class TooLate(UserError):
    """What was asked for does not fit into the time that is left; nothing of it was begun."""


class Interrupted(Exception):
    """Raised after a signal was obeyed and everything worth keeping is on disk."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        return 128 + self.signal_number


class PeerLost(Exception):
    """Another process of this run ended or is cut off: nothing can be agreed on any more.

    Args:
        sentence: what is known of it. Ends with a full stop.
    """

    def __init__(self, sentence: str):
        super().__init__(sentence)
        self.sentence = sentence


def reason(error: Exception) -> str:
    """The first line of what a library says went wrong, without its full stop: fit to stand inside a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".")

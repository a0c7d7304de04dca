"""The errors a caller can meet, told apart by who has to act."""

from dataclasses import dataclass


class HeadwayError(Exception):
    """Base of every error Headway raises on purpose; its text is fit to be shown to a user."""


class CallerError(HeadwayError):
    """The core was driven against its rules; a fault of the program, and no state has changed."""


class ExecutorError(HeadwayError):
    """An executor reported something impossible (an unknown plan, an old epoch, tokens nobody asked for)."""


class LawError(HeadwayError):
    """Conservation, single residence or liveness failed; the message carries every term of the equation."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a user's input.

    ``where`` names the field as a dotted path (``arms.budget-512.batch.token_budget``) or the place in a file
    (``line 17``); ``message`` says what is wrong and what would be right.
    """

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class InputError(HeadwayError):
    """A user's input was refused as a whole; ``problems`` lists every reason."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))

"""Exceptions that the command line prints as one sentence."""

LONGEST = 1000  # characters of a sentence; a file may hold values of any length


def printable(text: str) -> str:
    """One line without control characters: names of files and arrays may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class InputError(Exception):
    """Bad input. The message is one sentence: the file, the field, what was found, what was expected.

    The command line prints it and exits with code 2; it is raised before any work starts.
    """

    def __init__(self, message: str) -> None:
        if len(message) > LONGEST:
            message = f"{message[: LONGEST // 2]} [...] {message[-LONGEST // 4 :]}"
        super().__init__(printable(message))


class Interrupted(Exception):
    """A job was asked to stop, and everything is saved: exit code 130."""


class WorkFailed(RuntimeError):
    """A process that was to simulate or train died, or its environment raised an exception: exit code 1."""

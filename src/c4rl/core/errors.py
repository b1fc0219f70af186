"""The one exception that means: the user can fix this."""


class InputError(Exception):
    """Bad input. The message is one sentence: the file, the field, what was found, what was expected.

    The command line prints it and exits with code 2; it is raised before any work starts.
    """

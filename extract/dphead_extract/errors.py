"""Define the errors of the extraction side.

Their messages are for the data holder: some name private files, rows or counts.
"""


class FormatError(ValueError):
    """Report a features file, or data for one, that violates the format.

    The command line exits with code 2.
    """


class ExtractError(FormatError):
    """Report a source, weights or options that extraction or import cannot use.

    The command line exits with code 2.
    """


class ResumableError(ExtractError):
    """Report a run that stopped for an external reason, such as a full disk.

    The run can be resumed from the rows that it wrote.
    """

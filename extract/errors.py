"""Errors of the extraction side.

Their messages may name public values only: sizes, names of options, file formats.
"""


class FormatError(ValueError):
    """A features file, or what was to be written into one, breaks the format.

    The command line exits with code 2.
    """


class ExtractError(FormatError):
    """Images, weights or options that extraction cannot use.

    The command line exits with code 2.
    """


class ResumableError(ExtractError):
    """The run stopped for an outer reason (a full disk, a file that went away); what
    was written can be resumed.
    """

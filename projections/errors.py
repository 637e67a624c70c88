"""The exit codes of the programs, and the base class of their errors.

The codes mean the same as those of ``poste`` (``poste --help`` lists them), which the projections
do not import; ``tests/projections/test_exit_codes.py`` compares them.
"""

from __future__ import annotations

from typing import ClassVar, Final

FINDING: Final = 1
"""Done, but the check found something wrong, or its subject does not exist."""
USAGE: Final = 2
"""The command line is wrong; nothing was done."""
UNREACHABLE: Final = 3
"""The export, the target or Spark cannot be reached."""
UNSAFE: Final = 4
"""The export or the tables are not safe to use as they are."""
BUSY: Final = 5
"""Another process writes to the same place; what was done before that is kept."""
UNWRITTEN: Final = 6
"""A disk had no room for the output; the program's files may be written all the same."""
INTERNAL: Final = 70
"""A fault of the program itself."""


class ProjectionError(Exception):
    """Base class of errors that a program reports in one sentence; never raised itself."""

    exit_code: ClassVar[int]

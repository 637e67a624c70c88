"""The entry point of ``poste``: an interrupt ends it without a traceback, also while it imports.

Until this module can catch an interrupt, it imports nothing that Python has not loaded by then.
"""

import os
import sys


def main() -> None:
    """Run the command line (``http_edge.cli.main``) and exit."""
    # Programs given as text, also those of Python's own helpers, would import from the current
    # directory, where others may write.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from importlib import import_module  # noqa: PLC0415 - see above

        import_module("http_edge.cli.main").main()
    except KeyboardInterrupt:
        sys.exit(interrupted())


def interrupted() -> int:
    """Say on stderr, if that is open, that an interrupt ended the command; return its exit code."""
    try:  # noqa: SIM105 - contextlib may not have been loaded
        sys.stderr.write("poste: interrupted\n")
    except (AttributeError, OSError):
        pass
    return 130  # 128 + SIGINT, as shells have it

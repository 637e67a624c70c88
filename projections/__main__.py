"""Runs the program by ``python -m projections …``.

As with ``poste``, an interrupt ends it without a traceback, also while it imports.
"""

import sys
from contextlib import suppress


def main() -> None:
    """Run the command line and exit."""
    interrupted = 130  # 128 + SIGINT, as shells have it
    code: str | int | None = interrupted
    try:
        from projections.program import projections  # noqa: PLC0415 - see above

        projections(prog_name="python -m projections")
    except KeyboardInterrupt:
        pass
    except SystemExit as ended:
        code = ended.code
    if code == interrupted:
        with suppress(AttributeError, OSError):  # stderr may be closed
            sys.stderr.write("projections: interrupted\n")
    sys.exit(code)


if __name__ == "__main__":
    main()

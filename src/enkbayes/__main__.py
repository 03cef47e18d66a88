"""The program: `enkbayes`, or `python -m enkbayes`."""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it in one sentence, while it is still being loaded too."""
    _open_standard_streams()
    try:
        from enkbayes.cli.app import main as run

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("error: interrupted\n")
        sys.exit(130)


def _open_standard_streams() -> None:
    """Put the null device where standard streams are closed: otherwise the next file to be opened would take their
    numbers, and libraries would print into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)


if __name__ == "__main__":
    main()

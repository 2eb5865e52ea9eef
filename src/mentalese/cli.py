"""The command line: `mentalese COMMAND ...`.

Errors that users can fix end in a message on standard error and exit code 2: tyro's message for unknown options, and
one sentence for all others. Models are imported when a command needs them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from mentalese.commands import COMMANDS
from mentalese.commands.options import find_command, read_all, read_options
from mentalese.errors import InputError, nearest
from mentalese.training.signals import stop_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (2 for bad input, 128 + the signal's number when interrupted)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with stop_signals() as signals, signals.at_once():  # so that incomplete files are removed
            _run(words)
            _flush()  # here errors of writing end in a sentence
    except SystemExit as stop:
        return int(stop.code or 0)
    except InputError as error:
        return _fail(error, 2)
    except FloatingPointError as error:
        return _fail(error, 1)
    except KeyboardInterrupt as stop:
        print(f"mentalese: {str(stop) or 'interrupted'}", file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    except BrokenPipeError:  # `mentalese list | head`
        _drop_output()
        return 0
    except OSError as error:
        try:
            _flush()
        except OSError:
            _drop_output()
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG):
            raise
        return _fail(f"{error.filename or 'writing'}: {error.strerror}; make room or use another place", 2)
    return 0


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        read_all(["--help"])
    elif words[0] == "--version":
        from mentalese import __version__

        print(__version__)
    elif words[0] not in COMMANDS:
        raise InputError(f"there is no command {words[0]!r}{nearest(words[0], COMMANDS)} (`mentalese --help`)")
    else:
        module, options = find_command(words[0])
        if hasattr(module, "run_words"):  # its options depend on a recipe, which the words name
            module.run_words(words[1:])
        else:
            module.run(read_options(options, words[1:], words[0]))


def _flush() -> None:
    if sys.stdout is not None:  # closed from the start
        sys.stdout.flush()


def _drop_output() -> None:
    """Drop what standard output could not take: Python would write it at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: object, code: int) -> int:
    print(f"mentalese: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return code

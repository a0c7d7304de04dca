"""The ``headway`` command: its options and their help. What commands do lives one level up.

Results go to standard output, everything else to standard error. Exit status: that of the verdict (0 accept, 10 tune,
20 reject, 30 not comparable) where there is one, else 0; 1 for an error, 2 for wrong usage or a trace that
``trace inspect`` refuses, 130 after Ctrl-C.
"""

import sys

from typer.exceptions import Abort, TyperException

from headway.cli.app import app
from headway.cli.output import complain
from scheduler_core.types.errors import HeadwayError

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit status. No error a person can cause ends in a traceback."""
    try:
        status = app(args=arguments, prog_name="headway", standalone_mode=False)
    except TyperException as error:  # wrong usage, told with the command's usage line
        context = getattr(error, "ctx", None)
        if context is not None:
            print(context.get_usage(), file=sys.stderr)
        complain(error.format_message())
        return error.exit_code
    except (Abort, KeyboardInterrupt):
        complain("stopped")
        return INTERRUPTED
    except HeadwayError as error:
        complain(str(error))
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        complain(f"{error.filename or 'file system'}: {error.strerror or error}")
        return 1
    return status if isinstance(status, int) else 0

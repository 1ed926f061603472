"""The entry point of the console script and of ``python -m trtbuild``.

Both ask the null build first. For `trtbuild build`, they then ask a running `trtbuild watch` of the project. If neither has
the answer, they import the whole program."""

import sys

# `from trtbuild import null_build` would call `trtbuild.__getattr__`, and thus import importlib.
from trtbuild.null_build import answer


def main() -> None:
    """Run the command line and exit. docs/terminal.md lists the exit statuses."""
    try:
        status = answer(sys.argv[1:])
        if status is None and "build" in sys.argv[1:]:
            from trtbuild.driver.watching import client

            status = client.answer(sys.argv[1:])
        if status is None:
            from trtbuild.cli.main import main as whole_program

            whole_program()
    except KeyboardInterrupt:  # before `whole_program` was called, which handles later interrupts itself
        sys.exit(130)
    sys.exit(status)


if __name__ == "__main__":
    main()

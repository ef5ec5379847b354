"""The command `tokencli`: makes the streams safe to print on, runs the command line, turns errors into one line and a code."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    from tokencli.cli.terminal import Terminal

    terminal = Terminal.of_process()
    from tokencli.cli.commands import run_command_line

    sys.exit(run_command_line(sys.argv[1:], terminal))


if __name__ == "__main__":
    main()

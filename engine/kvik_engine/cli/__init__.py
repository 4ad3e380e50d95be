"""The console script `kvik`: one file a command; what a command needs is imported inside it.

A command module has `HELP`, `add_arguments(parser)` and `run(arguments) -> exit code`. Other packages add commands by
the entry-point group `kvik.commands`, whose values are such modules.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import sys
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TextIO

from kvik_engine import __version__
from kvik_engine.errors import StartError
from kvik_engine.exits import EXIT_NO_READER, EXIT_START_ERROR, report_start_error

_COMMANDS = {
    name: f"kvik_engine.cli.{name}" for name in ("serve", "plan", "simulate", "bench", "model", "drain", "version")
}

_WRONG_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code. Quiet when nobody reads what it prints any more, as in `kvik plan ... | head`."""
    serving = False
    try:
        try:
            options = _options(sys.argv[1:] if arguments is None else arguments)
            serving = options.chosen_command == "serve"  # its pipes and sockets are many, and its output is no answer
            return _run(options)
        finally:
            sys.stdout.flush()  # here, where it can be caught, also behind --help
    except BrokenPipeError:
        if serving or not _unread(sys.stdout):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush fails, too
        return EXIT_NO_READER


def _unread(stream: TextIO) -> bool:
    """Whether it is a pipe or a socket that nobody can read any more."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _options(arguments: list[str]) -> argparse.Namespace:
    if not arguments:
        parser = _parser(_load([*_COMMANDS, *_extra()]))
        parser.print_help(sys.stderr)
        parser.exit(_WRONG_USAGE)
    chosen = _load([next((a for a in arguments if not a.startswith("-")), "")])
    parser = _parser(chosen or _load([*_COMMANDS, *_extra()]))
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
    except StartError as error:
        report_start_error(error)
        return EXIT_START_ERROR
    return code


def _parser(commands: dict[str, ModuleType]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvik", description="Serve large language models.")
    parser.add_argument("--version", action="version", version=f"kvik {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="chosen_command")
    for name, module in commands.items():
        command = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _load(names: list[str]) -> dict[str, ModuleType]:
    """The modules of `names`; unknown names are left out."""
    loaded = {name: importlib.import_module(_COMMANDS[name]) for name in names if name in _COMMANDS}
    if len(loaded) < len(names):
        extra = _extra()
        loaded |= {name: extra[name].load() for name in names if name in extra}
    return loaded


def _extra() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="kvik.commands")}


if __name__ == "__main__":
    sys.exit(main())

"""The console script `kubectl-kvik`, which kubectl runs as `kubectl kvik`: one file a command.

Exit codes: 0 done, 1 not done (one line on standard error says why), 2 wrong usage, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

from kvik_kubectl import drain, explain, history, rollback, top, upgrade
from kvik_kubectl.cluster import Cluster
from kvik_kubectl.connection import connect
from kvik_kubectl.errors import PluginError
from kvik_kubectl.session import Session

_COMMANDS = {
    "top": top,
    "explain": explain,
    "history": history,
    "upgrade": upgrade,
    "rollback": rollback,
    "drain": drain,
}
_WRONG_USAGE = 2
_INTERRUPTED = 130


def main() -> int:
    return run(sys.argv[1:], _session)


def run(arguments: Sequence[str], session_of: Callable[[argparse.Namespace], Session]) -> int:
    """The exit code. argparse ends the process itself on --help and wrong usage."""
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(_WRONG_USAGE)
    options = parser.parse_args(arguments)
    try:
        options.command(options, session_of(options))
    except PluginError as error:
        print(f"kubectl kvik: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush fails, too
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _session(options: argparse.Namespace) -> Session:
    user_agent = f"kubectl-kvik/{version('kvik-kubectl')}"
    kubeconfig = options.kubeconfig or os.environ.get("KUBECONFIG") or None
    return Session(Cluster(connect(kubeconfig, options.context, options.namespace, user_agent)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl kvik", description="See, upgrade, roll back and drain inference pools.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"kubectl-kvik {version('kvik-kubectl')}")
    _add_target(parser, None)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        _add_target(command, argparse.SUPPRESS)
        command.set_defaults(command=module.run)
    return parser


def _add_target(parser: argparse.ArgumentParser, default: str | None) -> None:
    """As kubectl has them, before or after the command."""
    group = parser.add_argument_group("cluster")
    group.add_argument("-n", "--namespace", default=default, help="default: the context's")
    group.add_argument("--context", default=default, help="of the kubeconfig; default: the current one")
    group.add_argument("--kubeconfig", default=default, metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config")


if __name__ == "__main__":
    sys.exit(main())

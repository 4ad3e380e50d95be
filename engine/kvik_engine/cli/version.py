"""Print the version."""

from __future__ import annotations

import argparse

from kvik_engine import __version__

HELP = "print the version"


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """None."""


def run(_arguments: argparse.Namespace) -> int:
    print(f"kvik {__version__}")
    return 0

"""`python -m kvik_engine` is the console script `kvik`."""

import sys

from kvik_engine.cli import main

sys.exit(main())

"""Flags and environment -> OperatorConfig -> app.run."""

import gc
import sys

from kvik_operator import app, config
from kvik_operator.telemetry import logging


def main() -> int:
    try:
        settings = config.from_process()
    except config.ConfigError as error:
        print(f"kvik-operator: {error}", file=sys.stderr)
        return 2
    logging.configure(settings.log_level)
    status = app.run(settings)
    gc.freeze()  # or the interpreter's last collection walks all that the store held: seconds, of the 15 that a pod has
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Numbers as Kubernetes quantities. Pure."""

import math
from decimal import ROUND_CEILING, Decimal


def format_quantity(value: float) -> str:
    """`3`, `437m`: in thousandths, rounded up as Kubernetes itself does, so that something never reads as nothing.

    Raises:
        ValueError: not a number, or not a finite one.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is no quantity")
    # The number as it is written: in binary, 0.1 lies above a tenth, and would be rounded up to 101m.
    thousandths = int((Decimal(repr(value)) * 1000).to_integral_value(ROUND_CEILING))
    whole, rest = divmod(thousandths, 1000)
    return f"{thousandths}m" if rest else str(whole)

"""Tries what Kvik says of itself, on the real engine: `make claims`, or `python -m bench.claims --only ID ...`.

Each claim becomes a line of bench/results/claims.jsonl, and all of them the page docs/claims.md. Exit code 1 when a
claim that was tried does not hold.
"""

import signal
import sys
import time
from typing import Any

import torch

from bench import kept_lines
from bench.claims import batching, chat, chunking, fork, ladder, paging, prefix, sharing, swapping
from bench.claims.claim import Claim, line
from bench.claims.engine import demo_runner
from bench.claims.page import PAGE, RESULTS, page
from bench.machine import machine_now
from kvik_engine import __version__

CLAIMS: tuple[Claim, ...] = (
    *batching.CLAIMS,
    *prefix.CLAIMS,
    *chat.CLAIMS,
    *chunking.CLAIMS,
    *swapping.CLAIMS,
    *fork.CLAIMS,
    *sharing.CLAIMS,
    *paging.CLAIMS,
    *ladder.CLAIMS,
)


def main() -> int:
    arguments = kept_lines.options("bench.claims", __doc__, [claim.id for claim in CLAIMS])
    results: list[dict[str, Any]] = []
    if not arguments.page:
        results = try_claims([claim for claim in CLAIMS if claim.id in arguments.only])
    PAGE.write_text(page(kept_lines.read(RESULTS)))
    return 0 if all(result["ok"] for result in results) else 1


def try_claims(claims: list[Claim]) -> list[dict[str, Any]]:
    """One after the other; each line is kept as soon as it is there."""
    # One thread, so that CPU time is the time of a machine with nothing else to do.
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that engines end too
    results = []
    for claim in claims:
        started, described = time.monotonic(), machine()
        result = line(claim, claim.measure(), described)
        kept_lines.keep(RESULTS, result)
        results.append(result)
        verdict = "holds" if result["ok"] else f"FAILS: {result['reason']}"
        print(f"{claim.id:>3} {claim.what}: {result['baseline']} -> {result['ours']} {claim.unit}")
        print(f"    ratio {result['ratio']}, wanted {claim.wanted}: {verdict} ({time.monotonic() - started:.0f} s)")
        print(f"    {result['figures']}", flush=True)
    return results


def machine() -> dict[str, Any]:
    """What the figures are taken on, now."""
    return machine_now() | {"dtype": demo_runner().facts.dtype, "version": __version__}


if __name__ == "__main__":
    sys.exit(main())

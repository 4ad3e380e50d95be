"""Merging news that could not be delivered yet, so that a slow reader gets one piece for many steps.

The older piece is consumed: its lists grow in place, so that tokens are not copied again and again.
"""

from __future__ import annotations

import msgspec

from kvik_engine.ipc.messages import Frame, Output


def merge_frames(old: Frame, new: Frame) -> Frame:
    """Both frames as one: events in order, tokens of a choice joined, the newer counters."""
    old.queued.extend(new.queued)
    old.refused.extend(new.refused)
    places = {(output.request_id, output.choice): i for i, output in enumerate(old.outputs)}
    for output in new.outputs:
        place = places.get((output.request_id, output.choice))
        if place is None:
            old.outputs.append(output)
        else:
            old.outputs[place] = merge_outputs(old.outputs[place], output)
    return msgspec.structs.replace(old, stats=new.stats)


def merge_outputs(old: Output, new: Output) -> Output:
    """Two pieces of news of one choice as one."""
    old.tokens.extend(new.tokens)
    return msgspec.structs.replace(new, tokens=old.tokens, cached_tokens=max(old.cached_tokens, new.cached_tokens))

"""Merging frames that could not be sent yet, so that a slow API process gets one frame for many steps."""

from __future__ import annotations

import msgspec

from kvik_engine.ipc.messages import Frame, Output


def merge_frames(old: Frame, new: Frame) -> Frame:
    """Both frames as one: events in order, tokens of a choice joined, the newer counters."""
    outputs: dict[tuple[int, int], Output] = {(o.request_id, o.choice): o for o in old.outputs}
    for output in new.outputs:
        key = (output.request_id, output.choice)
        known = outputs.get(key)
        outputs[key] = output if known is None else merge_outputs(known, output)
    return Frame(
        queued=[*old.queued, *new.queued],
        refused=[*old.refused, *new.refused],
        outputs=list(outputs.values()),
        stats=new.stats,
    )


def merge_outputs(old: Output, new: Output) -> Output:
    """Two pieces of news of one choice as one."""
    return msgspec.structs.replace(
        new, tokens=[*old.tokens, *new.tokens], cached_tokens=max(old.cached_tokens, new.cached_tokens)
    )

"""Opens the disk cache below the swap space, if one is asked for: where, for which content, and with which worker."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from kvik_engine import __version__
from kvik_engine.config import EngineConfig
from kvik_engine.errors import StartError, StartReason
from kvik_engine.kv.block_files import BlockFiles, bytes_on_disk
from kvik_engine.kv.disk_tier import DiskTier, LowerTier, NoLowerTier
from kvik_engine.step import HostSpace, ModelFacts

log = logging.getLogger(__name__)


def open_disk_cache(config: EngineConfig, facts: ModelFacts, host: HostSpace | None) -> LowerTier:
    """StartError ConfigInvalid for a size below one block; a disk that fails is no reason not to start."""
    if config.disk_cache is None:
        return NoLowerTier()
    assert config.disk_cache_size is not None, "`kvik serve` wants both"
    assert host is not None, "`kvik serve` wants swap space with it"
    block_bytes = facts.groups[0].block_bytes
    if config.disk_cache_size < bytes_on_disk(block_bytes):
        raise StartError(
            StartReason.CONFIG_INVALID,
            f"--disk-cache-size {config.disk_cache_size} bytes is less than a block of {bytes_on_disk(block_bytes)}",
        )
    from kvik_engine.weights.model_files import find_model_files, model_digest

    digest = model_digest(find_model_files(Path(config.model_path)))
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk-cache")
    disk = DiskTier(
        BlockFiles(Path(config.disk_cache), fingerprint(digest, facts)),
        host.memory,
        block_bytes=block_bytes,
        max_bytes=config.disk_cache_size,
        run=worker.submit,
        clock=time.monotonic,
    )
    disk.open()
    log.info("disk cache", extra={"directory": config.disk_cache, "blocks": disk.use.blocks})
    return disk


def fingerprint(model_digest: str, facts: ModelFacts) -> str:
    """What the bytes of a block depend on beside its tokens: model, number format, layout, who computed it."""
    groups = [[group.kind, group.layers, group.block_tokens, group.block_bytes, group.window] for group in facts.groups]
    about = [
        __version__,
        model_digest,
        facts.dtype,
        facts.quantization,
        facts.kv_key_dtype,
        facts.kv_value_dtype,
        facts.device,
        facts.attention,
        groups,
    ]
    return sha256(json.dumps(about).encode()).hexdigest()[:16]

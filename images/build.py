"""Builds one image, unless the image that is here was built from the same inputs."""

import os
import sys
import tempfile
import time
from pathlib import Path

from images import base, context
from images.builder import Buildah, Builder
from images.catalog import Image


def build(image: Image, builder: Builder) -> None:
    """Shows the builder's progress; says in one line when there is nothing to do.

    Raises:
        RuntimeError: the build failed, or no base image can be had.
    """
    begin = time.monotonic()
    arguments = dict(image.arguments)
    if image.needs_base and (base_image := _base(builder)) is not None:
        arguments["BASE"] = base_image
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        context.copy_context({"Containerfile": image.containerfile, **image.context}, target)
        inputs = context.content_hash(target, arguments)
        if builder.inputs_of(image.name) == inputs:
            print(f"images: {image.name} is up to date", flush=True, file=sys.stderr)
            return
        print(f"images: building {image.name} ...", flush=True, file=sys.stderr)
        builder.build(image.name, target, arguments, inputs)
    print(f"images: built {image.name} in {time.monotonic() - begin:.0f} s", flush=True, file=sys.stderr)


def _base(builder: Builder) -> str | None:
    """BASE of the environment; else None (the Containerfile's own) with docker, and a local one with buildah, which
    is what machines without a registry have."""
    chosen = os.environ.get("BASE")
    if chosen:
        return chosen
    return base.ensure_local_base() if isinstance(builder, Buildah) else None

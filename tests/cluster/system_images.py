"""The images that the cluster itself runs: the pods' pause program and CoreDNS, from our own build."""

from pathlib import Path

from images.catalog import Image
from tests.cluster import node
from tests.cluster.paths import Programs

DNS_IMAGE = "localhost/kvik/coredns:1.12.4"  # as in manifests/coredns.yaml
_CONTAINERFILES = Path(__file__).resolve().parent / "images"


def system_images(programs: Programs) -> list[Image]:
    names = {"pause": node.PAUSE_IMAGE, "coredns": DNS_IMAGE}
    return [
        Image(
            name=name,
            containerfile=_CONTAINERFILES / program / "Containerfile",
            context={program: programs[program]},
            needs_base=False,
        )
        for program, name in names.items()
    ]

"""Builds the images named on the command line: python3 -m images operator demo cpu gpu"""

import argparse
import os
import sys

from images import builder, catalog
from images.build import build


def main() -> int:
    products = catalog.product(os.environ.get("IMAGE_PREFIX", catalog.LOCAL_PREFIX))
    parser = argparse.ArgumentParser(prog="images", description="Builds Kvik's images with docker or buildah.")
    parser.add_argument("image", nargs="+", choices=[*products])
    chosen = builder.choose()
    try:
        for name in parser.parse_args().image:
            build(products[name], chosen)
    except RuntimeError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

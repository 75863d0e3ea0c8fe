"""Makes the copy of the registry of SAELens: `python -m tools.sae_lens_registry [VERSION]`.

The wheel of SAELens is fetched without what it depends on, and only its registry is read. The copy begins with the
version, the date and the licence of SAELens.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from steerserve.files.sae_lens import COPY, YAML, read_yaml
from tools.real.packages import unpack_wheel


def main(version: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder)
        unpack_wheel(f"sae-lens=={version}" if version else "sae-lens", unpacked)
        (facts,) = unpacked.glob("sae_lens-*.dist-info")
        found = facts.name.removeprefix("sae_lens-").removesuffix(".dist-info")
        first, rest = read_yaml(unpacked / "sae_lens" / YAML, found).split("\n", 1)
        licence = (facts / "licenses" / "LICENSE").read_text(encoding="utf-8")
    today = datetime.now(UTC).date().isoformat()
    about = (
        f"The registry of SAELens {found}, https://github.com/decoderesearch/SAELens, as a table.\n"
        f"`python -m tools.sae_lens_registry` made it on {today}. This is the licence of SAELens:\n\n{licence}"
    )
    comments = "\n".join(f"# {line}".rstrip() for line in about.splitlines())
    COPY.write_text(f"{first}\n{comments}\n{rest}", encoding="utf-8")
    print(f"{COPY}: SAELens {found}, {COPY.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)

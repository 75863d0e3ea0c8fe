from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The folder of the project."""
SHARED = ROOT.parent / "shared"
"""The folder of the specification, which lies beside the project where it is at hand."""

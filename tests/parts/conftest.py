"""The fixtures of checkpoints, which the tests of the worker have too."""

from tests.worker.conftest import folder, llama, loaded, quiet_inference

__all__ = ["folder", "llama", "loaded", "quiet_inference"]

"""The modules that the fork server imports once, so that an engine process starts in a fraction of a second.

This module imports, and says how the fork server ends. It must never run a tensor operation or touch a card, because
engine processes are forked after it has run.
"""

import atexit
import contextlib
import gc
import os
import signal

from steerserve.rules.inference import threads

# what the libraries make stays as long as a process does: no collection of garbage looks through it
gc.disable()
# only the control plane stops an engine, over its socket; a signal to the process group must not cut a stream
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
# cards are counted through the driver library, because the runtime would make a context, which does not survive a fork
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# the tensor library numbers the cards in the order of the driver's own library
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ.update(threads.environment(os.environ))
# directions are fitted beside the passes, which need the other processors
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch  # noqa: E402
import transformers  # noqa: E402
import transformers.conversion_mapping  # noqa: E402
import transformers.generation  # noqa: E402
import transformers.modeling_utils  # noqa: E402
import transformers.models.auto.modeling_auto  # noqa: E402

import steerserve.worker.process.loop  # noqa: E402
import steerserve.worker.process.tokenizing  # noqa: E402
from steerserve.parts.part import load  # noqa: E402
from steerserve.parts.registry import parts  # noqa: E402

for part in parts().values():
    # a part of others that cannot be imported is refused where it is asked for
    with contextlib.suppress(Exception):
        load(part.row)

# the table of all renamed weights, which every load reads, is made here once
transformers.conversion_mapping.get_checkpoint_conversion_mapping("llama")


def _end_at_once(server: int) -> None:
    """End the fork server without the clean-up of the interpreter, which takes seconds and saves nothing."""
    if os.getpid() == server:
        os._exit(0)


# registered after the imports, because the function that was registered last runs first
atexit.register(_end_at_once, os.getpid())

gc.collect()
gc.freeze()
gc.enable()

__all__ = ["steerserve", "torch", "transformers"]

"""Attention of decode passes: half precision where each query head has keys of its own."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.worker import models
from tests.worker.running import STORY, Bench, alone, open_checkpoint


def test_rows_in_half_precision_write_what_they_write_alone(tmp_path: Path) -> None:
    model = open_checkpoint(models.save("gpt2", tmp_path / "m", dtype=torch.bfloat16))
    assert model.dtype == torch.bfloat16
    prompts = ["One day", STORY[:40], STORY]
    expected = [alone(model, prompt, max_tokens=12).tokens for prompt in prompts]
    bench = Bench(model)
    answers = [bench.ask(i, prompt, max_tokens=12) for i, prompt in enumerate(prompts)]
    bench.run()
    assert [answer.tokens for answer in answers] == expected

"""What the launcher's environment means for this process."""

import pytest
import torch

from loracle.jobs.train.world import parallel


@pytest.mark.parametrize(
    ("processes", "fsdp", "cards", "expected"),
    [
        ("1", "true", True, "none"),
        ("2", "", True, "ddp"),
        ("2", "true", True, "fsdp"),
        ("2", "true", False, "ddp"),  # what accelerate does, whatever it is asked for
    ],
)
def test_how_the_processes_share_the_model(monkeypatch, processes, fsdp, cards, expected):
    monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", fsdp)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards)
    assert parallel() == expected

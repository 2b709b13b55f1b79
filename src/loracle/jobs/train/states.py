"""What a resume puts back besides weights: random generators, and an optimizer's pages."""

from typing import Any

import torch


def rng_states() -> dict[str, Any]:
    """Python's, numpy's, torch's and the card's generators."""
    import random

    import numpy as np

    states = {"python": random.getstate(), "numpy": np.random.get_state(),
              "cpu": torch.get_rng_state()}  # fmt: skip
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_rng_states(states: dict[str, Any]) -> None:
    """Put back what `rng_states` read."""
    import random

    import numpy as np

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def page_again(optimizer: Any) -> None:
    """Move the loaded states of a paged optimizer back into unified memory.

    bitsandbytes loads every state onto the card and leaves it there: a resumed run would need the
    memory that paging had saved the first start. States that bitsandbytes itself does not page
    (under 100,000 elements) and other optimizers stay as they are.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    if not getattr(optimizer, "is_paged", False):
        return
    for parameter, state in optimizer.state.items():
        for name in ("state1", "state2"):
            loaded = state.get(name)
            if loaded is None or getattr(loaded, "is_paged", False):
                continue
            pages = optimizer.get_state_buffer(parameter, dtype=loaded.dtype)
            if getattr(pages, "is_paged", False):
                torch.cuda.synchronize()  # the card has just filled them with zeros
                pages.copy_(loaded)
                state[name] = pages

"""Whether a model is asked as it was trained: the chat template decides, and fails silently."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loracle.catalog.datasets import Sample, read_dataset
from loracle.domain.plan import Hint
from loracle.errors import LoracleError
from loracle.jobs.evaluate.targets import Target
from loracle.jobs.train.model import load_tokenizer
from loracle.jobs.train.templates import prompts_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_warnings(
    tokenizer: "PreTrainedTokenizerBase", samples: Sequence[Sample], same_prompts: bool | None
) -> tuple[Hint, ...]:
    """What to know of the prompts: other ones than in training, chats asked as plain text."""
    found = []
    if same_prompts is False:
        found.append(Hint(id="evaluate.other_prompts", values={"path": tokenizer.name_or_path}))
    if not tokenizer.chat_template and any(one.kind == "messages" for one in samples):
        found.append(Hint(id="evaluate.no_template", values={"path": tokenizer.name_or_path}))
    return tuple(found)


def asks_the_same(target: Target, tokenizer: str) -> bool | None:
    """Whether a folder's or hub id's tokenizer and template make the prompts of training.

    A model served with another template than it was trained with loses half of its quality
    without an error. None where the run kept no hash, or its training set cannot be read.
    """
    expected = target.run.read_facts().get("prompts_hash") if target.run is not None else None
    if expected is None or target.recipe is None or target.recipe.data.train is None:
        return None
    data = target.recipe.data
    try:
        samples = read_dataset(str(data.train), format=data.format, skip_bad=True).samples
    except LoracleError:
        return None
    return prompts_hash(load_tokenizer(tokenizer), samples) == expected

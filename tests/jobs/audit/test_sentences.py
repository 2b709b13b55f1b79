"""Every sentence that a judge may say exists, with exactly the numbers that it is given."""

import ast
import re
import string
from pathlib import Path

import loracle.jobs.audit.judges as judges
from loracle import words
from loracle.jobs.audit import Case, Options, Replay, judge, load_recording, observe, shipped

ENGLISH = words.messages("en")
FOLDER = Path(judges.__file__).parent
DOCUMENT = Path(__file__).parents[3] / "docs" / "recorded-machines.md"


def placeholders(sentence):
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def calls(name):
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                yield path, node


def constants(node):
    """The message ids that an argument may be: a constant, or the ends of a conditional."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return constants(node.body) + constants(node.orelse)
    return []


def test_every_sentence_exists_and_gets_its_numbers():
    faults, seen = [], 0
    for path, node in calls("say"):
        given = {keyword.arg for keyword in node.keywords}
        for message in constants(node.args[0]):
            seen += 1
            sentence = ENGLISH.get(f"audit.{message}")
            if sentence is None:
                faults.append(f"{path.name}:{node.lineno} {message} is missing")
            elif not placeholders(sentence) <= given:
                lacking = placeholders(sentence) - given
                faults.append(f"{path.name}:{node.lineno} {message} lacks {lacking}")
    assert faults == []
    assert seen > 150


def test_sentences_made_of_parts_exist():
    for _, node in calls("skipped"):
        (why,) = constants(node.args[3]) if isinstance(node.args[3], ast.Constant) else ("part",)
        assert f"audit.skipped.{why}" in ENGLISH
    source = (FOLDER / "software.py").read_text("utf-8")
    reasons = re.findall(r'return "(\w+)", "(?:renter|provider)"', source)
    assert len(reasons) == 8
    for reason in reasons:
        assert placeholders(ENGLISH[f"audit.means.cuda_{reason}"]) <= {"driver", "cuda"}
    for outcome in ("keep", "careful", "fix", "return", "untested"):
        given = {"made", "failed", "warned", "unknown"}
        assert placeholders(ENGLISH[f"audit.verdict.{outcome}"]) <= given


def codes_in_code():
    text = "".join(path.read_text("utf-8") for path in FOLDER.glob("*.py"))
    return set(re.findall(r"LRA-[A-Z]+(?:-[A-Z0-9]+)+", text))


def test_every_code_has_a_title():
    for code in codes_in_code():
        assert "audit.title." + code[4:].lower().replace("-", "_") in ENGLISH, code


def test_every_code_is_documented():
    text = DOCUMENT.read_text("utf-8").split("## Codes")[1]
    documented = set()
    for row in re.findall(r"^\| (LRA-[^|]+) \|", text, re.MULTILINE):
        first, *others = row.split(", ")
        prefix = "-".join(first.split("-")[:2])
        documented |= {first, *(prefix + other for other in others)}
    assert documented == codes_in_code()


def test_recordings_raise_every_alarm_that_there_is():
    """A judge whose alarm no recording raises is a judge that nobody has heard."""
    raised = set()
    for path in shipped():
        document = load_recording(path)
        report = judge(Case(seen=observe(Replay(document), Options())))
        raised |= {check.code for check in report.checks if check.status in ("warn", "fail")}
        raised |= set(document["expect"]["codes"])
    silent = codes_in_code() - raised
    assert silent <= {"LRA-HOST-NETWORK", "LRA-MEM-PLAN", "LRA-ID-HALF", "LRA-LINK-NVLINK",
                      "LRA-LINK-REPLAYS", "LRA-ID-DRIVER", "LRA-SW-DTYPES"}  # fmt: skip

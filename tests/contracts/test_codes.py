"""One meaning a code: which messages may stand under it, over the whole product.

A new error takes a code whose meaning it shares, or a new one; both are written down here and in
docs/errors.md. Codes E000 to E060 that only a class gives by default are not listed.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "loracle"

# code: the messages that share its meaning, as one pattern
MEANINGS = {
    "E010": r"error\.(offer\.order|missing_file)",
    "E011": r"error\.(unit|assignment|merge\.flag|no_target|choice|evaluate\.(margin|metric)"
    r"|train\.on_oom)",
    "E012": r"recipe\..*|error\.recipe.*",
    "E013": r"error\.(missing_file|is_folder|unreadable|unwritable|data\.no_match"
    r"|train\.(no_run|many_runs|run_name|no_tokenizer|mirror|reporter|stack|no_data|no_weights"
    r"|unreadable|budget_alone|then_alone)|evaluate\.(nothing_to_compare|no_base|no_task|no_data))",
    "E014": r"plan\..*|error\.train\.batch",
    "E016": r"error\.currency_mix",
    "E017": r"error\.no_rate",
    "E018": r"error\.(runs|offer)\..*",
    "E019": r"plan\.(wrong_schema|broken)",
    "E020": r"error\.data\.bad_rows|data\.reason\..*",
    "E021": r"error\.data\.container",
    "E022": r"error\.data\.(unknown_)?encoding",
    "E023": r"error\.data\.(json|csv_header|csv|parquet)",
    "E024": r"error\.data\.empty",
    "E025": r"error\.data\.format(_name)?",
    "E026": r"error\.(data\.(tokenizer|template_row)|train\.(mask|template))",
    "E027": r"error\.(evaluate\.no_items|train\.no_labels)",
    "E031": r"error\.catalog\.(unknown|ambiguous)_gpu",
    "E032": r"error\.(hub|model)\..*|error\.missing_file|plan\.(nowhere|not_in_plan)",
    "E033": r"error\.(shape|model)\..*",
    "E034": r"error\.offer\..*|error\.shape\.bad_value",
    "E035": r"error\.(catalog|offer|prices|fx)\..*",
    "E036": r"error\.hub\..*",
    "E037": r"error\.prices\..*",
    "E038": r"error\.no_fingerprint",
    "E040": r"error\.no_timeline",
    "E051": r"error\.missing_extra",
    "E052": r"error\.train\.memory",
    "E053": r"error\.(disk_full|train\.disk|merge\.disk)",
    "E054": r"error\.(not_written|train\.not_writable)",
    "E055": r"error\.train\.oom",
    "E056": r"error\.merge\.no_converter",
    "E061": r"error\.train\.(broken_file|lost)",
    "E062": r"error\.train\.(run_exists|not_running|)",
    "E063": r"error\.train\.(no_eos|never_stops)",
    "E064": r"error\.train\.save",
    "E065": r"error\.merge\.(no_quant|full|not_4_bit|cannot\..*)",
    "E066": r"error\.data\.template",
    "E067": r"error\.train\.(recipe|packing|data)_changed",
    "E068": r"error\.merge\.exists",
    "E069": r"error\.train\.unexpected",
    "E070": r"error\.no_recording",
    "E071": r"error\.bad_recording",
    "E073": r"error\.evaluate\.tasks",
    "E074": r"error\.train\.padding",
    "E075": r"error\.train\.reporter_failed",
    "E076": r"error\.merge\.(no_adapter|not_finished)",
    "E077": r"error\.(merge\.(broken_weights|hole|not_finite)|evaluate\.load)",
    "E078": r"error\.merge\.(no_base|base_gone|base_not_found|quantised_base|shard_missing)",
    "E079": r"error\.(merge\.(other|wrong)_base"
    r"|evaluate\.(adapter|missing_part|strange_part|vocabulary))",
    "E080": r"error\.train\.mirror_size",
    "E081": r"error\.train\.smoke",
    "E082": r"error\.merge\.verify_failed",
    "E083": r"error\.merge\.converter_failed",
}


def messages_of(node):
    """The message ids that an expression can be; an f-string up to its first hole."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [*messages_of(node.body), *messages_of(node.orelse)]
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return [node.values[0].value]
    return []  # a name: its message is written where it is made


def used():
    """Messages by code, of every call in the package that names both."""
    found = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            code = next((one.value for one in node.keywords if one.arg == "code"), None)
            if isinstance(code, ast.Constant) and re.fullmatch(r"E\d{3}", str(code.value)):
                found[code.value] |= set(messages_of(node.args[0]))
    return found


def test_a_code_means_one_thing():
    strangers = {
        code: sorted(one for one in messages if not re.fullmatch(MEANINGS.get(code, ""), one))
        for code, messages in used().items()
    }
    assert {code: messages for code, messages in strangers.items() if messages} == {}


def test_a_message_has_one_code():
    codes = defaultdict(set)
    for code, messages in used().items():
        for message in messages:
            codes[message].add(code)
    several = {message for message, found in codes.items() if len(found) > 1}
    assert several <= {"error.missing_file"}  # a recipe's, an offer's, a model's file


def test_every_code_is_explained():
    explained = re.findall(
        r"^\| (E\d{3}) \| .+ \|$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE
    )
    assert explained == sorted(set(explained))
    assert set(used()) | set(MEANINGS) <= set(explained)


def test_every_extra_that_a_hint_names_is_there():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "MissingExtra":
                named |= set(messages_of(node.args[0]))
    assert "train" in named
    assert named <= project["optional-dependencies"].keys()

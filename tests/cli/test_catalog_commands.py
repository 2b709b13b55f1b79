"""`loracle gpus`, `models` and `offers` as a user calls them, in both languages."""

import json
import sys

import pytest
import yaml
from rich.cells import cell_len

from loracle.cli.app import main

DAY = "1795996800"  # 2026-11-30, as SOURCE_DATE_EPOCH


@pytest.fixture
def loracle(monkeypatch, tmp_path, capsys):
    """Run the command in this process; returns (exit code, stdout, stderr)."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", DAY)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("LORACLE_LANG", raising=False)

    def run(*arguments, lang="en"):
        monkeypatch.setattr(sys, "argv", ["loracle", "--lang", lang, *arguments])
        code = 0
        try:
            main()
        except SystemExit as done:
            code = int(done.code or 0)
        out = capsys.readouterr()
        assert "Traceback" not in out.out + out.err
        return code, out.out, out.err

    return run


def columns_align(screen: str, headings: list[str]) -> bool:
    """Whether the cells under left-aligned headings start at the headings' display column."""
    lines = [line for line in screen.splitlines() if line.strip()]
    head = lines[0]
    starts = [cell_len(head[: head.index(heading)]) for heading in headings]
    for line in lines[1:]:
        for start in starts:
            before = 0
            for index, letter in enumerate(line):
                if before == start:
                    if index and line[index - 1] != " ":
                        return False
                    break
                before += cell_len(letter)
                if before > start:
                    return False
    return True


# ------------------------------------------------------------------ offers


def test_offers_as_json_list_their_ids_and_terms(loracle):
    code, out, err = loracle("offers", "--json")
    document = json.loads(out)
    assert (code, err, document["schema"], document["date"]) == (
        0, "", "loracle.offers/1", "2026-11-30",
    )  # fmt: skip
    offers = {one["id"]: one for one in document["offers"]}
    a100 = offers["idc10000-a100-40g"]
    assert {one["term"]: (one["amount"], one["period"]) for one in a100["terms"]} == {
        "month": ("2800.00", "month"),
        "quarter": ("2660.00", "month"),
        "year": ("2240.00", "month"),
    }
    assert a100["stale"] is True
    assert offers["market-4090"]["estimated"] is True
    assert (offers["market-4090"]["price_low"], offers["market-4090"]["price_high"]) == (
        "1500.00", "2500.00",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "amount", "billing"),
    [
        (("--term", "year"), "2240.00", "26880.00"),
        (("--term", "year", "--renewals", "1"), "2140.00", "25680.00"),
        (("--term", "quarter"), "2660.00", "7980.00"),
        ((), "2800.00", "2800.00"),
        (("--term", "year", "--add-on", "1tb-disk", "--add-on", "16-cores"), "2940.00", "35280.00"),
        (("--coupon", "10%", "--coupon", "20"), "2500.00", "2500.00"),
    ],
)
def test_the_a100_quote(loracle, flags, amount, billing):
    code, out, _ = loracle("offers", "quote", "idc10000-a100-40g", *flags, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["amount"], document["period"], document["currency"]) == (
        amount, "month", "CNY",
    )  # fmt: skip
    assert document["per_month"] == amount
    assert document["billing_total"] == billing
    assert document["steps"][-1]["after"] == amount


def test_the_ladder_on_screen(loracle):
    _, out, _ = loracle("offers", "quote", "idc10000-a100-40g", "--term", "year", "--renewals", "1")
    assert [line.split() for line in out.splitlines()[3:6]] == [
        ["list", "price", "¥2,800.00"],
        ["20", "%", "off", "for", "the", "term", "-¥560.00", "¥2,240.00"],
        ["returning", "customer,", "1", "time(s)", "-¥100.00", "¥2,140.00"],
    ]
    assert "¥25,680.00" in out
    assert "¥10,700.00 to ¥14,980.00" in out  # A-P8: 5 to 7 times


def test_an_hour_against_a_month(loracle):
    _, out, _ = loracle("offers", "quote", "shenzhen-4090", "--against", "autodl-4090", "--json")
    against = json.loads(out)["against"]
    assert against["break_even_hours_per_month"] == "691.2"  # 1880 / 2.72
    _, out, _ = loracle("offers", "quote", "market-4090", "--against", "autodl-4090", "--json")
    assert json.loads(out)["against"]["break_even_hours_per_month"] is None  # 735 h > 730 h


def test_quiet_and_markdown(loracle):
    _, out, _ = loracle("offers", "-q", "--gpu", "3090")
    assert out.split() == ["vast-3090", "idc10000-3090", "autodl-3090", "runpod-3090"]
    _, out, _ = loracle("offers", "--gpu", "3090", "--format", "md")
    assert out.startswith("| ID | CARD |")
    _, out, _ = loracle("offers", "quote", "idc10000-a100-40g", "--term", "year", "-q")
    assert out == "¥2,240.00/month\n"


def test_a_shared_name_filters_for_all_of_its_cards(loracle):
    _, out, _ = loracle("offers", "--gpu", "A100", "-q")
    assert {"idc10000-a100-40g", "lambda-a100-80g"} <= set(out.split())
    _, out, _ = loracle("offers", "--provider", "autodl", "--gpu", "4090", "-q")
    assert out == "autodl-4090\n"


@pytest.mark.parametrize(
    ("lang", "headings"),
    [("en", ["ID", "CARD", "DATE", "MIND"]), ("zh-CN", ["名称", "显卡", "日期", "注意"])],
)
def test_the_table_aligns_and_says_what_is_old_or_estimated(loracle, lang, headings):
    _, out, err = loracle("offers", lang=lang)
    assert columns_align(out, headings)
    assert "…" not in out
    assert ("older than 30 days" if lang == "en" else "超过 30 天") in err
    assert max(cell_len(line) for line in out.splitlines()) <= 120


def test_order(loracle):
    _, out, _ = loracle("offers", "--by", "provider", "--json")
    providers = [one["provider"] for one in json.loads(out)["offers"]]
    assert providers == sorted(providers)


def test_a_quote_of_ones_own_from_flags(loracle):
    code, out, _ = loracle(
        "offers", "add", "--id", "mine", "--provider", "Shop", "--gpu", "4090",
        "--price", "1900CNY/month", "--price", "2.6CNY/h", "--term-discount", "year=20%",
        "--loyalty", "50", "--ram", "64GiB", "--disk", "500GB", "--source", "a chat", "--json",
    )  # fmt: skip
    path = json.loads(out)["added"][0]["path"]
    assert code == 0
    with open(path, encoding="utf-8") as file:
        kept = yaml.safe_load(file)
    assert (kept["ram_gib"], kept["disk_gb"], kept["as_of"]) == (64.0, 500.0, "2026-11-30")
    _, out, _ = loracle("offers", "quote", "mine", "--term", "year", "--renewals", "2", "--json")
    assert json.loads(out)["amount"] == "1470.00"  # 1900 x 0.8 - 50
    code, _, err = loracle("offers", "add", "--file", path)
    assert (code, "E034" in err) == (2, True)
    assert loracle("offers", "add", "--file", path, "--replace")[0] == 0
    assert loracle("offers", "remove", "mine")[0] == 0
    assert "E034" in loracle("offers", "remove", "mine")[2]


def test_the_schema_of_a_quote_for_editors(loracle):
    import jsonschema

    _, out, _ = loracle("offers", "add", "--schema")
    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    quote = {
        "id": "mine", "provider": "Shop", "gpu": "4090", "as_of": "2026-11-30", "source": "a chat",
        "prices": [{"term": "month", "amount": "1900"}],
    }  # fmt: skip
    jsonschema.validate(quote, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**quote, "colour": "red"}, schema)


def test_a_rate_of_ones_own(loracle):
    assert loracle("offers", "rate", "usd", "cny", "7.15")[0] == 0
    _, out, _ = loracle("offers", "--json")
    assert json.loads(out)["rates"] == [
        {"base": "USD", "quote": "CNY", "rate": "7.15", "date": "2026-11-30",
         "source": "set by hand"}
    ]  # fmt: skip


GIVEN = ("offers", "add", "--id", "x", "--provider", "p", "--gpu", "4090", "--source", "s")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("offers", "quote", "nothing"), "E034"),
        (("offers", "quote", "idc10000-3090", "--term", "year"), "E018"),
        (("offers", "quote", "idc10000-3090", "--term", "era"), "E018"),
        (("offers", "quote", "idc10000-3090", "--renewals=-1"), "E018"),
        (("offers", "quote", "idc10000-3090", "--add-on", "x"), "E018"),
        (("offers", "quote", "idc10000-3090", "--coupon", "free"), "E018"),
        (("offers", "quote", "idc10000-3090", "--coupon", "100%"), "E018"),
        (("offers", "quote", "idc10000-3090", "--against", "x"), "E034"),
        (("offers", "--by", "mood"), "E010"),
        (("offers", "--gpu", "RTX 9999"), "E031"),
        (("offers", "add"), "E018"),
        (("offers", "add", "--file", "/nonexistent.yaml"), "E010"),
        ((*GIVEN, "--price", "cheap"), "E011"),
        ((*GIVEN, "--price", "1900CNY"), "E011"),
        ((*GIVEN, "--price", "1900CNY/month", "--price", "2USD/h"), "E016"),
        ((*GIVEN, "--price", "1900CNY/month", "--date", "soon"), "E018"),
        ((*GIVEN, "--price", "1900CNY/month", "--term-discount", "year"), "E018"),
        ((*GIVEN, "--price", "1900CNY/month", "--ram", "much"), "E011"),
        ((*GIVEN, "--price", "1900CNY/month", "--gpu", "RTX 9999"), "E031"),
        (("offers", "remove", "idc10000-3090"), "E034"),
        (("offers", "rate", "USD", "CNY", "much"), "E018"),
        (("offers", "rate", "USD", "USD", "1"), "E035"),
        (("offers", "rate", "dollars", "CNY", "7"), "E018"),
        (("gpus", "RTX 9999"), "E031"),
        (("gpus", "A100"), "E031"),
        (("models", "Qwen/Qwen3-9B", "--offline"), "E036"),
        (("models", "./nothing.json"), "E032"),
    ],
)
def test_bad_input_is_an_error_with_its_code(loracle, arguments, code, tmp_path):
    status, out, err = loracle(*arguments)
    assert status == 2
    assert out == ""
    assert f"[{code}]" in err
    assert not (tmp_path / "config" / "loracle").exists()
    status, out, _ = loracle(*arguments, "--json")
    if out:  # remove has no --json
        assert json.loads(out)["code"] == code


def test_several_wrong_flags_are_told_at_once(loracle):
    _, _, err = loracle(
        *GIVEN[:3], "My Offer", *GIVEN[4:], "--price", "1900CNY/month", "--num-gpus", "0"
    )
    assert "`id`" in err
    assert "`num_gpus`" in err


# ------------------------------------------------------------------ gpus


def test_a_card_with_its_sources(loracle):
    _, out, _ = loracle("gpus", "4090", "--json")
    (card,) = json.loads(out)["gpus"]
    assert (card["id"], card["memory_bytes"]) == ("rtx-4090", 24564 * 2**20)
    assert card["sources"]["usable_bytes"]["measured"] is True
    _, out, _ = loracle("gpus", "A100 40G")
    assert "39.50 GiB" in out
    assert "TianheWu/CoSeR issue 10" in out
    assert "1g.5gb" in out


@pytest.mark.parametrize(
    ("lang", "headings"), [("en", ["CARD", "ID", "IN"]), ("zh-CN", ["显卡", "名称", "精度"])]
)
def test_the_card_table(loracle, lang, headings):
    _, out, err = loracle("gpus", lang=lang)
    assert columns_align(out, headings)
    assert "…" not in out
    assert len(out.splitlines()) == 83
    assert "~" in err
    row = next(line for line in out.splitlines() if " a40 " in line)
    assert "~119.8" in row  # nobody measured an A40


def test_card_filter_and_quiet(loracle):
    _, out, _ = loracle("gpus", "--filter", "h200", "-q")
    assert out.split() == ["h200-141gb-sxm", "h200-141gb-nvl", "gh200-96gb", "gh200-144gb"]


# ------------------------------------------------------------------ models


def test_a_model_with_its_targets(loracle):
    _, out, _ = loracle("models", "Qwen3-8B", "--json")
    (model,) = json.loads(out)["models"]
    assert model["num_params"] == 8_190_735_360
    # rank 16 on q, k, v, o of 36 layers: 16 x (4096+4096 + 2 x (4096+1024) + 4096+4096) each
    assert model["trainable_params"]["attention"]["16"] == 36 * 16 * (8192 + 2 * 5120 + 8192)
    assert model["coverage"]["attention"][0] == {"role": "attention", "hit": 144, "total": 144}


def test_the_model_table(loracle):
    _, out, _ = loracle("models", "--family", "qwen3", "--filter", "8b")
    assert "Qwen/Qwen3-8B" in out
    assert "llama" not in out
    _, out, _ = loracle("models", "-q")
    assert len(out.split()) == 126


def test_a_model_screen_in_chinese_aligns(loracle):
    _, out, _ = loracle("models", "Qwen3-8B", lang="zh-CN")
    table = out[out.index("线性层") : out.index("目标")]
    assert columns_align(table, ["线性层", "作用"])


@pytest.mark.parametrize("command", ["gpus", "models", "offers"])
def test_help_in_both_languages(loracle, command):
    for flags in ((command, "--help"),):
        for lang in ("en", "zh-CN"):
            code, out, _ = loracle(*flags, lang=lang)
            assert code == 0
            assert "--json" in out
            assert "help." not in out  # no message id shows through


@pytest.mark.parametrize("command", ["gpus", "models", "offers"])
@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_a_narrow_terminal_loses_columns_and_says_so(loracle, monkeypatch, command, lang):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, err = loracle(command, lang=lang)
    assert max(cell_len(line) for line in out.splitlines()) <= 80
    assert "…" not in out
    assert ("left out" if lang == "en" else "省略") in err

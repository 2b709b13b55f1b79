"""The page a renter sends to a provider: whole in one file, readable, private."""

import re
from html.parser import HTMLParser

import pytest

from loracle.catalog.fingerprints import sold_as
from loracle.jobs.audit import (
    Case,
    Options,
    Replay,
    find_recording,
    judge,
    load_recording,
    observe,
)
from loracle.report.audit_html import audit_page
from loracle.report.curves import Line, chart
from loracle.report.wording import duration, phrase, shown

VOID = {"meta", "br", "line", "rect", "path"}


def report(name, sold=None):
    document = load_recording(find_recording(name))
    claim = sold_as(sold or document["sold"])
    return judge(Case(seen=observe(Replay(document), Options()), sold=claim), replayed=name)


class Balance(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.faults = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("name", ["thermal-throttle", "healthy-rtx-3090-x4", "old-driver"])
def test_page_is_one_whole_file(name, language):
    page = audit_page(report(name), language)
    parsed = Balance()
    parsed.feed(page)
    assert parsed.faults == []
    assert parsed.open == []
    loads = [
        (tag, given)
        for tag, given in parsed.tags
        if tag in ("script", "link", "img", "iframe") or "src" in given or "href" in given
    ]
    assert loads == []
    assert "url(" not in page
    assert "@import" not in page


def test_page_holds_the_evidence_of_a_refund_claim():
    page = audit_page(report("thermal-throttle", sold="RTX 3090 24G <整卡> ¥1750/月"), "en")
    assert "RTX 3090 24G &lt;整卡&gt; ¥1750/月" in page  # the offer, as typed and harmless
    assert "2026-11-30T22:00:00Z" in page
    assert "LRA-LOAD-THERMAL" in page
    assert "too hot in 80 % of samples" in page
    assert page.count("<svg") == 4  # speed, clock, temperature, power
    assert 'class="event"' in page  # the seconds in which it limited itself
    assert "loracle audit --soak 10min" in page


def test_page_names_the_card_that_is_wrong():
    page = audit_page(report("one-hot-of-four"), "en")
    wrong, everything = page.split("<svg", 1)
    assert "sustained speed (card 2)" in wrong
    assert "sustained speed (card 1)" not in wrong
    assert "sustained speed (card 1)" in everything
    assert "memory size (all cards)" in everything


def test_page_speaks_chinese():
    page = audit_page(report("thermal-throttle"), "zh-CN")
    assert '<html lang="zh-CN">' in page
    assert "租用机器检验报告" in page
    assert "请退机或更换" in page
    assert "audit." not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_no_message_id_is_left_on_any_page():
    from loracle.jobs.audit import shipped

    for path in shipped():
        document = load_recording(path)
        sold = sold_as(document["sold"]) if document.get("sold") else None
        found = judge(Case(seen=observe(Replay(document), Options()), sold=sold))
        for language in ("en", "zh-CN"):
            page = audit_page(found, language)
            assert re.search(r"audit\.[a-z]+\.[a-z]", page) is None, path.name
            assert re.search(r"\{[a-z_]+\}", page.split("</style>")[1]) is None, path.name


def test_curve_breaks_where_the_card_said_nothing():
    panel = chart("Power", [Line(name="", seconds=(1, 2, 3, 4), values=(100, None, 90, 80))])
    (drawn,) = re.findall(r'<path d="([^"]+)"', panel)
    assert drawn.count("M") == 2
    assert drawn.count("L") == 1


def test_chart_without_data_is_nothing():
    assert chart("Power", [Line(name="", seconds=(1,), values=(None,))]) == ""


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("total_bytes", 24 * 2**30, "24.00 GiB"),
        ("used_bytes", 2 * 2**20, "2 MiB"),
        ("free_disk_bytes", 180e9, "180 GB"),
        ("ram_bytes", 31e9, "31 GB"),
        ("rate_bytes_per_s", 24.25e9, "24.2 GB/s"),
        ("rate_bytes_per_s", 4.3e12, "4.30 TB/s"),
        ("rate_bytes_per_s", 9e7, "90 MB/s"),
        ("rate_flops_per_s", 788e12, "788 TFLOP/s"),
        ("rate_flops_per_s", 76.5e12, "76.5 TFLOP/s"),
        ("rate_flops_per_s", 5.4e11, "0.54 TFLOP/s"),
        ("lost_share", 0.034, "3.4 %"),
        ("share", 0.74, "74 %"),
        ("limit_watts", 350, "350 W"),
        ("sm_mhz", 1755, "1,755 MHz"),
        ("lanes", 16, "16"),
    ],
)
def test_units_follow_the_name(name, value, text):
    assert shown(name, value, "en") == text


def test_durations():
    assert duration(4.21, "en") == "4.2 s"
    assert duration(74, "en") == "74 s"
    assert duration(3000, "zh-CN") == "50 分钟"
    assert duration(13680, "en") == "3.8 h"


def test_no_hint_is_no_sentence():
    assert phrase(None, "en") == ""

"""The shipped offers against the articles' lines, and quotes that users add."""

from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loracle import words
from loracle.catalog.gpus import find_gpu
from loracle.catalog.offer_file import OfferRow, offer_of, rows_of, text_of
from loracle.catalog.offers import add_quote, find_offer, load_offers, remove_quote
from loracle.domain.offer import PROVENANCE, TERMS
from loracle.errors import CatalogError, InputError, LoracleError
from loracle.estimate.money import offered_terms, period_price
from loracle.units import GB, GIB

NOWHERE = Path("/nonexistent/loracle")
OFFERS = {offer.id: offer for offer in load_offers(user_folder=NOWHERE, live=False)}


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("offer", OFFERS.values(), ids=lambda offer: offer.id)
def test_every_offer_is_sound(offer):
    assert find_gpu(offer.node.gpu_id).id == offer.node.gpu_id
    assert offer.provenance in PROVENANCE
    assert len(offer.as_of) == 10
    assert offer.source
    assert offer.min_term in TERMS
    assert not offer.risk or words.has(offer.risk)
    assert (offer.provenance == "estimated") == (offer.risk == "risk.estimated_price")
    for term in offered_terms(offer):
        assert period_price(offer, term).amount.amount > 0


# (claim, offer, term, renewals, price a period) as the articles have them
LINES = [
    ("A-P1", "idc10000-3090", "month", 0, "1750.00"),
    ("A-P2", "market-4090", "month", 0, "2000.00"),
    ("A-P3", "idc10000-a100-40g", "month", 0, "2800.00"),
    ("A-P3", "idc10000-a100-40g", "quarter", 0, "2660.00"),
    ("A-P3", "idc10000-a100-40g", "year", 0, "2240.00"),
    ("A-P3", "idc10000-a100-40g", "year", 1, "2140.00"),
    ("A-P5", "idc10000-a100-slice-4g", "month", 0, "900.00"),
    ("A-P6", "idc10000-t4-server", "month", 0, "900.00"),
    ("A-P6", "idc10000-t4-cloud", "month", 0, "850.00"),
    ("B-P1", "shenzhen-4090", "month", 0, "1880.00"),
    ("B-P2", "home-4090", "month", 0, "1200.00"),
]


@pytest.mark.parametrize(("claim", "id_", "term", "renewals", "amount"), LINES)
def test_the_price_lines_of_the_articles(claim, id_, term, renewals, amount):
    offer = OFFERS[id_]
    price = period_price(offer, term, renewals=renewals)
    assert (offer.claim, str(price.amount.amount), price.period) == (claim, amount, "month")
    assert price.amount.currency == "CNY"


def test_a_market_estimate_keeps_its_range():
    offer = OFFERS["market-4090"]
    price = period_price(offer, "month")
    assert (price.low.amount, price.high.amount) == (1500, 2500)
    assert offer.provenance == "estimated"


def test_the_a100_server_and_its_extras():
    offer = OFFERS["idc10000-a100-40g"]
    node = offer.node
    assert (node.num_cores, node.ram_bytes, node.disk_bytes) == (8, 64 * GIB, 250 * GB)
    assert node.network_bytes_per_s == 12.5e6  # 100 Mb/s
    extras = {one.id: int(one.price.amount) for one in offer.add_ons}
    assert extras == {"16-cores": 400, "128gb-ram": 600, "1tb-disk": 300, "200mbit": 400}
    assert offer.whole_node_factor == (5, 7)


def test_slices_say_what_they_are():
    slice_ = OFFERS["idc10000-a100-slice-4g"].node
    assert (slice_.share, slice_.share_fraction, slice_.memory_bytes) == (
        "software-slice", 0.05, 4 * GIB,
    )  # fmt: skip
    part = OFFERS["idc10000-h100-mig"].node
    profile = find_gpu(part.gpu_id).mig_profiles[0]
    assert (part.share, profile.name) == ("mig", "1g.10gb")
    assert abs(part.memory_bytes / profile.memory_bytes - 1) < 0.01


def test_the_h100_by_the_hour_is_the_articles_month():
    price = period_price(OFFERS["idc10000-h100"], "hour")
    months = [round(end.amount * 730, -3) for end in (price.low, price.amount, price.high)]
    assert months == [12000, 15000, 18000]
    part = period_price(OFFERS["idc10000-h100-mig"], "hour")
    assert round(part.amount.amount * 7, 1) == Decimal("20.6")


def test_no_price_of_our_own_is_called_listed():
    ours = [offer for offer in OFFERS.values() if "ours" in offer.source or "/730" in offer.source]
    assert ours
    assert all(offer.provenance == "estimated" for offer in ours)


def test_an_unknown_offer_names_the_nearest():
    with pytest.raises(CatalogError) as caught:
        find_offer("idc10000-a100-41g", user_folder=NOWHERE)
    assert caught.value.code == "E034"
    assert "idc10000-a100-40g" in str(caught.value.values["names"])
    assert find_offer(" IDC10000-A100-40G ", user_folder=NOWHERE).claim == "A-P3"


QUOTE = """
id: mine
provider: Shop
gpu: 4090
currency: CNY
prices: [{term: month, amount: 1900}]
discounts: [{kind: term, terms: [year], percent: 20}]
as_of: 2026-11-30
source: a chat
"""


def row(text=QUOTE):
    return rows_of(yaml.safe_load(text), "quote.yaml")[0]


def test_a_quote_comes_and_goes(tmp_path):
    path = add_quote(row(), folder=tmp_path)
    assert path.parent == tmp_path
    offer = find_offer("mine", user_folder=tmp_path)
    assert str(period_price(offer, "year").amount.amount) == "1520.00"
    assert offer.node.gpu_id == "rtx-4090"
    assert offer.provenance == "quoted"
    with pytest.raises(CatalogError, match="E034"):
        add_quote(row(), folder=tmp_path)
    dearer = row(QUOTE.replace("1900", "2000"))
    add_quote(dearer, folder=tmp_path, replace=True)
    assert period_price(find_offer("mine", user_folder=tmp_path), "month").amount.amount == 2000
    remove_quote("mine", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CatalogError, match="E034"):
        remove_quote("mine", folder=tmp_path)


def test_a_quote_wins_over_a_shipped_offer_only_when_asked(tmp_path):
    same = row(QUOTE.replace("id: mine", "id: idc10000-3090"))
    with pytest.raises(CatalogError, match="E034"):
        add_quote(same, folder=tmp_path)
    add_quote(same, folder=tmp_path, replace=True)
    assert find_offer("idc10000-3090", user_folder=tmp_path).provider == "Shop"
    assert len(load_offers(user_folder=tmp_path, live=False)) == len(OFFERS)


def test_a_quote_on_an_unknown_card_does_not_get_in(tmp_path):
    with pytest.raises(CatalogError, match="E031"):
        add_quote(row(QUOTE.replace("4090", "RTX 9999")), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path):
    blocked = tmp_path / "offers"
    blocked.write_text("a file where a folder should be")
    with pytest.raises(CatalogError, match="E035"):
        add_quote(row(), folder=blocked)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("amount: 1900", "amount: -1", "prices.0.amount"),
        ("amount: 1900", "amount: .nan", "prices.0.amount"),
        ("amount: 1900", "amount: lots", "prices.0.amount"),
        ("percent: 20", "percent: 100", "discounts.0.percent"),
        ("percent: 20", "note: nothing", "discounts.0"),
        ("term: month", "term: fortnight", "prices.0.term"),
        ("currency: CNY", "currency: yuan", "currency"),
        ("gpu: 4090", "gpu: ''", "gpu"),
        ("as_of: 2026-11-30", "as_of: soon", "as_of"),
        ("source: a chat", "sauce: a chat", "source"),
        ("id: mine", "id: My Offer", "id"),
        ("id: mine", "id: ../../etc/x", "id"),
        ("prices: [{term: month, amount: 1900}]", "prices: []", "prices"),
        ("provider: Shop", "provider: Shop\nshare: mig", "-"),
        ("provider: Shop", "provider: Shop\nshare_fraction: 0.5", "-"),
        ("provider: Shop", "provider: Shop\nprice_low: 2000", "-"),
        ("provider: Shop", "provider: Shop\nnum_gpus: 0", "num_gpus"),
    ],
)
def test_a_wrong_value_is_named(old, new, key):
    with pytest.raises(InputError) as caught:
        row(QUOTE.replace(old, new))
    assert caught.value.code == "E035"
    assert str(caught.value.values["key"]).startswith(key)


def test_every_wrong_value_of_a_file_is_told():
    with pytest.raises(InputError) as caught:
        row(QUOTE.replace("amount: 1900", "amount: 0").replace("source: a chat", "colour: red"))
    keys = {str(problem.values["key"]) for problem in caught.value.problems}
    assert keys == {"prices.0.amount", "source", "colour"}


@pytest.mark.parametrize("document", [None, [], "text", 3, {"offers": []}, {"offers": "none"}])
def test_what_is_no_offer_at_all(document):
    with pytest.raises(LoracleError, match="E035"):
        rows_of(document, "quote.yaml")


def test_a_broken_quote_in_the_folder_is_one_error(tmp_path):
    (tmp_path / "x.yaml").write_text("id: [")
    with pytest.raises(CatalogError) as caught:
        load_offers(user_folder=tmp_path)
    assert caught.value.code == "E035"
    assert caught.value.values["line"] > 0


money = st.decimals(min_value="0.01", max_value="99999", places=2)
rows = st.builds(
    OfferRow,
    id=st.from_regex(r"\A[a-z0-9][a-z0-9.-]{0,20}\Z"),
    provider=st.text(min_size=1, max_size=20).filter(str.isprintable),
    gpu=st.sampled_from(["4090", "A100 40G", "NVIDIA H200"]),
    num_gpus=st.integers(1, 8),
    ram_gib=st.none() | st.floats(1, 4096),
    currency=st.sampled_from(["CNY", "USD", "EUR"]),
    prices=st.lists(st.sampled_from(TERMS), min_size=1, max_size=3, unique=True).flatmap(
        lambda terms: st.tuples(
            *(st.fixed_dictionaries({"term": st.just(term), "amount": money}) for term in terms)
        )
    ),
    discounts=st.lists(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["term", "coupon", "member", "loyalty"]),
                "percent": st.decimals(min_value="0.1", max_value="99.9", places=1),
                "per_renewal": st.booleans(),
            }
        ),
        max_size=3,
    ).map(tuple),
    as_of=st.dates(),
    valid_until=st.none() | st.dates(),
    source=st.text(min_size=1, max_size=20).filter(str.isprintable),
    notes=st.text(max_size=30).filter(str.isprintable),
)


@given(rows)
def test_what_is_written_is_what_is_read(offer):
    again = rows_of(yaml.safe_load(text_of(offer)), "x.yaml")[0]
    assert again == offer
    assert offer_of(again) == offer_of(offer)

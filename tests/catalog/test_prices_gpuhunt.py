"""gpuhunt's real client against a local server with its catalogs, and one that is down."""

import io
import json
import sys
import threading
import zipfile
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loracle.catalog.offers import load_offers
from loracle.catalog.prices_gpuhunt import refresh, snapshot_offers
from loracle.errors import CatalogError, MissingExtra

pytest.importorskip("gpuhunt")

HEADER = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,"
    "gpu_vendor,flags,cpu_arch,provider_data"
)
RUNPOD = f"""{HEADER}
dear,EU,0.80,8,32.0,1,RTX4090,24.0,False,,nvidia,,x86,{{}}
cheap,US,0.69,8,32.0,1,RTX4090,24.0,False,100.0,nvidia,,x86,{{}}
gone,US,0.20,8,32.0,1,RTX4090,24.0,True,,nvidia,,x86,{{}}
four,US,2.76,32,128.0,4,RTX4090,24.0,False,,nvidia,,x86,{{}}
a100,US,1.64,16,117.0,1,A100,80.0,False,,nvidia,,x86,{{}}
ada,US,0.77,16,62.0,1,RTX6000Ada,48.0,False,,nvidia,,x86,{{}}
pro,US,1.79,16,62.0,1,RTXPRO6000,96.0,False,,nvidia,,x86,{{}}
amd,US,2.49,16,62.0,1,MI300X,192.0,False,,amd,,x86,{{}}
old,US,0.10,4,16.0,1,RTX2060,6.0,False,,nvidia,,x86,{{}}
cpu,US,0.05,4,16.0,0,,,False,,,,x86,{{}}
"""


class Prices(BaseHTTPRequestHandler):
    """Publishes one provider's catalog; every other provider is missing."""

    csv = RUNPOD

    def do_GET(self):
        if self.path == "/runpod/version":
            content = b"20261130"
        elif self.path == "/runpod/20261130/catalog.zip":
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("runpod.csv", self.csv)
            content = buffer.getvalue()
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def served(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Prices)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


def test_a_refresh_keeps_the_cheapest_on_demand_machine_of_each_kind(tmp_path, served, capfd):
    done = refresh("2026-11-30", folder=tmp_path)
    assert done.path == tmp_path / "gpuhunt-2026-11-30.json"
    assert done.providers == ("runpod",)
    assert done.unknown_gpus == ("RTX2060 6GB",)
    offers = {offer.id: offer for offer in snapshot_offers(tmp_path)}
    assert set(offers) == {
        "runpod-rtx-4090", "runpod-rtx-4090x4", "runpod-a100-80gb-pcie", "runpod-rtx-6000-ada",
        "runpod-rtx-pro-6000",
    }  # fmt: skip
    one = offers["runpod-rtx-4090"]
    assert one.prices[0].amount.amount == Decimal("0.69")
    assert (one.prices[0].amount.currency, one.prices[0].term) == ("USD", "hour")
    assert (one.as_of, one.provenance, one.bills_whole_terms) == ("2026-11-30", "listed", False)
    assert one.node.num_cores == 8
    assert offers["runpod-rtx-4090x4"].node.num_gpus == 4
    assert capfd.readouterr().err == ""


def test_the_newest_snapshot_counts_and_the_offers_hold_it(tmp_path, served, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    refresh("2026-11-01")
    Prices.csv = RUNPOD.replace("0.69", "0.59")
    try:
        refresh("2026-11-30")
    finally:
        Prices.csv = RUNPOD
    held = {offer.id: offer for offer in load_offers()}
    assert held["runpod-rtx-4090"].prices[0].amount.amount == Decimal("0.59")
    assert "idc10000-3090" in held


def test_no_network_is_one_error_and_the_old_snapshot_stays(tmp_path, monkeypatch, capfd):
    old = tmp_path / "gpuhunt-2026-11-01.json"
    old.write_text('{"date": "2026-11-01", "offers": []}')
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", "http://127.0.0.1:9")
    with pytest.raises(CatalogError) as caught:
        refresh("2026-11-30", folder=tmp_path)
    assert caught.value.code == "E037"
    assert list(tmp_path.iterdir()) == [old]
    assert capfd.readouterr().err == ""


def test_without_the_extra_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gpuhunt", None)  # what import sees where it is missing
    with pytest.raises(MissingExtra) as caught:
        refresh("2026-11-30", folder=tmp_path)
    assert (caught.value.code, caught.value.values["extra"]) == ("E051", "prices")


def test_catalogs_without_a_known_card_are_one_error(tmp_path, served):
    Prices.csv = HEADER + "\n"
    try:
        with pytest.raises(CatalogError, match="E037"):
            refresh("2026-11-30", folder=tmp_path)
    finally:
        Prices.csv = RUNPOD
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"date": "2026-11-30", "offers": [{}]}', '{"date": 1, "offers": 3}'],
)
def test_a_broken_snapshot_is_one_error(tmp_path, text):
    (tmp_path / "gpuhunt-2026-11-30.json").write_text(text)
    with pytest.raises(CatalogError) as caught:
        snapshot_offers(tmp_path)
    assert caught.value.code == "E035"


def test_no_snapshot_is_no_offer(tmp_path):
    assert snapshot_offers(tmp_path) == ()


def test_a_price_that_is_no_number_is_one_error(tmp_path):
    row = {"id": "x", "provider": "p", "gpu": "rtx-4090", "num_gpus": 1, "usd_per_hour": "lots"}
    path = tmp_path / "gpuhunt-2026-11-30.json"
    path.write_text(json.dumps({"date": "2026-11-30", "offers": [row]}))
    with pytest.raises(CatalogError, match="E035"):
        snapshot_offers(tmp_path)

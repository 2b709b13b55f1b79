"""The examples of docs/catalog.md are real: they load, and say what the page says."""

import re
from pathlib import Path

import yaml

from loracle.catalog.gpus import find_gpu, load_gpus
from loracle.catalog.offer_file import offer_of, rows_of
from loracle.estimate.money import period_price
from loracle.units import GIB

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)


def test_the_card_example_loads(tmp_path):
    (tmp_path / "my-card.yaml").write_text(EXAMPLES[0], "utf-8")
    gpu = find_gpu("wet 4090", user_folder=tmp_path)
    assert (gpu.id, gpu.num_sms) == ("my-card", 128)
    assert gpu.sources["gemm_flops_per_s.bfloat16"].measured


def test_the_offer_example_loads_and_its_ladder_holds():
    offer = offer_of(rows_of(yaml.safe_load(EXAMPLES[1]), PAGE)[0])
    assert str(period_price(offer, "year", renewals=1).amount.amount) == "2140.00"
    assert str(period_price(offer, "quarter").amount.amount) == "2660.00"


def test_the_figures_on_the_page():
    cards = {gpu.id: gpu for gpu in load_gpus(user_folder=Path("/nonexistent"))}
    ratio = {
        name: cards[name].gemm_flops_per_s["bfloat16"] / cards[name].peak_flops_per_s["bfloat16"]
        for name in ("l4", "rtx-3090")
    }
    assert f"{ratio['l4']:.0%}" == "59%"
    assert f"{ratio['rtx-3090']:.0%}" == "108%"
    assert round(cards["rtx-4090"].usable_bytes / GIB, 2) == 23.52
    contexts = {name: cards[name].context_bytes / GIB for name in ("t4", "rtx-5090")}
    assert (round(contexts["t4"], 2), round(contexts["rtx-5090"], 1)) == (0.14, 0.6)

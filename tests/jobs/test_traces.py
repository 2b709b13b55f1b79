"""A real trace of a small model, made in its own process, kept on disk, and found again."""

import os
import sys
import time
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from loracle.catalog.gpus import find_gpu
from loracle.catalog.models import find_model
from loracle.domain.recipe import Recipe
from loracle.errors import EngineError
from loracle.jobs import traces
from loracle.jobs.trace_file import read_trace, trace_key, write_trace
from loracle.planner.exact import memory_of
from loracle.planner.memory_curve import memory_curve
from loracle.planner.resolve import resolve
from loracle.report.memory_svg import memory_svg

pytest.importorskip("torch")
GPU = find_gpu("rtx-3090")


def small_setup(**training):
    recipe = Recipe.model_validate({"model": "m", "training": {"seq_len": 512, **training}})
    return resolve(recipe, find_model("HuggingFaceTB/SmolLM2-135M", offline=True))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module")
def made(cache):
    shares = []
    return traces.traced(small_setup(), GPU, shares.append), shares


def test_the_trace_is_made_with_progress(made):
    trace, shares = made
    assert trace.trainable_params > 0
    assert shares
    assert shares == sorted(shares)


def test_the_second_time_it_is_read(made, cache):
    started = time.monotonic()
    again = traces.traced(small_setup(), GPU)
    assert again == made[0]
    assert time.monotonic() - started < 5  # no process, no torch
    assert len(list(cache.rglob("*.json.z"))) == 1


def test_a_broken_file_is_no_trace(made, tmp_path):
    path = tmp_path / "t.json.z"
    write_trace(made[0], path)
    assert read_trace(path) == made[0]
    path.write_bytes(path.read_bytes()[:-20])
    assert read_trace(path) is None


def test_the_key_holds_all_that_matters():
    base = small_setup()
    key = trace_key(base, (8, 6), {"torch": "1"})
    assert key == trace_key(small_setup(), (8, 6), {"torch": "1"})
    others = {
        trace_key(base.with_changes(micro_batch=2), (8, 6), {"torch": "1"}),
        trace_key(base, (9, 0), {"torch": "1"}),
        trace_key(base, (8, 6), {"torch": "2"}),
        trace_key(base.with_changes(lora=replace(base.lora, rank=8)), (8, 6), {"torch": "1"}),
    }
    assert key not in others
    assert len(others) == 4


def test_terms_of_a_trace_add_up_to_its_peak(made):
    memory = memory_of(made[0], GPU)
    total = sum(term.value for term in memory.terms)
    assert total == pytest.approx(memory.allocated_bytes.likely, rel=0.01)
    assert memory.device_bytes.likely > memory.reserved_bytes.likely


def test_the_picture_is_xml_that_stands_alone(made):
    picture = memory_svg(memory_curve(made[0]), "a <b> & c", str, usable_bytes=2e9,
                         usable_label="limit")  # fmt: skip
    root = ElementTree.fromstring(picture)
    assert root.tag.endswith("svg")
    assert "http" not in picture.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_what_cannot_be_run_says_why(cache):
    setup = small_setup()
    broken = setup.with_changes(
        model=replace(setup.model, config={**setup.model.config, "model_type": "no-such-type"})
    )
    with pytest.raises(EngineError) as caught:
        traces.traced(broken, GPU)
    assert caught.value.message == "dryrun.unknown_architecture"


def test_the_planner_process_stays_without_torch(cache, made):
    import subprocess

    script = (
        "import sys\n"
        "from loracle.catalog.gpus import find_gpu\n"
        "from loracle.catalog.models import find_model\n"
        "from loracle.domain.recipe import Recipe\n"
        "from loracle.planner.resolve import resolve\n"
        "from loracle.planner.exact import memory_of\n"
        "from loracle.jobs.traces import traced\n"
        "recipe = Recipe.model_validate({'model': 'm', 'training': {'seq_len': 512}})\n"
        "gpu = find_gpu('rtx-3090')\n"
        "setup = resolve(recipe, find_model('HuggingFaceTB/SmolLM2-135M', offline=True))\n"
        "memory_of(traced(setup, gpu), gpu)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"

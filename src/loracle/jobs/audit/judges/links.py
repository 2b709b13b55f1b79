"""The link to the host and between cards: width, generation, copies, content."""

from collections.abc import Iterator

from loracle.domain.audit import Check, Fingerprint
from loracle.jobs.audit.judges import thresholds as limit
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown
from loracle.jobs.audit.observation import Card, HostCopy, Peer

GROUP = "links"


def judge(card: Card, case: Case) -> Iterator[Check]:
    """Every link check of one card."""
    expected = case.expected(card)
    yield _width(card, case, expected)
    yield _generation(card, expected)
    yield _copies(card, case, expected)
    yield _replays(card, case)
    yield _nvlink(card, case, expected)


def judge_machine(case: Case) -> Iterator[Check]:
    """Copies between cards, with their content."""
    code, peers = "LRA-LINK-PEER", case.seen.peers
    if len(case.seen.cards) < 2:
        yield skipped(code, GROUP, None, "one_card")
        return
    if not peers:
        yield unknown(code, GROUP, None, (), {})
        return
    wrong = [peer for peer in peers if peer.mismatched]
    direct = [peer for peer in peers if peer.reported]
    slowest = min((peer.bytes_per_s for peer in peers if peer.bytes_per_s), default=0.0)
    status, means = "pass", None
    if wrong:
        status, means = "fail", say("means.peer_wrong", pairs=_pairs(wrong))
    elif not direct:
        status, means = "pass", say("means.no_peer", rate_bytes_per_s=slowest)
    yield Check(
        code=code, group=GROUP, status=status,
        found=say("found.peers", direct=len(direct), pairs=len(peers), rate_bytes_per_s=slowest),
        expected=say("expected.peer"), means=means, source="NVIDIA/nccl-tests #117",
        repeat="nvidia-smi topo -p2p r",
    )  # fmt: skip


def _pairs(peers: list[Peer]) -> str:
    return ", ".join(f"{peer.source}->{peer.target}" for peer in peers)


def _lanes(card: Card) -> tuple[int | None, int | None]:
    """(lanes under load, the most that card and slot together can do)."""
    now = card.copies.lanes if card.copies and card.copies.lanes else None
    now = now or (int(card.number("pcie_lanes") or 0) or None)
    return now, int(card.number("pcie_max_lanes") or 0) or None


def _width(card: Card, case: Case, expected: Fingerprint | None) -> Check:
    code = "LRA-LINK-WIDTH"
    now, maximum = _lanes(card)
    if now is None:
        return unknown(code, GROUP, card, ("pcie_lanes", "copies"), card.refusals)
    wanted = expected.pcie_lanes if expected else maximum or 16
    if now >= wanted or _copies_full(card, expected):
        status, means = "pass", None
    elif now * 2 >= wanted:
        status, means = "warn", say("means.narrow", lanes=now)
    else:
        needs = case.needs
        on_path = needs is not None and (needs.num_gpus > 1 or needs.moves_weights)
        status = "fail" if on_path or len(case.seen.cards) > 1 else "warn"
        means = say("means.narrow_on_path" if on_path else "means.narrow", lanes=now)
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.lanes", lanes=now), expected=say("expected.lanes", lanes=wanted),
        means=means, source="audit.source.sheet", repeat="nvidia-smi -q | grep -A8 'GPU Link Info'",
    )  # fmt: skip


def _generation(card: Card, expected: Fingerprint | None) -> Check:
    """Read under load: an idle link rests at generation 1."""
    code = "LRA-LINK-GENERATION"
    now = card.copies.generation if card.copies else None
    if not now:  # 0 is what some virtual links say
        return unknown(code, GROUP, card, ("copies", "pcie_generation"), card.refusals)
    slot = int(card.number("pcie_max_generation") or 0) or None
    own = expected.pcie_generation if expected else int(card.number("pcie_card_generation") or 0)
    wanted = min(value for value in (slot, own, 99) if value)
    below = wanted - now
    if below <= 0 or _copies_full(card, expected):
        status = "pass"
    else:
        status = "warn" if below == 1 else "fail"
    means = None
    if status != "pass":
        means = say("means.old_generation", generation=now, wanted=wanted)
    elif own and slot and slot < own:
        means = say("means.old_slot", generation=slot)
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.generation", generation=now),
        expected=say("expected.generation", generation=wanted if wanted < 99 else now),
        means=means, source="audit.source.link",
        repeat="nvidia-smi -q | grep -A8 'GPU Link Info'",
    )  # fmt: skip


def link_bytes_per_s(generation: int, lanes: int) -> float:
    """A good pinned copy's rate over such a link; widths under x16 scale."""
    return limit.PINNED_BYTES_PER_S.get(generation, 52e9) * lanes / 16


def _copies_full(card: Card, expected: Fingerprint | None) -> bool:
    """The copies reach what the card's whole link can do: then a lower link report is false."""
    if expected is None or card.copies is None:
        return False
    rate = _slower(card.copies)
    whole = link_bytes_per_s(expected.pcie_generation, expected.pcie_lanes)
    return rate is not None and rate >= limit.LINK_PASS * whole


def _slower(copies: HostCopy) -> float | None:
    rates = [one.best for one in (copies.to_device, copies.to_host) if one is not None]
    return min(rates) if rates else None


def _copies(card: Card, case: Case, expected: Fingerprint | None) -> Check:
    """Pinned copies against the link as it is; the floor against any link."""
    code = "LRA-LINK-COPY"
    rate = _slower(card.copies) if card.copies else None
    if card.copies is None or rate is None:
        return unknown(code, GROUP, card, ("copies",), card.refusals)
    lanes, _ = _lanes(card)
    generation = card.copies.generation
    if generation and lanes:
        good = link_bytes_per_s(generation, lanes)
    elif expected:
        good = link_bytes_per_s(expected.pcie_generation, expected.pcie_lanes)
    else:
        return unknown(code, GROUP, card, ("pcie_generation", "pcie_lanes"), card.refusals)
    share = rate / good
    if rate < limit.LINK_FLOOR or share < limit.LINK_WARN:
        status = "fail"
    else:
        status = "pass" if share >= limit.LINK_PASS else "warn"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say(
            "found.copies",
            up_bytes_per_s=card.copies.to_device.best if card.copies.to_device else rate,
            down_bytes_per_s=card.copies.to_host.best if card.copies.to_host else rate,
        ),
        expected=say(
            "expected.rate", low_bytes_per_s=max(limit.LINK_PASS * good, limit.LINK_FLOOR)
        ),
        means=None if status == "pass" else say("means.slow_link", load_seconds=14e9 / rate),
        source="RRZE-HPC/gpu-benches; Azure and OCI floors; vast.ai 2.85 GB/s",
        repeat="nvbandwidth -t host_to_device_memcpy_ce",
    )  # fmt: skip


def _replays(card: Card, case: Case) -> Check:
    code = "LRA-LINK-REPLAYS"
    before, after = card.number("pcie_replays"), card.after.get("pcie_replays")
    if before is None or not isinstance(after, int | float):
        return unknown(code, GROUP, card, ("pcie_replays",), card.refusals)
    grown = max(0, int(after - before))
    lanes, _ = _lanes(card)
    generation = (card.copies.generation if card.copies else None) or 4
    minutes = max(case.seen.seconds, 60) / 60
    allowed = limit.REPLAYS.get(generation, 1.92) * (lanes or 16) * minutes
    status = "fail" if grown > limit.REPLAYS_FAIL else "warn" if grown > allowed else "pass"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.replays", replays=grown),
        expected=say("expected.replays", replays=int(allowed)),
        means=None if status == "pass" else say("means.replays"), source="NVIDIA DCGM pcie plugin",
        repeat="nvidia-smi -q | grep -i replay",
    )  # fmt: skip


def _nvlink(card: Card, case: Case, expected: Fingerprint | None) -> Check:
    code = "LRA-LINK-NVLINK"
    sold = case.sold is not None and "nvlink" in case.sold.text.lower()
    if expected is None or not expected.nvlink_links or len(case.seen.cards) < 2:
        return skipped(code, GROUP, card, "no_nvlink")
    if card.nvlinks is None:
        return unknown(code, GROUP, card, ("nvlinks",), card.refusals)
    bridged = expected.family != "datacenter" or "PCIe" in expected.name
    if card.nvlinks >= expected.nvlink_links:
        status, means = "pass", None
    elif sold or (not bridged and "SXM" in expected.name):
        status, means = "fail", say("means.no_nvlink_sold")
    else:
        status, means = "pass", say("means.no_nvlink")
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.nvlinks", links=card.nvlinks),
        expected=say("expected.nvlinks", links=expected.nvlink_links), means=means,
        source=expected.sources["nvlink"], repeat="nvidia-smi nvlink -s",
    )  # fmt: skip

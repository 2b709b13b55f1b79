"""Is it the card that was sold: names and ids by independent paths, then physics.

A name can be forged in a container, a PCI id in the kernel's view hardly, and a multiprocessor
count, an FP64 rate or memory that holds what was written not at all.
"""

import math
from collections.abc import Iterator

from loracle.catalog.fingerprints import by_device_id, by_driver_name, load_fingerprints
from loracle.domain.audit import Check, Fingerprint
from loracle.jobs.audit.judges import thresholds as limit
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown
from loracle.jobs.audit.observation import Card

GROUP = "identity"


def judge(card: Card, case: Case) -> Iterator[Check]:
    """Every identity check of one card."""
    yield _sold(card, case)
    yield _agreement(card)
    expected = case.expected(card)
    if expected is None:
        for code in ("SM-COUNT", "CAPABILITY", "MEMORY", "L2", "HALF", "FP64", "NEAREST"):
            yield skipped(f"LRA-ID-{code}", GROUP, card, "not_in_table")
        return
    yield _sm_count(card, expected)
    yield _capability(card, expected)
    yield _memory(card, case, expected)
    yield _l2(card, expected)
    yield _half(card, expected)
    yield _fp64(card, expected)
    yield _nearest(card, expected)


def _sold(card: Card, case: Case) -> Check:
    code, claimed = "LRA-ID-SOLD", case.claimed(card)
    if case.sold is None:
        return skipped(code, GROUP, card, "nothing_sold")
    expected = case.expected(card)
    if claimed is None or expected is None:
        return Check(
            code=code, group=GROUP, status="unknown", device=card.index,
            found=say("found.card_unknown", name=card.name or "?", device_id=card.device_id or "?"),
            expected=say("expected.sold", text=case.sold.text),
        )  # fmt: skip
    if claimed in case.sold.fingerprints:
        status, means = "pass", None
    elif claimed.group == expected.group and claimed.family != "mining":
        status, means = "warn", say("means.variant", found=claimed.name, sold=expected.name)
    else:
        status, means = "fail", say("means.other_card", found=claimed.name, sold=expected.name)
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.card", name=claimed.name, device_id=card.device_id or "?"),
        expected=say("expected.sold", text=case.sold.text),
        source=expected.sources["ids"], means=means, repeat="nvidia-smi -L",
    )  # fmt: skip


def _agreement(card: Card) -> Check:
    """NVML, CUDA, /proc and /sys must tell one story; paths that are closed are only fewer."""
    code = "LRA-ID-AGREE"
    contradictions = [*_names_differ(card), *_ids_differ(card)]
    paths = [
        name
        for name, answered in (
            ("NVML", bool(card.nvml)),
            ("CUDA", card.cuda is not None),
            ("/proc", card.proc_model is not None),
            ("/sys", card.sys_device_id is not None),
        )
        if answered
    ]
    if contradictions:
        return Check(
            code=code, group=GROUP, status="fail", device=card.index,
            found=say("found.contradiction", details="; ".join(contradictions)),
            expected=say("expected.agree"), means=say("means.contradiction"),
            repeat="nvidia-smi -q; cat /proc/driver/nvidia/gpus/*/information",
        )  # fmt: skip
    return Check(
        code=code, group=GROUP, status="pass" if len(paths) >= 2 else "warn", device=card.index,
        found=say("found.paths", paths=", ".join(paths) or "-"), expected=say("expected.agree"),
        means=None if len(paths) >= 2 else say("means.one_path"),
        repeat="nvidia-smi -q; cat /proc/driver/nvidia/gpus/*/information",
    )  # fmt: skip


def _names_differ(card: Card) -> Iterator[str]:
    names = {
        "NVML": card.text("name"),
        "CUDA": card.cuda.name if card.cuda else None,
        "/proc": card.proc_model,
    }
    known = {path: _bare(name) for path, name in names.items() if name}
    if len(set(known.values())) > 1:
        yield ", ".join(f"{path} {names[path]}" for path in known)
    by_id = by_device_id(card.device_id)
    for path, name in names.items():
        by_name = by_driver_name(name, card.total_bytes)
        if by_id and by_name and by_id.group != by_name.group:
            yield f"{path} {name}, PCI {card.device_id} = {by_id.name}"
            return


def _bare(name: str) -> str:
    return name.split(" MIG ")[0].removeprefix("NVIDIA ").strip().lower()


def _ids_differ(card: Card) -> Iterator[str]:
    nvml_id = card.part("pci", "device_id")
    if card.sys_device_id and nvml_id and str(nvml_id).upper() != card.sys_device_id:
        yield f"PCI id: NVML {nvml_id}, /sys {card.sys_device_id}"
    if card.sys_vendor_id and card.sys_vendor_id != "10DE":
        yield f"PCI vendor: /sys {card.sys_vendor_id}"
    uuids = {
        "NVML": card.text("uuid_hash"),
        "CUDA": card.cuda.uuid_hash if card.cuda and not card.is_part else None,
        "/proc": card.proc_uuid_hash,
    }
    if len({value for value in uuids.values() if value}) > 1:
        yield "UUID: " + ", ".join(path for path, value in uuids.items() if value)
    nvml_capability = card.text("compute_capability")
    if card.cuda and card.cuda.compute_capability and nvml_capability:
        capability = "{}.{}".format(*card.cuda.compute_capability)
        if capability != nvml_capability:
            yield f"capability: NVML {nvml_capability}, CUDA {capability}"
    if card.cuda and card.cuda.total_bytes and card.total_bytes and not card.is_part:
        share = card.cuda.total_bytes / card.total_bytes
        if not 1 - limit.CUDA_BELOW_NVML <= share <= 1.005:
            mib = card.total_bytes >> 20, card.cuda.total_bytes >> 20
            yield "memory: NVML {} MiB, CUDA {} MiB".format(*mib)
    cores, sms = card.number("num_cores"), card.cuda.num_sms if card.cuda else None
    if cores and sms and not card.is_part and cores % 64 == 0:
        claimed = by_device_id(card.device_id) or by_driver_name(card.name, card.total_bytes)
        if claimed and cores / claimed.cores_per_sm != sms and sms == claimed.num_sms:
            yield f"cores: NVML {cores:.0f}, CUDA {sms} multiprocessors"


def _sm_count(card: Card, expected: Fingerprint) -> Check:
    code = "LRA-ID-SM-COUNT"
    sms = card.cuda.num_sms if card.cuda else None
    cores = card.number("num_cores")
    if sms is None and cores is not None:
        sms = round(cores / expected.cores_per_sm)
    if sms is None:
        return unknown(code, GROUP, card, ("cuda", "num_cores"), card.refusals)
    if card.is_part:
        return skipped(code, GROUP, card, "part")
    good = sms == expected.num_sms
    return Check(
        code=code, group=GROUP, status="pass" if good else "fail", device=card.index,
        found=say("found.sms", num_sms=sms),
        expected=say("expected.sms", num_sms=expected.num_sms, name=expected.name),
        source=expected.sources["sheet"],
        means=None if good else say("means.sm_count", share=sms / expected.num_sms),
        repeat="python -c \"import torch; print(torch.cuda.get_device_properties(0))\"",
    )  # fmt: skip


def _capability(card: Card, expected: Fingerprint) -> Check:
    code = "LRA-ID-CAPABILITY"
    found = card.cuda.compute_capability if card.cuda else None
    text = "{}.{}".format(*found) if found else card.text("compute_capability")
    if text is None:
        return unknown(code, GROUP, card, ("cuda", "compute_capability"), card.refusals)
    wanted = "{}.{}".format(*expected.compute_capability)
    return Check(
        code=code, group=GROUP, status="pass" if text == wanted else "fail", device=card.index,
        found=say("found.capability", capability=text),
        expected=say("expected.capability", capability=wanted, name=expected.name),
        source=expected.sources["sheet"],
        means=None if text == wanted else say("means.capability"),
        repeat="python -c \"import torch; print(torch.cuda.get_device_capability())\"",
    )  # fmt: skip


def _memory(card: Card, case: Case, expected: Fingerprint) -> Check:
    """The total in the card's window; a rebuilt board only where it was sold as one."""
    code, total = "LRA-ID-MEMORY", card.total_bytes
    if total is None:
        return unknown(code, GROUP, card, ("memory", "cuda"), card.refusals)
    if card.is_part or card.is_vgpu:
        return skipped(code, GROUP, card, "part")
    by_nvml = card.part("memory", "total_bytes") is not None
    below = limit.MEMORY_BELOW if by_nvml else limit.CUDA_BELOW_NVML
    sold_gib = case.sold.memory_gib if case.sold else None
    wanted = expected.memory_bytes
    if sold_gib is not None:
        known = expected.memory_bytes + expected.modified_bytes
        wanted = tuple(size for size in known if _is_size(size, sold_gib)) or wanted
    modified = any(_in_window(total, size, below) for size in expected.modified_bytes)
    if any(_in_window(total, size, below) for size in wanted):
        status, means = "pass", say("means.modified_sold") if modified else None
    elif modified:
        status, means = "warn", say("means.modified")
    else:
        status, means = "fail", say("means.memory_size", total_bytes=total)
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.total", total_bytes=total),
        expected=say("expected.total", low_bytes=min(wanted), high_bytes=max(wanted))
        if len(wanted) > 1
        else say("expected.one_total", total_bytes=wanted[0]),
        source=expected.sources["memory"], means=means,
        repeat="nvidia-smi --query-gpu=memory.total --format=csv",
    )  # fmt: skip


def _is_size(total: int, gib: int) -> bool:
    return abs(total / 2**30 - gib) <= max(1.0, 0.07 * gib)


def _in_window(total: int, size: int, below: float) -> bool:
    return size * (1 - below) <= total <= size * (1 + limit.MEMORY_ABOVE)


def _l2(card: Card, expected: Fingerprint) -> Check:
    code = "LRA-ID-L2"
    found = card.cuda.l2_bytes if card.cuda else None
    if expected.l2_bytes is None:
        return skipped(code, GROUP, card, "no_reference")
    if found is None:
        return unknown(code, GROUP, card, ("cuda",), card.refusals)
    if card.is_part:
        return skipped(code, GROUP, card, "part")
    good = 0.7 <= found / expected.l2_bytes <= 1.3  # tables differ by a tenth or two
    return Check(
        code=code, group=GROUP, status="pass" if good else "warn", device=card.index,
        found=say("found.l2", l2_bytes=found),
        expected=say("expected.l2", l2_bytes=expected.l2_bytes),
        source=expected.sources["l2"], means=None if good else say("means.l2"),
        repeat="python -c \"import torch; print(torch.cuda.get_device_properties(0))\"",
    )  # fmt: skip


def _half(card: Card, expected: Fingerprint) -> Check:
    """bf16 and fp16 run at one rate since Ampere; older chips emulate bf16, many times slower."""
    code = "LRA-ID-HALF"
    if expected.dtype != "bfloat16":
        return skipped(code, GROUP, card, "no_bf16")
    if card.fp16 is None or card.gemm is None or card.gemm.dtype != "bfloat16":
        return unknown(code, GROUP, card, ("gemm", "fp16"), card.refusals)
    ratio = card.gemm.best / card.fp16.best
    low, high = limit.HALF_RATIO
    good = low <= ratio <= high
    return Check(
        code=code, group=GROUP, status="pass" if good else "warn", device=card.index,
        found=say("found.half", bf16_flops_per_s=card.gemm.best, fp16_flops_per_s=card.fp16.best),
        expected=say("expected.half"), source=expected.sources["sheet"],
        means=None if good else say("means.half"), repeat="loracle audit --quick",
    )  # fmt: skip


def _fp64(card: Card, expected: Fingerprint) -> Check:
    """FP64 matmul rate against the card's class: no firmware can raise it."""
    code = "LRA-ID-FP64"
    if card.fp64 is None:
        return unknown(code, GROUP, card, ("fp64",), card.refusals)
    if card.is_part:
        return skipped(code, GROUP, card, "part")
    low, high = expected.fp64_flops_per_s
    low, high = low * (1 - limit.FP64_TOLERANCE), high * (1 + limit.FP64_TOLERANCE)
    rate = card.fp64.best
    if low <= rate <= high:
        status, means = "pass", None
    elif low / limit.FP64_OTHER_CLASS <= rate <= high * limit.FP64_OTHER_CLASS:
        status, means = "warn", say("means.fp64_off")
    else:
        status, means = "fail", say("means.fp64_class")
    ratio = card.fp32.best / rate if card.fp32 else None
    found = say("found.fp64", rate_flops_per_s=rate)
    if ratio:
        found = say("found.fp64_ratio", rate_flops_per_s=rate, ratio=round(ratio, 1))
    return Check(
        code=code, group=GROUP, status=status, device=card.index, found=found,
        expected=say("expected.flops", low_flops_per_s=low, high_flops_per_s=high),
        source=expected.sources["fp64"], means=means, repeat="loracle audit --quick",
    )  # fmt: skip


def _nearest(card: Card, expected: Fingerprint) -> Check:
    """The card of the table that the measurements are closest to."""
    code = "LRA-ID-NEAREST"
    measured = card.gemm is not None or card.bandwidth is not None or card.fp64 is not None
    if not measured or card.cuda is None:
        return unknown(code, GROUP, card, ("cuda", "gemm", "bandwidth"), card.refusals)
    if card.is_part or card.is_vgpu:
        return skipped(code, GROUP, card, "part")
    nearest = min(load_fingerprints(), key=lambda one: distance(card, one))
    same = nearest.id == expected.id or nearest.group == expected.group
    close = distance(card, expected) <= distance(card, nearest) + 0.25
    alike = (nearest.num_sms, nearest.compute_capability) == (
        expected.num_sms, expected.compute_capability
    )  # fmt: skip
    status = "pass" if same or close else "warn" if alike else "fail"
    return Check(
        code=code, group=GROUP, status=status, device=card.index,
        found=say("found.nearest", name=nearest.name if not close else expected.name),
        expected=say("expected.name", name=expected.name), source=expected.sources["sheet"],
        means=None if same or close else say("means.nearest", name=nearest.name),
        repeat="loracle audit",
    )  # fmt: skip


def distance(card: Card, one: Fingerprint) -> float:
    """How far a card's measurements are from a row of the table, in summed log ratios.

    Multiprocessors and capability are exact, so a difference there weighs heavily; rates are
    measured low by throttling or sharing, so they weigh a quarter.
    """
    total = 0.0
    if card.cuda and card.cuda.num_sms:
        total += 8 * abs(math.log(card.cuda.num_sms / one.num_sms))
    if card.cuda and card.cuda.compute_capability:
        total += 2.0 * (card.cuda.compute_capability != one.compute_capability)
    if card.total_bytes:
        sizes = one.memory_bytes + one.modified_bytes
        total += min(abs(math.log(card.total_bytes / size)) for size in sizes)
    if card.fp64:
        low, high = one.fp64_flops_per_s
        total += 0.5 * abs(math.log(card.fp64.best / math.sqrt(low * high)))
    if card.bandwidth:
        share = one.copy_share or limit.DEFAULT_COPY_SHARE
        total += 0.25 * abs(math.log(card.bandwidth.best / (share * one.bandwidth_bytes_per_s)))
    if card.gemm and one.measured_flops_per_s and card.gemm.dtype == one.dtype:
        total += 0.25 * abs(math.log(card.gemm.best / one.measured_flops_per_s[0]))
    return total

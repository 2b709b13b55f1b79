"""The machine around the cards: what the control group grants, and what this recipe will write."""

from collections.abc import Iterator

from loracle.domain.audit import Check
from loracle.jobs.audit.judges import thresholds as limit
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown

GROUP = "host"


def judge(case: Case) -> Iterator[Check]:
    """Every check of the host."""
    yield _cores(case)
    yield _neighbours(case)
    yield _ram(case)
    yield _shm(case)
    yield _disk_space(case)
    yield _disk_speed(case)
    yield _network(case)


def _cards(case: Case) -> int:
    return max(1, len(case.seen.cards))


def _cores(case: Case) -> Check:
    code, host = "LRA-HOST-CORES", case.seen.host
    if host.cores_granted is None:
        return unknown(code, GROUP, None, ("cores",), host.refusals)
    each = host.cores_granted / _cards(case)
    status = "pass" if each >= limit.CORES_PASS else "warn" if each >= limit.CORES_WARN else "fail"
    return Check(
        code=code, group=GROUP, status=status,
        found=say("found.cores", cores=round(each, 1), listed=host.cores_listed or 0),
        expected=say("expected.cores", cores=limit.CORES_PASS), source="B-R2",
        means=None if status == "pass" else say("means.few_cores", cores=round(each, 1)),
        repeat="nproc; cat /sys/fs/cgroup/cpu.max",
    )  # fmt: skip


def _neighbours(case: Case) -> Check:
    """Time that the cores were taken away: quota or another guest."""
    code, host = "LRA-HOST-CPU-TIME", case.seen.host
    throttled, steal = host.cpu_throttled_share, host.cpu_steal_share
    if throttled is None and steal is None:
        return unknown(code, GROUP, None, ("cpu_stat", "steal"), host.refusals)
    held, stolen = throttled or 0.0, steal or 0.0
    if held > limit.THROTTLED_FAIL or stolen > limit.STEAL_FAIL:
        status = "fail"
    else:
        over = held > limit.THROTTLED_WARN or stolen > limit.STEAL_WARN
        status = "warn" if over else "pass"
    return Check(
        code=code, group=GROUP, status=status,
        found=say("found.cpu_time", throttled_share=held, steal_share=stolen),
        expected=say("expected.cpu_time", share=limit.THROTTLED_WARN),
        means=None if status == "pass" else say("means.cpu_time"), source="cgroup cpu.stat",
        repeat="cat /sys/fs/cgroup/cpu.stat; head -1 /proc/stat",
    )  # fmt: skip


def _ram(case: Case) -> Check:
    code, host = "LRA-HOST-RAM", case.seen.host
    if host.ram_granted_bytes is None:
        return unknown(code, GROUP, None, ("ram",), host.refusals)
    each = host.ram_granted_bytes / _cards(case)
    status = "pass" if each >= limit.RAM_PASS else "warn" if each >= limit.RAM_WARN else "fail"
    card = max((one.total_bytes or 0 for one in case.seen.cards), default=0)
    means = None if status == "pass" else say("means.little_ram", ram_bytes=each)
    if status == "pass" and each < card:
        means = say("means.ram_below_card", ram_bytes=each)
    return Check(
        code=code, group=GROUP, status=status,
        found=say("found.ram", ram_bytes=each, listed_ram_bytes=host.ram_listed_bytes or 0),
        expected=say("expected.ram", ram_bytes=limit.RAM_PASS), source="B-R2", means=means,
        repeat="free -g; cat /sys/fs/cgroup/memory.max",
    )  # fmt: skip


def _shm(case: Case) -> Check:
    code, host, needs = "LRA-HOST-SHM", case.seen.host, case.needs
    if host.shm_bytes is None:
        return unknown(code, GROUP, None, ("shm",), host.refusals)
    workers = needs.num_workers if needs else 0
    several = len(case.seen.cards) > 1
    if host.shm_bytes >= limit.SHM_PASS:
        status = "pass"
    elif host.shm_bytes >= limit.SHM_WARN:
        status = "warn" if several or workers > 2 else "pass"
    else:
        status = "fail" if workers > 0 else "warn"
    return Check(
        code=code, group=GROUP, status=status, found=say("found.shm", shm_bytes=host.shm_bytes),
        expected=say("expected.shm", shm_bytes=limit.SHM_PASS if several else limit.SHM_WARN),
        means=None if status == "pass" else say("means.shm"), source="pytorch #5040; RunPod docs",
        repeat="df -h /dev/shm", by="renter",
    )  # fmt: skip


def _disk_space(case: Case) -> Check:
    """Against what the recipe will write; without a recipe, against a bare minimum."""
    code, host, needs = "LRA-HOST-DISK-SPACE", case.seen.host, case.needs
    places = [one for one in host.disks if one.role in ("output", "cache")]
    if not places:
        return unknown(code, GROUP, None, ("disks",), host.refusals)
    least = min(places, key=lambda one: one.free_bytes)
    free, total = least.free_bytes, least.total_bytes
    if needs and needs.disk_bytes:
        wanted = needs.disk_bytes
        status = "pass" if free >= 1.2 * wanted else "warn" if free >= wanted else "fail"
        expected, source = say("expected.disk_plan", needed_disk_bytes=wanted), "audit.source.plan"
        means = say("means.disk_short", needed_disk_bytes=max(0.0, 1.2 * wanted - free))
    else:
        low = free < limit.DISK_FREE_BYTES
        full = free < limit.DISK_FREE_SHARE * total
        status = "fail" if low and full else "warn" if low else "pass"
        expected = say("expected.disk", free_disk_bytes=limit.DISK_FREE_BYTES)
        source = "LLaMA-Factory #275"
        means = say("means.disk_small")
    return Check(
        code=code, group=GROUP, status=status,
        found=say("found.disk", free_disk_bytes=free), expected=expected, source=source,
        means=None if status == "pass" else means, repeat="df -h . \"${HF_HOME:-$HOME/.cache}\"",
        by="renter",
    )  # fmt: skip


def _disk_speed(case: Case) -> Check:
    code, host = "LRA-HOST-DISK-SPEED", case.seen.host
    read, write = host.disk_read_bytes_per_s, host.disk_write_bytes_per_s
    if read is None and write is None:
        return unknown(code, GROUP, None, ("disk",), host.refusals)
    rate = read if read is not None else write
    assert rate is not None
    status = "pass" if rate >= limit.DISK_PASS else "warn" if rate >= limit.DISK_FAIL else "fail"
    return Check(
        code=code, group=GROUP, status=status,
        found=say("found.disk_speed", read_bytes_per_s=read or 0.0, write_bytes_per_s=write or 0.0),
        expected=say("expected.rate", low_bytes_per_s=limit.DISK_PASS),
        means=None if status == "pass" else say("means.slow_disk", load_seconds=15e9 / rate),
        source="audit.source.disk",
        repeat="dd if=/dev/zero of=loracle-probe bs=1M count=2048 oflag=direct",
    )  # fmt: skip


def _network(case: Case) -> Check:
    code, host = "LRA-HOST-NETWORK", case.seen.host
    rate = host.download_bytes_per_s
    if rate is None:
        if "network" in host.refusals:
            return unknown(code, GROUP, None, ("network",), host.refusals)
        return skipped(code, GROUP, None, "network")
    if rate >= limit.NETWORK_PASS:
        status = "pass"
    else:
        status = "warn" if rate >= limit.NETWORK_FAIL else "fail"
    return Check(
        code=code, group=GROUP, status=status,
        found=say("found.network", rate_bytes_per_s=rate, name=host.download_from or "?"),
        expected=say("expected.rate", low_bytes_per_s=limit.NETWORK_PASS),
        means=None if status == "pass" else say("means.slow_network", load_seconds=15e9 / rate),
        source="vast.ai self-test: 100 Mb/s at least", repeat="loracle audit --network",
    )  # fmt: skip

"""Will the stack run on this card: driver, CUDA, torch, bitsandbytes, flash attention, dtypes.

Each failure names the mismatch and the remedy. Where only the provider can mend it (a driver on
a rented host), `by` says so.
"""

import re
from collections.abc import Iterator

from loracle.domain.audit import Check
from loracle.jobs.audit.judges import thresholds as limit
from loracle.jobs.audit.judges.case import Case, say, skipped, unknown

GROUP = "software"
# lowest driver of a CUDA major version (NVIDIA's minor-version compatibility)
DRIVER_FLOOR = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
BLACKWELL_DRIVER = (570, 0)
FIRST_CUDA = {(8, 0): (11, 0), (8, 6): (11, 1), (8, 9): (11, 8), (9, 0): (11, 8),
              (10, 0): (12, 8), (12, 0): (12, 8)}  # fmt: skip


def judge(case: Case) -> Iterator[Check]:
    """Every software check."""
    yield _runtime(case)
    yield _driver(case)
    yield _torch_build(case)
    yield _dtypes(case)
    yield _bitsandbytes(case)
    yield _flash(case)


def _capability(case: Case) -> tuple[int, int] | None:
    for card in case.seen.cards:
        if card.cuda and card.cuda.compute_capability:
            return card.cuda.compute_capability
        if text := card.text("compute_capability"):
            major, minor = text.split(".")
            return int(major), int(minor)
        claimed = case.expected(card)
        if claimed:
            return claimed.compute_capability
    return None


def _runtime(case: Case) -> Check:
    """Can CUDA be initialised at all, and whose fault is it if not."""
    code, software = "LRA-SW-CUDA", case.seen.software
    if software.torch is None:
        return unknown(code, GROUP, None, ("torch", "cuda"), software.refusals)
    if software.cuda_available:
        return Check(
            code=code, group=GROUP, status="pass", found=say("found.cuda_runs"),
            expected=say("expected.runs"),
            repeat="python -c \"import torch; print(torch.cuda.is_available())\"",
        )  # fmt: skip
    if not case.seen.cards and case.seen.paths.kernel_driver is None:
        return skipped(code, GROUP, None, "no_card")
    reason, by = _cuda_reason(case)
    return Check(
        code=code, group=GROUP, status="fail", found=say("found.cuda_error", reason=reason),
        expected=say("expected.runs"),
        means=say(f"means.cuda_{reason}", driver=software.driver or "?",
                  cuda=software.torch_cuda or "-"),
        source="horde-worker #349, nvidia-container-toolkit #48",
        repeat="python -c \"import torch; torch.zeros(1, device='cuda')\"", by=by,
    )  # fmt: skip


def _cuda_reason(case: Case) -> tuple[str, str]:
    """The kind of a failed start, by the error's own words; and who can mend it."""
    software, words = case.seen.software, case.seen.software.cuda_error.lower()
    if software.torch_cuda is None:
        return "cpu_build", "renter"
    if "804" in words or "forward compatibility" in words:
        return "forward_compat", "provider"
    if "802" in words or "not yet initialized" in words or "not initialised" in words:
        return "fabric", "provider"
    if "too old" in words or "insufficient" in words:
        return "driver_old", "provider"
    if case.seen.nvml_refusal == "LibraryMismatch":
        return "library_mismatch", "provider"
    if case.seen.nvml_refusal in ("Unknown", "NoPermission"):
        return "access_lost", "provider"
    if case.seen.paths.kernel_driver and case.seen.nvml_refusal in ("NotFound", "DriverNotLoaded"):
        return "no_runtime", "provider"
    return "other", "provider"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version or ""))


def _driver(case: Case) -> Check:
    """The driver against torch's CUDA and the card's generation."""
    code, software = "LRA-SW-DRIVER", case.seen.software
    if software.driver is None:
        return unknown(code, GROUP, None, ("driver_version",), software.refusals)
    have = _numbers(software.driver)[:2]
    cuda = _numbers(software.torch_cuda)
    floor = DRIVER_FLOOR.get(cuda[0], (0, 0)) if cuda else (0, 0)
    capability = _capability(case)
    if capability and capability[0] >= 10:
        floor = max(floor, BLACKWELL_DRIVER)
    if capability == (8, 9):
        floor = max(floor, (525, 60))
    good = have >= floor
    return Check(
        code=code, group=GROUP, status="pass" if good else "fail",
        found=say("found.driver", driver=software.driver, cuda=software.driver_cuda or "-"),
        expected=say("expected.driver", driver=".".join(str(part) for part in floor)),
        means=None if good else say("means.driver_old", driver=".".join(map(str, floor)),
                                    cuda=software.torch_cuda or "-"),
        source="NVIDIA CUDA compatibility guide; B-V4", repeat="nvidia-smi",
    )  # fmt: skip


def covers(arch_list: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a torch build runs on a card: same major and no newer minor, or older PTX."""
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+?)(\d)[af]?", arch)
        if match is None:
            continue
        built = int(match[2]), int(match[3])
        if match[1] == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            return True
        if match[1] == "compute" and built <= capability:
            return True
    return False


def _torch_build(case: Case) -> Check:
    """A real kernel on the card; the list of architectures explains a failure."""
    code, software, capability = "LRA-SW-TORCH", case.seen.software, _capability(case)
    kernels = [card.kernel for card in case.seen.cards if card.kernel is not None]
    if not kernels and (not software.arch_list or capability is None):
        return unknown(code, GROUP, None, ("torch", "kernel"), software.refusals)
    listed = capability is None or not software.arch_list or covers(software.arch_list, capability)
    runs = all(kernel.runs for kernel in kernels) if kernels else listed
    sm = "sm_{}{}".format(*capability) if capability else "?"
    found = say("found.torch", version=software.torch or "?", cuda=software.torch_cuda or "-")
    means = None
    if not runs and not listed:
        first = FIRST_CUDA.get(capability or (0, 0), (12, 8))
        means = say("means.no_kernel_image", arch=sm, archs=", ".join(software.arch_list),
                    cuda="{}.{}".format(*first))  # fmt: skip
    elif not runs:
        means = say("means.kernel_failed", reason=next((k.error for k in kernels if k.error), "?"))
    return Check(
        code=code, group=GROUP, status="pass" if runs else "fail", found=found,
        expected=say("expected.kernel", arch=sm), means=means,
        source="pytorch #149845; torch.cuda.get_arch_list()",
        repeat="python -c \"import torch; print(torch.ones(1, device='cuda') + 1)\"",
        by="renter" if not listed else "provider",
    )  # fmt: skip


def _dtypes(case: Case) -> Check:
    code, capability = "LRA-SW-DTYPES", _capability(case)
    kernels = [card.kernel for card in case.seen.cards if card.kernel and card.kernel.runs]
    if not kernels or capability is None:
        return unknown(code, GROUP, None, ("kernel",), case.seen.software.refusals)
    native = capability >= (8, 0)
    broken = [name for kernel in kernels for name, good in kernel.dtypes.items() if not good]
    wanted_broken = [name for name in broken if native or name != "bfloat16"]
    means = None if native else say("means.no_bf16")
    return Check(
        code=code, group=GROUP, status="fail" if wanted_broken else "pass",
        found=say("found.dtypes", names=", ".join(
            name for name, good in kernels[0].dtypes.items()
            if good and (native or name != "bfloat16")
        )),
        expected=say("expected.dtypes", name="bfloat16" if native else "float16"),
        means=say("means.dtype_broken", names=", ".join(broken)) if wanted_broken else means,
        source="compute capability 8.0 or newer for bf16",
        repeat="python -c \"import torch; print(torch.cuda.get_device_capability())\"",
    )  # fmt: skip


def _bitsandbytes(case: Case) -> Check:
    """A real 4-bit product against the 16-bit one."""
    code, tried = "LRA-SW-BNB", case.seen.software.bitsandbytes
    if tried is None:
        return unknown(code, GROUP, None, ("bitsandbytes", "software"), case.seen.software.refusals)
    needed = case.needs is None or case.needs.quantised
    error = tried.get("relative_error")
    version = str(tried.get("version") or "-")
    if isinstance(error, int | float) and error <= limit.NF4_ERROR:
        status, means = "pass", None
    elif isinstance(error, int | float):
        status, means = "fail", say("means.nf4_wrong", error_share=error)
    elif tried.get("installed") is False:
        status, means = "warn" if needed else "pass", say("means.bnb_missing")
    else:
        status = "fail" if needed else "warn"
        means = say("means.bnb_broken", reason=str(tried.get("error") or "?"),
                    cuda=case.seen.software.torch_cuda or "-")  # fmt: skip
    found = say("found.version", version=version)
    if isinstance(error, int | float):
        found = say("found.nf4", version=version, error_share=error)
    return Check(
        code=code, group=GROUP, status=status, found=found,
        expected=say("expected.nf4", error_share=limit.NF4_ERROR), means=means,
        source="bitsandbytes #966, #838", repeat="python -m bitsandbytes", by="renter",
    )  # fmt: skip


def _flash(case: Case) -> Check:
    """torch's own flash path, then the flash-attn package if it is there."""
    code, software, capability = "LRA-SW-FLASH", case.seen.software, _capability(case)
    sdpa, package = software.flash_sdpa, software.flash_attn
    if sdpa is None:
        return unknown(code, GROUP, None, ("flash_sdpa", "software"), software.refusals)
    if capability is not None and capability < (8, 0):
        return skipped(code, GROUP, None, "no_flash")
    runs = bool(sdpa.get("runs"))
    broken = bool(package and package.get("installed") and package.get("error"))
    means = None
    if not runs:
        means = say("means.no_flash_sdpa")
    elif broken and package:
        means = say("means.flash_attn_broken", reason=str(package.get("error")))
    return Check(
        code=code, group=GROUP, status="pass" if runs and not broken else "warn",
        found=say("found.flash", version=str(package.get("version") or "-") if package else "-"),
        expected=say("expected.runs"), means=means, source="flash-attention README",
        repeat="loracle audit --quick", by="renter",
    )  # fmt: skip

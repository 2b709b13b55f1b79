"""A healthy machine for any card of the fingerprint table, as a recording's plain document.

Faulty recordings are built on these, and the false-alarm test audits one of each card. To write
one: `python -m loracle.jobs.audit.healthy rtx-4090 healthy-rtx-4090.yaml`, with a number of cards
behind it if there are several.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from loracle.catalog.fingerprints import find_fingerprint
from loracle.domain.audit import Fingerprint

MIB = 2**20
BRANDS = {"geforce": 5, "datacenter": 14, "workstation": 13, "mining": 14}
ARCHITECTURES = {(6, 0): 4, (6, 1): 4, (7, 0): 5, (7, 5): 6, (8, 0): 7, (8, 6): 7, (8, 9): 8,
                 (9, 0): 9, (10, 0): 10, (12, 0): 10}  # fmt: skip
IDLE_WATTS = {"geforce": 0.05, "datacenter": 0.14, "workstation": 0.07, "mining": 0.1}


def healthy(card: Fingerprint, num_gpus: int = 1) -> dict[str, Any]:
    """The recording of a machine with so many of this card and nothing wrong with it."""
    return {
        "schema": "loracle.recorded-machine/1",
        "title": f"healthy {card.name}" + (f" x {num_gpus}" if num_gpus > 1 else ""),
        "case": "built from the fingerprint table, not recorded on a machine",
        "recorded_at": "2026-11-30T22:00:00Z",
        "seconds": 214,
        "sold": (f"{num_gpus}x " if num_gpus > 1 else "") + card.name,
        "expect": {"exit": 0, "keep": "keep", "codes": {}},
        "nvml": {
            "system": {
                "driver_version": "580.95.05",
                "nvml_version": "13.580.95.05",
                "cuda_driver_version": 13000,
                "device_count": num_gpus,
            },
            "devices": [_nvml(card, index) for index in range(num_gpus)],
        },
        "cuda": {
            "python": "3.12.3",
            "torch": "2.11.0+cu130" if card.compute_capability >= (7, 5) else "2.11.0+cu126",
            "torch_cuda": "13.0" if card.compute_capability >= (7, 5) else "12.6",
            "arch_list": _archs(card),
            "available": True,
            "devices": [_cuda(card, index) for index in range(num_gpus)],
            "packages": {"transformers": "5.17.0", "peft": "0.21.0", "bitsandbytes": "0.50.2"},
        },
        "files": _files(card, num_gpus),
        "facts": _facts(num_gpus),
        "probes": _probes(card, num_gpus),
    }


def _bus(index: int) -> str:
    return f"0000:{index + 1:02x}:00.0"


def _archs(card: Fingerprint) -> list[str]:
    if card.compute_capability < (7, 5):
        return ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
    return ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def _nvml(card: Fingerprint, index: int) -> dict[str, Any]:
    total = card.memory_bytes[0]
    limit = round(card.tdp_watts * 1000)
    ecc = card.family == "datacenter"
    number = "{}.{}".format(*card.compute_capability)
    return {
        "name": card.driver_names[0],
        "uuid_hash": f"{index:04x}a1b2c3d4e5f6",
        "serial_hash": {"refused": "NotSupported"} if not ecc else f"{index:04x}5e51a1000000",
        "vbios": "95.02.18.80.5d",
        "pci": {
            "bus_id": f"0000{_bus(index)}",
            "device_id": card.device_ids[0],
            "vendor_id": "10DE",
            "subsystem_id": "1458",
            "subsystem_vendor": "10DE",
        },
        "brand": BRANDS[card.family],
        "architecture": ARCHITECTURES[card.compute_capability],
        "compute_capability": number,
        "num_cores": card.num_sms * card.cores_per_sm,
        "bus_bits": card.bus_bits,
        "memory": {
            "total_bytes": total,
            "reserved_bytes": 380 * MIB,
            "free_bytes": total - 382 * MIB,
            "used_bytes": 2 * MIB,
        },
        "max_sm_mhz": round(card.boost_mhz * 1.2),
        "sm_mhz": 210,
        "events": 1,
        "celsius": 34,
        "slowdown_celsius": 90,
        "shutdown_celsius": 95,
        "power_mw": round(limit * IDLE_WATTS[card.family]),
        "power_limit_mw": limit,
        "power_default_mw": limit,
        "performance_state": 8,
        "utilisation": {"gpu_percent": 0, "memory_percent": 0},
        "pcie_generation": 1,
        "pcie_lanes": card.pcie_lanes,
        "pcie_max_generation": card.pcie_generation,
        "pcie_max_lanes": card.pcie_lanes,
        "pcie_card_generation": card.pcie_generation,
        "pcie_replays": 0,
        "ecc_mode": [1, 1] if ecc else {"refused": "NotSupported"},
        "ecc_uncorrected": 0 if ecc else {"refused": "NotSupported"},
        "ecc_corrected": 0 if ecc else {"refused": "NotSupported"},
        "remapped_rows": (
            {"correctable": 0, "uncorrectable": 0, "pending": 0, "failure": 0}
            if ecc and card.compute_capability >= (8, 0)
            else {"refused": "NotSupported"}
        ),
        "retired_single_bit": 0 if ecc and card.compute_capability < (8, 0) else None,
        "retired_double_bit": 0 if ecc and card.compute_capability < (8, 0) else None,
        "mig_mode": [0, 0] if card.compute_capability in ((8, 0), (9, 0), (10, 0)) else None,
        "virtualisation": 0,
        "num_processes": 0,
        "num_mps_processes": 0,
    }


def _cuda(card: Fingerprint, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "name": card.driver_names[0],
        "num_sms": card.num_sms,
        "compute_capability": "{}.{}".format(*card.compute_capability),
        "total_bytes": round(card.memory_bytes[0] * 0.985),
        "l2_bytes": card.l2_bytes or 4 * MIB,
        "bus_id": _bus(index),
        "uuid_hash": f"{index:04x}a1b2c3d4e5f6",
    }


def _files(card: Fingerprint, num_gpus: int) -> dict[str, Any]:
    texts = {
        "/proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:15 2025\n"
        )
    }
    for index in range(num_gpus):
        texts[f"/proc/driver/nvidia/gpus/{_bus(index)}/information"] = (
            f"Model: \t\t {card.driver_names[0]}\nIRQ:   \t\t 128\n"
            f"GPU UUID: \t {index:04x}a1b2c3d4e5f6\nVideo BIOS: \t 95.02.18.80.5d\n"
            f"Bus Location: \t {_bus(index)}\n"
        )
        folder = f"/sys/bus/pci/devices/{_bus(index)}"
        texts[f"{folder}/device"] = f"0x{card.device_ids[0].lower()}\n"
        texts[f"{folder}/vendor"] = "0x10de\n"
    return texts


def _facts(num_gpus: int) -> dict[str, Any]:
    return {
        "host": {
            "cores_granted": 16 * num_gpus,
            "cores_listed": 64,
            "ram_granted_bytes": 64 * 10**9 * num_gpus,
            "ram_listed_bytes": 256 * 10**9,
            "shm_bytes": 16 * 2**30,
            "cpu_throttled_share": 0.0,
            "cpu_steal_share": 0.0,
            "container": "docker",
        },
        "disks": [
            {"role": "output", "free_bytes": 180 * 10**9, "total_bytes": 200 * 10**9,
             "file_system": "ext4"},
            {"role": "cache", "free_bytes": 180 * 10**9, "total_bytes": 200 * 10**9,
             "file_system": "ext4", "same_as": "output"},
        ],
        "paths": {
            "preloads": [],
            "nvidia_smi": "elf",
            "environment": {},
            "slicer_files": [],
            "mapped_libraries": ["libnvidia-ml.so.580.95.05", "libcuda.so.580.95.05"],
            "device_nodes": num_gpus,
            "proc_cards": num_gpus,
        },
        "mounts": [
            {"mount_point": "/proc/driver/nvidia", "file_system": "tmpfs", "root_name": ""},
            {"mount_point": "/usr/bin/nvidia-smi", "file_system": "ext4",
             "root_name": "nvidia-smi"},
            {"mount_point": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05",
             "file_system": "ext4", "root_name": "libnvidia-ml.so.580.95.05"},
        ],
    }  # fmt: skip


def gemm_rate(card: Fingerprint) -> float:
    """A good card's matmul rate: the middle of what was published, or its kind's usual share."""
    if card.measured_flops_per_s:
        return sum(card.measured_flops_per_s) / 2
    share = {"geforce": 1.0, "datacenter": 0.78, "workstation": 0.8, "mining": 0.6}[card.family]
    return share * (card.peak_flops_per_s or 20e12)


def _probes(card: Fingerprint, num_gpus: int) -> dict[str, Any]:
    every = [_card_probes(card) for _ in range(num_gpus)]
    indices = [str(index) for index in range(num_gpus)]
    idle_watts = card.tdp_watts * IDLE_WATTS[card.family]
    probes = {
        "devices": every,
        "idle": {
            "devices": {
                index: {
                    "used_bytes": {"repeated": [[2 * MIB, 20]]},
                    "gpu_percent": {"repeated": [[0, 20]]},
                    "memory_percent": {"repeated": [[0, 20]]},
                    "watts": {"repeated": [[round(idle_watts, 1), 20]]},
                    "sm_mhz": {"repeated": [[210, 20]]},
                    "events": {"repeated": [[1, 20]]},
                }
                for index in indices
            }
        },
        "software": {
            "bitsandbytes": {"installed": True, "version": "0.50.2", "relative_error": 0.09},
            "flash_attn": {"installed": False},
            "flash_sdpa": {"runs": card.compute_capability >= (8, 0)},
        },
        "soak": {"devices": {index: _soak(card) for index in indices}, "xids": []},
        "disk": {"read_bytes_per_s": 2.6e9, "write_bytes_per_s": 1.9e9},
    }
    if num_gpus > 1:
        probes["together"] = {
            "devices": {
                index: {
                    "repeats": [round(0.935 * gemm_rate(card))],
                    "alone": round(0.95 * gemm_rate(card)),
                    "dtype": card.dtype,
                }
                for index in indices
            }
        }
        probes["peers"] = {
            "pairs": [
                {"source": one, "target": other, "reported": False, "bytes_per_s": 1.1e10,
                 "mismatched": 0}
                for one in range(num_gpus)
                for other in range(num_gpus)
                if one != other
            ]
        }  # fmt: skip
    return probes


def _card_probes(card: Fingerprint) -> dict[str, Any]:
    rate, copy = gemm_rate(card), (card.copy_share or 0.82) * card.bandwidth_bytes_per_s
    low, high = card.fp64_flops_per_s
    free = card.memory_bytes[0] - 900 * MIB
    # practical x16 pinned rates by generation: 12.3, 25, 52 GB/s
    link = {1: 3.1e9, 3: 12.3e9, 4: 25e9, 5: 52e9}[card.pcie_generation] * card.pcie_lanes / 16
    return {
        "kernel": {
            "runs": True,
            "context_bytes": 420 * MIB,
            "dtypes": {"float32": True, "float16": True, "bfloat16": True},
        },
        "timing": {
            "durations_us": {"repeated": [[1000, 900], [1004, 80], [1031, 20]]},
            "sm_mhz": card.boost_mhz,
            "max_sm_mhz": round(card.boost_mhz * 1.2),
            "events": 0,
        },
        "gemm_float16": {
            "repeats": [round(0.99 * rate)],
            "dtype": "float16",
            "size": 8192,
            "mismatches": 0,
        },
        "gemm_float32": {"repeats": [round(card.num_sms * card.boost_mhz * 1e6 * 180)],
                         "dtype": "float32", "size": 4096},
        f"gemm_{card.dtype}": {"repeats": [round(rate), round(0.995 * rate)], "dtype": card.dtype,
                               "size": 8192, "mismatches": 0},
        "gemm_float64": {"repeats": [round(0.95 * high if card.fp64_tensor_cores else 0.97 * low)],
                         "dtype": "float64", "size": 4096},
        "bandwidth": {"repeats": [round(copy), round(0.998 * copy)]},
        "copies": {
            "to_device": {"repeats": [round(0.97 * link)]},
            "to_host": {"repeats": [round(0.99 * link)]},
            "generation": card.pcie_generation,
            "lanes": card.pcie_lanes,
        },
        "pattern": {
            "free_bytes": free,
            "tested_bytes": round(0.94 * free),
            "mismatched_words": 0,
            "slowest_chunk_bytes_per_s": round(0.8 * copy),
            "median_chunk_bytes_per_s": round(0.9 * copy),
        },
        "after": {"pcie_replays": 0, "nvlinks": card.nvlink_links}
        | ({"ecc_uncorrected": 0, "ecc_corrected": 0} if card.family == "datacenter" else {}),
    }  # fmt: skip


def _soak(card: Fingerprint) -> dict[str, Any]:
    rate = 0.96 * gemm_rate(card)
    return {
        "seconds": {"every": 2, "to": 180},
        "flops_per_s": {"knots": [[0, round(rate)], [60, round(0.985 * rate)],
                                  [180, round(0.98 * rate)]]},
        "sm_mhz": {"knots": [[0, card.boost_mhz], [60, round(0.985 * card.boost_mhz)],
                             [180, round(0.98 * card.boost_mhz)]]},
        "celsius": {"knots": [[0, 41], [40, 62], [120, 70], [180, 71]]},
        "watts": {"knots": [[0, round(0.8 * card.tdp_watts)], [4, round(0.97 * card.tdp_watts)],
                            [180, round(0.98 * card.tdp_watts)]]},
        "events": {"repeated": [[4, 90]]},
    }  # fmt: skip


if __name__ == "__main__":
    name, path, *count = sys.argv[1:]
    made = healthy(find_fingerprint(name), int(count[0]) if count else 1)
    Path(path).write_text(
        yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=100), "utf-8"
    )

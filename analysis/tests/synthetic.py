"""Writes schema-1 files whose truth is known, the way the C++ writer does.

`Synthetic` holds the tables as lists of rows; a test breaks what it wants and calls `write`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import h5py
import numpy as np

NUMBER_TYPES: dict[str, dict[str, str]] = {
    "ranks": {n: "i4" for n in "rank dp_index tp_index local_rank pid threads allowed_cpus".split()},
    "clock": {"rank": "i4", "at_s": "f8", "offset_s": "f8", "uncertainty_s": "f8"},
    "steps": {"rank": "i4", "step": "i4", "warmup": "u1", "tokens": "i8"},
    "events": {
        **{n: "i4" for n in "rank step micro layer bucket group_size".split()},
        **{n: "u8" for n in "elements bytes sent_bytes".split()},
    },
    "memory": {"rank": "i4", "step": "i4", "bytes": "u8"},
    "memory_peak": {"rank": "i4", "peak_bytes": "u8"},
    "ledger": {"rank": "i4"},
    "tensors": {"index": "i4", "elements": "u8"},
    "calibration": {"layer": "i4"},
    "collectives": {
        **{n: "i4" for n in "rank line repetition warmup window".split()},
        **{n: "i8" for n in "size_bytes count sent_bytes wrong".split()},
    },
}
FIELDS = {
    "ranks": "rank dp_index tp_index local_rank host pid threads allowed_cpus affinity device",
    "clock": "rank at_s offset_s uncertainty_s",
    "steps": "rank step warmup start_s step_s compute_s exposed_s exposed_ag_forward_s"
    " exposed_ag_backward_s exposed_rs_s exposed_ar_s optimizer_s other_s tokens loss grad_norm",
    "events": "rank step micro layer bucket phase kind stream axis algorithm dtype group_size elements"
    " bytes sent_bytes issue_s start_s end_s wait_s",
    "memory": "rank step at_s category bytes",
    "memory_peak": "rank category peak_bytes",
    "ledger": "rank axis quantity expected measured padding unit",
    "tensors": "index name elements sum sum_of_squares",
    "calibration": "kind layer direction compute_alone_s communication_alone_s",
    "collectives": "rank line collective algorithm dtype reduction size_bytes count repetition warmup"
    " start_s end_s sent_bytes wrong window stop",
}
TEXT_FIELDS = {
    *("host", "affinity", "device", "phase", "kind", "stream", "axis", "algorithm"),
    *("dtype", "category", "quantity", "unit", "name", "direction", "collective", "reduction", "stop"),
}
PSI = 1200


@dataclass
class Synthetic:
    """One run in memory. Rows are dictionaries; all of them may be changed before writing."""

    attributes: dict[str, Any]
    config: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def row(self, table: str, **where: Any) -> dict[str, Any]:
        """The first row of a table with the given values."""
        return next(r for r in self.tables[table] if all(r[k] == v for k, v in where.items()))

    def write(self, path: Path) -> Path:
        with h5py.File(path, "w") as file:
            for name, value in self.attributes.items():
                types = {str: h5py.string_dtype(), int: "i8", float: "f8"}
                file.attrs.create(name, value, dtype=types[type(value)])
            file.create_dataset("config", data=json.dumps(self.config), dtype=h5py.string_dtype())
            for table, rows in self.tables.items():
                file.create_dataset(table, data=_array(table, rows))
        if self.attributes["status"] != "running":
            seal(path)
        return path


def seal(path: Path) -> None:
    """Gives the file the checksums of what it holds now, as a run does when it ends."""
    with h5py.File(path, "a") as file:
        file.attrs.pop("checksums", None)
        texts = {n: format(v, ".17g") if isinstance(v, float) else str(v) for n, v in file.attrs.items()}
        lines = "".join(f"{name}\0{text}\0" for name, text in sorted(texts.items())).encode()
        tables = {name: _table_sum(file[name][()]) for name in file if name != "config"}
        sums = {"attributes": crc32(lines), "config": crc32(file["config"][()]), "tables": tables}
        file.attrs.create("checksums", json.dumps(sums), dtype=h5py.string_dtype())


def _table_sum(rows: np.ndarray) -> int:
    fields = (rows.dtype.fields or {}).items()
    layout = "".join(f"{name} {kind.str} {offset}\n" for name, (kind, offset) in fields)
    return crc32(rows.tobytes(), crc32(f"{layout}{rows.dtype.itemsize}\n".encode()))


def _array(table: str, rows: Sequence[dict[str, Any]]) -> np.ndarray:
    def kind(name: str) -> Any:
        if name in TEXT_FIELDS:
            width = max([16, *(len(row[name].encode()) for row in rows)])
            return h5py.string_dtype("utf-8", width)
        return NUMBER_TYPES[table].get(name, "f8")

    names = FIELDS[table].split()
    array = np.zeros(len(rows), dtype=[(name, kind(name)) for name in names])
    for index, row in enumerate(rows):
        for name in names:
            array[name][index] = row[name].encode() if name in TEXT_FIELDS else row[name]
    return array


def synthetic(
    scenario: str = "zero3",
    size: int = 2,
    step_s: Sequence[float] = (0.010, 0.015, 0.011, 0.014, 0.013, 0.012, 0.016),
    warmup: int = 2,
    tp: int = 1,
    options: dict[str, Any] | None = None,
    launch: int = 0,
    **attributes: Any,
) -> Synthetic:
    """A valid run. `step_s` are the timed steps of the slowest rank, which is the last one."""
    run = Synthetic(
        attributes=_attributes(scenario, size, tp, launch) | attributes,
        config={
            "options": {
                **{"model": "tiny", "steps": len(step_s), "warmup": warmup, "trace": "events"},
                **{"communicators": 1, "prefetch": 1, "grad-accum": 1, "payload": "real"},
                **(options or {}),
            },
            "model": {"layers": 1, "hidden": 8, "seq": 32, "psi": PSI},
            "environment": {"OMP_NUM_THREADS": "1"},
            "wait_policy": "polite",
        },
    )
    durations = [0.050] * warmup + list(step_s)
    run.tables = {
        "ranks": [_rank(rank, tp) for rank in range(size)],
        "clock": [dict(rank=rank, at_s=0.0, offset_s=0.0, uncertainty_s=1e-6) for rank in range(size)],
        "steps": _steps(durations, warmup, size, tp),
        "events": _events(durations, size, tp, _passes(scenario)),
        "memory": _memory(size),
        "memory_peak": _memory_peak(size),
        "ledger": _ledger(scenario, size, size // tp),
        "tensors": [
            dict(index=i, name=f"tensor{i}", elements=PSI // 3, sum=0.5, sum_of_squares=2.0) for i in range(3)
        ],
        "calibration": [],
    }
    return run


def synthetic_collectives(size: int = 2, windows: int = 1, precision: float | None = None) -> Synthetic:
    """A valid run of the program collectives: one line of each collective, 1 + 2 · windows + 1 repetitions.

    Every window takes equally long, so that the interval of the median is as narrow as can be.
    """
    run = synthetic("collectives", size)
    run.attributes |= {"timer_overhead_s": 3e-8, "timer_resolution_s": 2e-8}
    run.config["options"] = {"warmup_iters": 1, "iters": 2, "check": 1, "op": ["sum"]}
    if precision is not None:
        run.config["options"] |= {"precision": precision, "budget": 10.0}
    checked = 2 * windows + 1
    run.config["model"] = {}
    run.tables |= {name: [] for name in run.tables if name not in ("ranks", "clock")}
    run.tables["collectives"] = [
        dict(
            rank=rank, line=line, collective=collective, algorithm="ring", dtype="bf16",
            reduction="none" if collective == "all_gather" else "maximum",
            size_bytes=64 * size, count=32 * size if collective == "all_reduce" else 32,
            repetition=repetition, warmup=int(repetition in (0, checked)),
            start_s=(checked + 1.0) * line + repetition, end_s=(checked + 1.0) * line + repetition + 0.5,
            sent_bytes=64 * (size - 1) * (2 if collective == "all_reduce" else 1),
            wrong=0 if repetition == checked else -1,
            window=(repetition - 1) // 2 if 0 < repetition < checked else -1,
            stop="iterations" if precision is None else "precision",
        )
        for line, collective in enumerate(("all_reduce", "reduce_scatter", "all_gather"))
        for rank in range(size)
        for repetition in range(checked + 1)
    ]  # fmt: skip
    return run


def _attributes(scenario: str, size: int, tp: int, launch: int) -> dict[str, Any]:
    return {
        **{"schema": "shardbench", "schema_version": 1, "scenario": scenario, "status": "complete"},
        **{"world_size": size, "dp": size // tp, "tp": tp, "psi": PSI, "backend": "mpi"},
        **{"compute": "real", "payload": "real", "simulated": 0, "git_commit": "0123456789abcdef"},
        **{"git_dirty": 0, "build_type": "Release", "created_utc": "2024-05-01T12:00:00Z"},
        **{"command_line": f"mpiexec -n {size} {scenario}", "mpi_library": "MPICH 4.0.2"},
        **{"hdf5_version": "1.10.8", "nccl_version": "", "seed": 1, "oversubscribed": 0},
        **{"launch_id": f"{scenario}-{size}-{launch}", "steady": 1, "check": "passed"},
    }


def _rank(rank: int, tp: int) -> dict[str, Any]:
    return dict(
        rank=rank, dp_index=rank // tp, tp_index=rank % tp, local_rank=rank, host="node1", pid=100 + rank,
        threads=1, allowed_cpus=64, affinity="0-63", device="cpu",
    )  # fmt: skip


def _steps(durations: Sequence[float], warmup: int, size: int, tp: int) -> list[dict[str, Any]]:
    """Other ranks are 1 ms faster and wait 1 ms longer than half of the slowest rank's wait."""
    rows = []
    for rank in range(size):
        start_s = 0.0
        for step, longest_s in enumerate(durations):
            is_last = rank == size - 1
            step_s = longest_s - (0.0 if is_last else 0.001)
            exposed_s = 0.25 * longest_s if is_last else 0.125 * longest_s + 0.001
            optimizer_s, other_s = 0.001, 0.0005
            rows.append(
                dict(
                    rank=rank, step=step, warmup=int(step < warmup), start_s=start_s, step_s=step_s,
                    compute_s=step_s - exposed_s - optimizer_s - other_s, exposed_s=exposed_s,
                    exposed_ag_forward_s=exposed_s, exposed_ag_backward_s=0.0, exposed_rs_s=0.0,
                    exposed_ar_s=0.0, optimizer_s=optimizer_s, other_s=other_s,
                    tokens=32 if rank % tp == 0 else 0, loss=5.0 - 0.1 * step, grad_norm=1.5,
                )  # fmt: skip
            )
            start_s += longest_s
    return rows


def _events(durations: Sequence[float], size: int, tp: int, passes: int) -> list[dict[str, Any]]:
    """In each step a gather that is waited for, and two that hide behind compute.

    The waits of a step are its exposed_s, its layers' compute is its compute_s, and the gathers are the ledger's.
    """
    dp = size // tp
    rows = []
    for step_row in _steps(durations, 0, size, tp):
        rank, step, start_s = step_row["rank"], step_row["step"], step_row["start_s"]
        half = durations[step] / 2
        exposed = step_row["exposed_s"]
        computed = max(half, exposed + step_row["compute_s"])
        # (layer, kind, stream, begin, end, elements); a wait repeats its collective's layer and elements.
        lanes = [
            (0, "all_gather", "comm", 0.0, exposed, PSI),
            (0, "wait", "compute", 0.0, exposed, PSI),
            (0, "compute", "compute", exposed, half, 0),
            (1, "all_gather", "comm", exposed, half, PSI),
            (1, "all_gather", "comm", half, half, (passes - 2) * PSI + 12),
            (1, "compute", "compute", half, computed, 0),
        ]
        for layer, kind, stream, begin, end, elements in lanes:
            begin_s, end_s = start_s + begin, start_s + end
            is_waited = layer == 0 and kind == "all_gather"
            rows.append(
                dict(
                    rank=rank, step=step, micro=0, layer=layer, bucket=-1, phase="forward", kind=kind,
                    stream=stream, axis="dp", algorithm="ring", dtype="bf16", group_size=dp,
                    elements=elements, bytes=2 * elements, sent_bytes=elements, issue_s=begin_s, start_s=begin_s,
                    end_s=end_s, wait_s=end_s - begin_s if is_waited else 0.0,
                )  # fmt: skip
            )
    return rows


def _passes(scenario: str) -> int:
    """How often a scheme moves the model's elements."""
    return 3 if scenario in ("zero3", "mesh2d") else 2


def _memory(size: int) -> list[dict[str, Any]]:
    return [
        dict(rank=rank, step=0, at_s=at_s, category=category, bytes=count)
        for rank in range(size)
        for at_s, category, count in [
            (0.0, "parameters", 2400),
            (0.1, "activations", 5000),
            (0.2, "activations", 1000),
            (0.3, "process_rss", 9_000_000),
        ]
    ]


def _memory_peak(size: int) -> list[dict[str, Any]]:
    """Rank r has r·10 bytes more activations, so the last rank needs most."""
    return [
        dict(rank=rank, category=category, peak_bytes=count)
        for rank in range(size)
        for category, count in [
            ("parameters", 2400),
            ("gradients", 2400),
            ("optimizer", 14400),
            ("activations", 5000 + 10 * rank),
            ("process_rss", 9_000_000),
            ("process_hwm", 9_500_000),
        ]
    ]


def _ledger(scenario: str, size: int, dp: int) -> list[dict[str, Any]]:
    """The ledger of a model of PSI parameters, with 12 elements of padding in the volume."""
    share = {"ddp": (1, 1, 1), "zero1": (1, 1, dp), "zero2": (1, dp, dp)}.get(scenario, (dp, dp, dp))
    memory = [bytes_ * PSI / n for bytes_, n in zip((2, 2, 12), share)]
    passes = _passes(scenario)
    volume = passes * PSI * (dp - 1) / dp
    padding = 12 * (dp - 1) / dp
    quantities = [
        ("world", "parameters_bytes", memory[0], 0, "bytes"),
        ("world", "gradients_bytes", memory[1], 0, "bytes"),
        ("world", "optimizer_bytes", memory[2], 0, "bytes"),
        ("world", "static_bytes", sum(memory), 0, "bytes"),
        ("dp", "all_gather_forward_count", 3, 0, "count"),
        ("dp", "all_gather_forward_size", passes * PSI, 12, "elements"),
        ("dp", "volume_elements", volume, padding, "elements"),
        ("dp", "volume_bytes", 2 * volume, 2 * padding, "bytes"),
    ]
    formulas = [
        ("dp", "textbook_volume_elements", volume, "elements"),
        ("world", "textbook_static_bytes", sum(memory), "bytes"),
    ]
    return [
        dict(rank=rank, axis=a, quantity=q, expected=e, measured=e + p, padding=p, unit=u)
        for rank in range(size)
        for a, q, e, p, u in quantities
    ] + [
        dict(rank=rank, axis=a, quantity=q, expected=e, measured=7 * e, padding=0, unit=u)
        for rank in range(size)
        for a, q, e, u in formulas
    ]

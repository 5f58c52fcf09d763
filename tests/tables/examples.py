"""Records and layouts that the tests of the tables share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from zo_sweeps.core.place import Place
from zo_sweeps.tables import Flag, Measure, Record, TableSpec
from zo_sweeps.tables.published import Published, read

ACCURACY = Measure(metric="test/metric", unit="%", unit_size=0.01, digits=1)
VERSIONS = {"torch": "2.13.0"}
MACHINE = {
    "kind": "cpu",
    "name": "A processor",
    "cores": 4,
    "runtime": "torch",
    "threads": 1,
    "versions": VERSIONS,
    "load": {"before": 0.0, "during": 0.02},
}
LR, Q = "update.lr", "estimator.q"


def measure(name: str) -> Measure:
    """The measure of conf/table/<name>.yaml."""
    return Measure.from_mapping(read("table", name), f"conf/table/{name}.yaml")


def spec(**changes: Any) -> TableSpec:
    values: dict[str, Any] = {
        "name": "small",
        "title": "A small table",
        "measure": ACCURACY,
        "rows": (("zo", "ZO-LoRA-FA (q>1)"),),
        "columns": (("sst2", "SST-2"),),
    }
    return TableSpec(**{**values, **changes})


def record(
    setting: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    dev: float | None = 0.5,
    test: float | None = 0.9,
    state: str = "SUCCEEDED",
    block: str = "zo",
    column: str = "sst2",
    **more: Any,
) -> Record:
    """A trial whose id says which it is."""
    setting = setting or {}
    trial_id = "-".join([block, column, *(f"{value}" for value in setting.values()), f"s{seed}"])
    metrics = {"dev/loss": dev, "test/metric": test} if state == "SUCCEEDED" else {}
    metrics = {name: value for name, value in metrics.items() if value is not None}
    return Record(
        **{
            "trial_id": trial_id,
            "block": block,
            "column": column,
            "seed": seed,
            "hyperparameters": setting,
            "state": state,
            "metrics": metrics,
            "places": (Place.of(MACHINE),),
            **more,
        }
    )


PUBLISHED = Published(
    reference="prge/table2",
    paper="P-RGE (arXiv:2409.15520)",
    caption="a small part",
    kind="accuracy",
    metric="accuracy",
    unit="%",
    columns=("SST-2", "RTE", "COPA", "WIC"),
    rows={
        "Zero-shot": {"SST-2": 58.0, "RTE": 59.2, "COPA": 79.0, "WIC": 50.0},
        "ZO-Full (q=1)": {"SST-2": 94.7, "RTE": 77.3, "COPA": 82.0, "WIC": 58.8},
        "ZO-LoRA-FA (q>1)": {"SST-2": 92.2, "RTE": 76.2, "COPA": 89.0, "WIC": 63.5},
    },
    footnotes=("one value a cell, without spread",),
    flags=(Flag("which q gave it is not stated", rows=("ZO-LoRA-FA (q>1)",)),),
)


def small() -> tuple[TableSpec, list[Record]]:
    """Three rows and four tasks that show every state a cell can be in, and names that need escaping."""
    layout = spec(
        title="Accuracy of tiny_model & friends",
        caption="100% made up",
        rows=(
            ("zero", "Zero-shot"),
            ("full", "ZO-Full (q=1)"),
            ("zo", "ZO-LoRA-FA (q>1)"),
            ("x_y", "50% | *odd*_~row^"),
        ),
        columns=(("sst2", "SST-2"), ("rte", "RTE"), ("copa", "COPA"), ("wic", "WiC")),
        published="prge/table2",
        published_rows={"zero": "Zero-shot", "full": "ZO-Full (q=1)", "zo": "ZO-LoRA-FA (q>1)"},
        flags=(Flag("F1 here", columns=("copa",)), Flag("its tokenizer differs", rows=("full",), columns=("rte",))),
        footnotes=("the last line",),
        caveats=("scale=smoke: 20 steps, not comparable",),
    )
    tasks = ("sst2", "rte", "copa", "wic")
    records = [record(block="zero", column=task, test=0.5 + i / 100) for i, task in enumerate(tasks[:3])]
    records.append(record(block="zero", column="wic", state="MISSING", note="wic: no folder data/wic"))
    lrs = (1e-7, 5e-7, 1e-6)
    for i, lr in enumerate(lrs):
        for seed in range(3):
            at = {"seed": seed, "block": "full", "order": 10 * i + seed}
            good = {"dev": 0.6 - 0.1 * (i == 1), "test": 0.9 + 0.01 * i + 0.004 * seed}
            records.append(record({LR: lr}, column="sst2", **at, **good))
            open_state = "SUCCEEDED" if i < 2 else ("RUNNING", "PENDING", "NOT_RUN")[seed]
            records.append(record({LR: lr}, column="rte", state=open_state, **at, **good))
            records.append(record({LR: lr}, column="copa", state="DIVERGED", **at))
            records.append(record({LR: lr}, column="wic", state="OUT_OF_MEMORY", **at))
    for i, (lr, q) in enumerate([(1e-4, 2), (1e-4, 4), (5e-4, 2), (5e-4, 4)]):
        for seed in range(3):
            at = {"seed": seed, "block": "zo", "order": 10 * i + seed}
            records.append(record({LR: lr, Q: q}, column="sst2", dev=0.4 - 0.01 * i, test=0.92 + 0.003 * seed, **at))
            begun = "RUNNING" if (i, seed) == (0, 1) else "SUCCEEDED" if (i, seed) == (0, 0) else "NOT_RUN"
            records.append(record({LR: lr, Q: q}, column="rte", state=begun, **at))
            records.append(record({LR: lr, Q: q}, column="copa", state="NOT_RUN", **at))
            records.append(record({LR: lr, Q: q}, column="wic", state="FAILED", **at))
    records += [record(block="x_y", column="sst2", test=None)]
    return layout, records


def shuffled(records: list[Record], seed: int) -> list[Record]:
    return random.Random(seed).sample(records, len(records))

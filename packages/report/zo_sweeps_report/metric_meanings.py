"""What every metric of an outcome means, in words."""

from __future__ import annotations

from collections.abc import Mapping

from zo_sweeps.core.memory_parts import MEANINGS, SCORING, TOTAL
from zo_sweeps.core.trial import ENERGY

METRICS: Mapping[str, str] = {
    "dev/loss": "at the selected step",
    "dev/metric": "the task's first, at the selected step; a share is a fraction of 1",
    "test/loss": "at the selected step",
    "test/metric": "the task's first, at the selected step; a share is a fraction of 1",
    "dev_loss_change": "dev loss at the selected step, minus that before the first step",
    "final_train_loss": "mean of the last 100 steps (of all, if fewer); a step's loss is the mean over its points",
    "seconds_per_step": "median over steps",
    "mean_seconds_per_step": "mean over steps",
    "train_seconds": "of steps only",
    "wall_seconds": "of the whole trial",
    "load_seconds": "of these, before the model and the rows were there",
    "tokens_per_second": "forwarded tokens in steps",
    "peak_memory_bytes": "as the device defines it",
    "weights_bytes": "of the stored model",
    **{part.metric: f"of the tensors alive at the peak of a step: {text}" for part, text in MEANINGS.items()},
    TOTAL: "the sum of these parts; of a trial without steps, all are those of a scored forward",
    SCORING: "of the tensors alive at the peak of the largest scored forward",
    "trainable_parameters": "d",
    "rows_truncated": "of all splits",
    "train_rows": "of the train split",
    "train_rows_short": "how many fewer rows than asked for",
    **{f"{split}_rows": f"of the {split} split" for split in ("dev", "test")},
    **{
        f"{one}_in_{other}{label}": f"rows of {one} with the inputs{text} of a row of {other}, if there are any"
        for one, other in (("test", "train"), ("test", "dev"), ("dev", "train"))
        for label, text in (("", ""), ("_labelled", " and the label"))
    },
    **{
        f"{split}_{what}": f"1 where all rows of {split} {text}"
        for split in ("train", "dev", "test")
        for what, text in (("labels", "have one label"), ("distinct", "are the same"))
    },
    "chance": "accuracy on test of a uniform guess, where every row has the same options",
    "majority": "accuracy on test of the most frequent label, always",
    "directions": "distinct ones of the run, where its generator repeats",
    "noise_to_signal": "rounding noise of a step's losses over their spread, root mean squares over measured steps",
    "updates_lost": "mean share of an update lost by rounding",
    "sum_bits": "of a sum of products, where a device does not sum in 32",
    "trained_bits": "of the model's own weights, where backpropagation trains them in less than 32",
    "state_bits": "per value of an optimizer's states, where less than 32",
    "recomputed": "1 where the backward pass computes layers again",
    "program_bytes": "of the exported program, weights included",
    "planned_bytes": "of intermediate values and theta, as the exported program's runtime plans them",
    "theta_difference": "largest |theta of the exported program - theta as the log gives it|, at the tested step",
    "battery_percent": "charge of the phone that ran it, the lowest reading",
    "battery_celsius": "temperature of that phone's battery, the highest reading",
    "drift": "of in-place perturbation: the largest |theta - theta restored|",
    "flops_per_step": "floating-point operations of the first step's matrix products, if counted",
    "seconds_per_token": "median over rounds of generation",
    "luts": "look-up tables of the circuit, synthesised for UltraScale+; of all copies",
    "ffs": "its flip-flops",
    "brams": "its block memories of 36 Kbit, half for one of 18",
    "ecp5_luts": "the same on an ECP5, after placement: look-up tables of 4 inputs",
    "ecp5_ffs": "its flip-flops there",
    "ecp5_brams": "its block memories of 18 Kbit there",
    "numbers_per_clock": "of all copies of a circuit",
    "luts_per_number": "look-up tables on UltraScale+ over the numbers per clock",
    "ecp5_mhz": "the highest clock of one copy there, the best of all placements, without pads",
    "clocks_checked": "simulated clocks whose outputs equal the engine's integers",
    f"{ENERGY}joules": "of steps only, as the device defines it",
    f"{ENERGY}joules_per_step": "mean over steps",
    f"{ENERGY}mean_watts": "mean over the time of the steps",
    f"{ENERGY}peak_watts": "highest mean over a second of steps or more",
    f"{ENERGY}own_share": "of the CPU time that the machine spent meanwhile, the trial's part",
    "device/celsius": "highest temperature between steps",
    "device/mhz": "clock between steps, mean over their time",
    "device/throttled_by_heat": "share of the steps' time in which the device was slowed down because of its heat",
    "device/throttled_by_power": "share of the steps' time in which it was slowed down to stay within its power",
    "fused_trials": "whose forwards were computed together with its own, itself included, at its start",
    "fused_gain": "how many times faster these forwards were together; 1: no faster, and so computed apart",
    "workers": "processes that share the steps, at their start, the leader included",
    "exchanged_bytes_per_step": "questions and answers of all followers",
    "peers_lost": "of those processes",
    "directions_redone": "by other processes, because a peer was lost or slow",
    "directions_dropped": "in all attempts",
    "rounds": "of clients",
    "clients_left_out": "answers of clients that were lost, late or wrong, with own rows or noise, in the last attempt",
    "client_bytes": "that a present client sends and receives in a round, on average: scalars, or weights",
    "client_bytes_up": "that all clients send in all rounds: losses, with noise coefficients, or weights",
    "client_bytes_down": "that they receive: coefficients, also of rounds in which they were absent, or weights",
    "epsilon": "of differential privacy at delta, for one row of a client",
    "delta": "of differential privacy",
    "noise_seeded": "1: the seed tells the noise of simulated clients",
    "agent_bytes_down": "of the files and the journal that an agent fetched for the last attempt",
    "agent_bytes_up": "of the events that an agent sent in the last attempt",
}

"""The page: what `streamlit run` executes at every touch. It shows what `runs` and `answers` know."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import altair
import pandas
import streamlit as st

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.units import bytes_text, duration, seconds_text
from zo_sweeps_demo import runs
from zo_sweeps_demo.answers import Compared, background
from zo_sweeps_demo.command import page_of, parsed
from zo_sweeps_demo.runs import Choice, Page, Progress, Run

if TYPE_CHECKING:
    from zo_sweeps.session.answers import Answer

POINTS = 300  # of a curve: of more, means of equal stretches
SECONDS = 1.0  # between two looks at a running journal
# Composing and planning take a good part of a second.
offered = st.cache_resource(max_entries=1)(runs.offered)
defaults = st.cache_resource(max_entries=64)(runs.defaults)
prepared = st.cache_resource(max_entries=64)(runs.prepare)


def show(page: Page) -> None:
    """Show the page."""
    st.set_page_config("zo_sweeps", layout="wide")
    st.title("Fine-tune with forward passes alone")
    try:
        with st.sidebar:
            choice = chosen(page)
        run = prepared(page, choice)
    except UserError as error:
        st.error(str(error))
        return
    st.code(str(run.command), language="bash", wrap_lines=True)
    moving = st.session_state.get("moving", True)
    st.fragment(watched, run_every=SECONDS if moving else None)(run, moving)
    for folder in runs.running(page):
        if folder != run.folder:
            st.caption(f"Another run goes on in {folder}; choose what it was made of to see it.")


def chosen(page: Page) -> Choice:
    """Show what there is to choose; return the choice. Raises UserError for bad input."""
    there, given = offered(page), page.given
    model = picked("Model", there.models, given.get("model", Choice.model), "model" in given)
    task = picked("Rows, or a reward", there.tasks, given.get("task", Choice.task), "task" in given)
    method = picked("Method", there.methods, given.get("method", Choice.method), "method" in given)
    st.caption(there.methods[method].partition(". ")[0])
    usual = defaults(page, model, task, method)
    of = f"{model}/{task}/{method}"  # another method has other defaults
    lr = None
    if usual.lr is not None:
        text = st.text_input("Learning rate", f"{usual.lr:.2g}", key=f"lr/{of}", disabled="update.lr" in given)
        lr = text.strip()
    q = None
    if usual.q is not None:
        q = st.number_input("q, directions per step", 1, None, usual.q, key=f"q/{of}", disabled="estimator.q" in given)
    steps = st.number_input("Steps", 1, None, Choice.steps, step=50)
    seed = st.number_input("Seed", 0, None, 0)
    return Choice(model, task, method, usual.prompt, lr, q, int(steps), int(seed))


def picked(label: str, names: Mapping[str, str], usual: str, fixed: bool) -> str:
    """Show a list of names; return the chosen one."""
    listed = list(names)
    form = lambda name: f"{names[name]} ({name})" if label != "Method" and names[name] else name
    return str(st.selectbox(label, listed, listed.index(usual), format_func=form, disabled=fixed))


def watched(run: Run, moving: bool) -> None:
    """Show a run: buttons, numbers, curves and answers. `moving`: whether the page looks again in a second."""
    try:
        now = runs.progress(run)
        buttons(run, now)
    except UserError as error:
        st.error(str(error))
        return
    facts(run, now)
    if now.error:
        st.error(now.error)
    for note in run.notes:
        st.caption(f"Note: {plain(note)}")
    known = background.latest(run.trial, now.journal, now.shown, sparing=now.alive) if now.step else None
    if now.step:
        curves(run, now)
        sentences(known)
    st.session_state.moving = now.alive or (now.step > 0 and (known is None or known.step != now.shown))
    if st.session_state.moving != moving:
        st.rerun()


def buttons(run: Run, now: Progress) -> None:
    """Show the buttons, and do what the pressed one says."""
    again, done = now.state in ("stopped", "failed"), now.state == "succeeded"
    with st.container(horizontal=True):
        if st.button("Resume" if again else "Start", type="primary", disabled=now.alive or now.outcome is not None):
            runs.start(run)
            st.rerun()
        if st.button("Stop", disabled=now.state not in ("starting", "running")):
            runs.stop(run.folder)
        adapter = st.button("Export adapter", disabled=not done)
        merged = st.button("Export model", disabled=not done)
    if adapter or merged:
        with st.spinner("exporting"):
            runs.export(run, merge=merged)
    for folder in runs.exported(run):
        st.success(f"written: {folder}")


def facts(run: Run, now: Progress) -> None:
    """Show numbers: state, steps, times, memory, score."""
    each, metric = now.seconds_per_step, run.metric
    scores = [value for _, _, value in now.curves["dev/metric"]]
    numbers = {
        "State": now.state,
        "Step": f"{now.step} of {run.trial.steps}",
        "Time per step": seconds_text(each) if each else "–",
        "Memory": bytes_text(now.memory_bytes) if now.memory_bytes else "–",
        f"Dev {metric.name}": f"{metric.printed(scores[-1])} {metric.unit}" if scores else "–",
    }
    with st.container(horizontal=True, gap="medium"):
        for name, text in numbers.items():
            st.metric(name, text, width="content")
    took = f"{duration(run.seconds)}" if run.seconds is not None else "no time before a first run"
    text = f"Predicted: {bytes_text(run.memory_bytes) if run.memory_bytes else 'memory not known'}, {took}."
    if now.outcome and "test/metric" in now.outcome.metrics:
        score = metric.printed(now.outcome.metrics["test/metric"])
        text += f" On test, with the weights after step {now.shown}: {metric.name} {score} {metric.unit}."
    st.caption(text)


def curves(run: Run, now: Progress) -> None:
    """Show loss and score by step."""
    losses = [(step, value, "train") for step, value in thinned(now.curves["train/loss"])]
    losses += [(step, value, "dev") for step, _, value in now.curves["dev/loss"]]
    scores = [(step, value / run.metric.unit_size, "dev") for step, _, value in now.curves["dev/metric"]]
    left, right = st.columns(2)
    left.altair_chart(chart(losses, "loss"))
    if scores:
        unit = f" ({run.metric.unit})" if run.metric.unit else ""
        right.altair_chart(chart(scores, f"{run.metric.name}{unit}"))


def chart(points: Sequence[tuple[int, float, str]], title: str) -> altair.Chart:
    """Return the curves of (step, value, rows)."""
    frame = pandas.DataFrame(points, columns=["step", "value", "rows"])
    colors = altair.Scale(domain=["dev", "train"], range=["#1f77b4", "#bbbbbb"])
    legend = altair.Legend(orient="top") if frame["rows"].nunique() > 1 else None
    made: altair.Chart = (
        altair.Chart(frame, height=240)
        .mark_line(point=len(points) <= runs.EVALUATIONS)
        .encode(
            x=altair.X("step:Q"),
            y=altair.Y("value:Q", title=title, scale=altair.Scale(zero=False)),
            color=altair.Color("rows:N", title=None, scale=colors, legend=legend),
        )
    )
    return made


def thinned(curve: Sequence[tuple[int, float, float]]) -> list[tuple[int, float]]:
    """Return (step, value) of a curve: of a long one, the means of equal stretches."""
    each = -(-len(curve) // POINTS) or 1
    stretches = [curve[i : i + each] for i in range(0, len(curve), each)]
    return [(part[-1][0], sum(value for _, _, value in part) / len(part)) for part in stretches]


def sentences(known: Compared | None) -> None:
    """Show rows of dev with the answers before training and now."""
    if known is None:
        st.caption("The answers come as soon as the model is loaded here, too.")
    elif known.error:
        st.caption(f"No answers: {plain(known.error)}")
    else:
        before, now = known.right(known.before), known.right(known.now)
        columns = {"text": [plain(one.prompt) for one, _ in known.rows]}
        columns["before"] = [marked(one) for one, _ in known.rows]
        if known.step:
            st.subheader(f"{known.changed} of {len(known.now)} answers on dev changed")
            st.caption(f"Right answers: {before} before training, {now} after step {known.step}.")
            columns["now"] = [marked(two) for _, two in known.rows]
        else:
            st.subheader(f"{before} of {len(known.before)} answers on dev are right before training")
        st.table(pandas.DataFrame(columns), hide_index=True)


def marked(answer: Answer) -> str:
    """Return an answer with a mark: right, or wrong."""
    mark = {True: ":green[✓] ", False: ":red[✗] ", None: ""}[answer.right]
    return mark + (plain(answer.text) or "–")


def plain(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!~|<>$:])", r"\\\1", text)


if __name__ == "__main__":
    show(page_of(parsed(sys.argv[1:])))

"""The report's charts, as Vega-Lite specifications of data that the page gives them by name: bins, curves, points.

Two parameters, ``method`` and ``threshold``, are the page's controls; it sets them in every chart that has them.
Colours are the page's CSS variables, so that charts follow its light and dark schemes, on screen and in print.
"""

from typing import Any

import altair as alt

from simplexcal.report.chart_data import STATES

Spec = dict[str, Any]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
AXIS_WIDTH = 44  # the same for all, so that charts above each other stand in line
SHARE = alt.Scale(domain=[0, 1])


def reliability_spec(method: str) -> Spec:
    """Draw each bin's accuracy over its mean confidence, with its interval, the diagonal and the network before."""
    bins = _chart("bins").transform_filter("datum.method === method")
    x = alt.X("says:Q", title=None, scale=SHARE, axis=alt.Axis(format=".0%"))
    y = alt.Y("right:Q", title="Is right", scale=SHARE, axis=_percent_axis())
    colour = alt.Color("state:N", scale=_colours(STATES, "wrong", "right", "low"), legend=None)
    shape = alt.Shape(
        "state:N",
        scale=alt.Scale(domain=STATES, range=["triangle-down", "circle", "triangle-up"]),
        legend=None,
    )
    diagonal = _chart(2).transform_calculate(says="datum.data", right="datum.data")
    diagonal = diagonal.mark_line(color="var(--muted)", strokeDash=[2, 4], strokeWidth=1.5)
    before = _chart("bins").transform_filter("datum.method === 'none' && method !== 'none'")
    ghost = before.mark_line(
        color="var(--faint)", point={"fill": "var(--surface)", "stroke": "var(--faint)"}
    )
    bars = bins.mark_rule(strokeWidth=7, strokeCap="round", opacity=0.3)
    points = bins.mark_point(filled=True, size=90, opacity=1)
    return _spec(
        alt.layer(
            diagonal.encode(x="says:Q", y="right:Q"),
            ghost.encode(x=x, y=y),
            bars.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
            points.encode(x=x, y=y, color=colour, shape=shape, tooltip=_bin_tooltip()),
            _threshold_rule(),
        ),
        300,
        method=method,
    )


def histogram_spec(method: str) -> Spec:
    """Draw how many inputs lie in each bin, right ones below, wrong ones above."""
    bins = _chart("bins").transform_filter("datum.method === method")
    parts = bins.transform_calculate(hits="datum.count * datum.right").transform_calculate(zero="0")
    x = alt.X("start:Q", title="Says (confidence)", scale=SHARE, axis=alt.Axis(format=".0%"))
    faded = alt.condition("datum.end > threshold", alt.value(1), alt.value(0.4))
    axis = alt.Axis(format="~s", tickCount=3, minExtent=AXIS_WIDTH)
    right, wrong = (
        parts.mark_bar(color=f"var(--{is_})", binSpacing=2) for is_ in ("right", "wrong")
    )
    return _spec(
        alt.layer(
            right.encode(
                x,
                alt.X2("end"),
                alt.Y("zero:Q", title="Inputs", axis=axis),
                alt.Y2("hits"),
                opacity=faded,
            ),
            wrong.encode(
                x,
                alt.X2("end"),
                alt.Y("hits:Q"),
                alt.Y2("count"),
                opacity=faded,
                tooltip=_bin_tooltip(),
            ),
            _threshold_rule(),
        ),
        100,
        method=method,
    )


def curve_spec(method: str, highest: float) -> Spec:
    """Draw the error rate of the surest inputs over their share; a rule stands where the threshold cuts."""
    curves = _chart("curves")
    x = alt.X(
        "coverage:Q",
        title="Answered (share of all inputs)",
        scale=SHARE,
        axis=alt.Axis(format=".0%"),
    )
    reach = alt.Scale(domain=[0, max(0.01, highest)], nice=True)
    y = alt.Y("risk:Q", title="Wrong among the answered", scale=reach, axis=_percent_axis())
    here = _chart().transform_calculate(coverage="answered", risk="wrong")
    here = here.transform_filter("answered > 0")
    return _spec(
        alt.layer(
            curves.mark_line(color="var(--faint)", strokeWidth=1.5).encode(x, y, detail="method:N"),
            curves.mark_line(color="var(--right)", strokeWidth=2.5)
            .transform_filter("datum.method === method")
            .encode(x, y),
            here.mark_rule(color="var(--ink)", strokeDash=[4, 3]).encode(x="coverage:Q"),
            here.mark_point(filled=True, size=110, color="var(--ink)", opacity=1).encode(
                x="coverage:Q", y="risk:Q"
            ),
        ),
        340,
        method=method,
        answered=1.0,
        wrong=0.0,
    )


def scatter_spec() -> Spec:
    """Draw each input's two uncertainties; a brush selects some, and inputs below the threshold are hollow."""
    brush = alt.selection_interval(name="brush")
    scale, pale = _colours(("right", "wrong"), "right", "wrong"), alt.value("var(--faint)")
    chart = _chart("points").mark_point(size=34, strokeWidth=1.2, opacity=0.85)
    chart = chart.encode(
        x=alt.X(
            "aleatoric:Q",
            title="Aleatoric: how mixed the input looks (nats)",
            axis=alt.Axis(tickCount=6),
        ),
        y=alt.Y(
            "epistemic:Q", title="Epistemic: how unfamiliar (nats)", scale=alt.Scale(zero=False)
        ),
        stroke=alt.condition(brush, alt.Stroke("is:N", scale=scale, legend=None), pale),
        fill=alt.condition(brush, alt.Fill("is:N", scale=scale, legend=None), pale),
        fillOpacity=alt.condition("datum.says >= threshold", alt.value(0.7), alt.value(0)),
        shape=alt.Shape(
            "is:N",
            scale=alt.Scale(domain=["right", "wrong"], range=["circle", "diamond"]),
            legend=None,
        ),
        tooltip=[
            alt.Tooltip("input:Q", title="input"),
            alt.Tooltip("said:N"),
            alt.Tooltip("true:N", title="is"),
            alt.Tooltip("says:Q", title="confidence", format=".1%"),
        ],
    )
    return _spec(chart.add_params(brush), 400)


def _spec(chart: Any, height: int, **params: Any) -> Spec:
    """Return the whole specification, as wide as its place on the page."""
    values = {"threshold": 0.0, **params}
    chart = chart.add_params(*(alt.param(name=name, value=value) for name, value in values.items()))
    chart = chart.properties(width="container", height=height, background="transparent")
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: Spec = chart.configure(**_CONFIG).to_dict()
    return spec


_INK: dict[str, Any] = {
    "labelColor": "var(--muted)",
    "titleColor": "var(--muted)",
    "titleFontWeight": 500,
}
_CONFIG: dict[str, Any] = {
    "font": FONT,
    "aria": False,  # the page describes each chart as a whole; a thousand labelled points help nobody
    "axis": _INK
    | {"labelFontSize": 12, "titleFontSize": 12, "titlePadding": 10, "gridColor": "var(--line)"}
    | {"domainColor": "var(--faint)", "tickColor": "var(--faint)", "labelFlush": False},
    "view": {"stroke": None},
}


def _chart(data: str | int = 1) -> Any:
    """Return an empty chart of the data of that name, or of the numbers 0, 1, ... below that one."""
    if isinstance(data, str):
        return alt.Chart(alt.NamedData(data))
    return alt.Chart(alt.sequence(0, data))


def _threshold_rule() -> Any:
    rule = _chart().transform_calculate(at="threshold").transform_filter("threshold > 0")
    return rule.mark_rule(color="var(--ink)", strokeDash=[4, 3]).encode(x="at:Q")


def _percent_axis() -> Any:
    return alt.Axis(format=".0%", tickCount=5, minExtent=AXIS_WIDTH)


def _colours(domain: tuple[str, ...], *names: str) -> Any:
    return alt.Scale(domain=list(domain), range=[f"var(--{name})" for name in names])


def _bin_tooltip() -> list[Any]:
    titles = {"says": "says", "right": "is right", "low": "95 % from", "high": "to"}
    return [
        alt.Tooltip(f"{field}:Q", title=title, format=".1%") for field, title in titles.items()
    ] + [alt.Tooltip("count:Q", title="inputs")]

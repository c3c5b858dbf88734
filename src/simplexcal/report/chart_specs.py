"""The charts of the report as Vega-Lite specifications of data that the page gives them by name.

The data are ``bins``, ``curves`` and ``points``. Two parameters, ``method`` and ``threshold``, are
the controls of the page, which sets them in every chart that has them. Colours are CSS variables of
the page, so that charts follow its light and dark schemes, on screen and in print.
"""

from typing import Any

import altair as alt

from simplexcal.report.chart_data import OUTCOMES, STATES, ChartData

Spec = dict[str, Any]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
AXIS_WIDTH = 44  # the same for all, so that charts above each other are aligned
SHARE = alt.Scale(domain=[0, 1])
STATE_COLOURS = alt.Scale(domain=STATES, range=["var(--wrong)", "var(--correct)", "var(--low)"])
STATE_SHAPES = alt.Scale(domain=STATES, range=["triangle-down", "circle", "triangle-up"])
OUTCOME_COLOURS = alt.Scale(domain=OUTCOMES, range=["var(--correct)", "var(--wrong)"])
OUTCOME_SHAPES = alt.Scale(domain=OUTCOMES, range=["circle", "diamond"])

_LABELS: dict[str, Any] = {
    "labelColor": "var(--muted)",
    "titleColor": "var(--muted)",
    "titleFontWeight": 500,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titlePadding": 10,
    "labelFlush": False,
}
_LINES: dict[str, Any] = {
    "gridColor": "var(--line)",
    "domainColor": "var(--faint)",
    "tickColor": "var(--faint)",
}
_CONFIG: dict[str, Any] = {
    "font": FONT,
    # The page describes each chart as a whole; a thousand labelled points help nobody.
    "aria": False,
    "axis": _LABELS | _LINES,
    "view": {"stroke": None},
}


def all_specs(charts: ChartData, method: str, noun: str = "inputs") -> dict[str, Spec]:
    """Return the specification of each chart by its name.

    Args:
        charts: What the charts show.
        method: The method that is shown at first.
        noun: What is counted.
    """
    highest = max(row["risk"] for row in charts.tables["curves"])
    specs = {
        "reliability": reliability_spec(method, noun),
        "histogram": histogram_spec(method, noun),
        "curve": curve_spec(method, highest, noun),
    }
    if charts.scatter is not None:
        specs["scatter"] = scatter_spec()
    return specs


def reliability_spec(method: str, noun: str = "inputs") -> Spec:
    """Draw the accuracy of each bin over its mean confidence, with its interval.

    The diagonal is perfect calibration; a grey line is the network before calibration.

    Args:
        method: The method that is shown at first.
        noun: What is counted.
    """
    bins = _chart("bins").transform_filter("datum.method === method")
    x = alt.X("confidence:Q", title=None, scale=SHARE, axis=alt.Axis(format=".0%"))
    y = alt.Y("accuracy:Q", title="Accuracy", scale=SHARE, axis=_percent_axis())
    colour = alt.Color("state:N", scale=STATE_COLOURS, legend=None)
    shape = alt.Shape("state:N", scale=STATE_SHAPES, legend=None)
    intervals = bins.mark_rule(strokeWidth=7, strokeCap="round", opacity=0.3)
    points = bins.mark_point(filled=True, size=90, opacity=1)
    layers = alt.layer(
        _diagonal(),
        _uncalibrated_line().encode(x=x, y=y),
        intervals.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
        points.encode(x=x, y=y, color=colour, shape=shape, tooltip=_bin_tooltip(noun)),
        _threshold_rule(),
    )
    return _spec(layers, 300, method=method)


def histogram_spec(method: str, noun: str = "inputs") -> Spec:
    """Draw how many inputs lie in each bin, correct ones below, wrong ones above.

    Args:
        method: The method that is shown at first.
        noun: What is counted.
    """
    bins = _chart("bins").transform_filter("datum.method === method")
    bins = bins.transform_calculate(hits="datum.count * datum.accuracy", zero="0")
    x = alt.X("start:Q", title="Confidence", scale=SHARE, axis=alt.Axis(format=".0%"))
    axis = alt.Axis(format="~s", tickCount=3, minExtent=AXIS_WIDTH)
    bottom = alt.Y("zero:Q", title=noun.capitalize(), axis=axis)
    faded = alt.condition("datum.end > threshold", alt.value(1), alt.value(0.4))
    correct = bins.mark_bar(color="var(--correct)", binSpacing=2)
    wrong = bins.mark_bar(color="var(--wrong)", binSpacing=2)
    layers = alt.layer(
        correct.encode(x=x, x2="end", y=bottom, y2="hits", opacity=faded),
        wrong.encode(
            x=x, x2="end", y="hits:Q", y2="count", opacity=faded, tooltip=_bin_tooltip(noun)
        ),
        _threshold_rule(),
    )
    return _spec(layers, 100, method=method)


def curve_spec(method: str, highest: float, noun: str = "inputs") -> Spec:
    """Draw the risk over the coverage; a dashed rule shows the coverage at the threshold.

    Args:
        method: The method that is shown at first.
        highest: The highest risk of all curves.
        noun: What is counted.
    """
    curves = _chart("curves")
    axis = alt.Axis(format=".0%")
    x = alt.X("coverage:Q", title=f"Coverage (share of {noun} answered)", scale=SHARE, axis=axis)
    reach = alt.Scale(domain=[0, max(0.01, highest)], nice=True)
    y = alt.Y("risk:Q", title="Risk (error rate among them)", scale=reach, axis=_percent_axis())
    others = curves.mark_line(color="var(--faint)", strokeWidth=1.5)
    own = curves.mark_line(color="var(--correct)", strokeWidth=2.5)
    own = own.transform_filter("datum.method === method")
    here = _chart().transform_calculate(coverage="answered", risk="wrong")
    here = here.transform_filter("answered > 0")
    rule = here.mark_rule(color="var(--ink)", strokeDash=[4, 3])
    point = here.mark_point(filled=True, size=110, color="var(--ink)", opacity=1)
    layers = alt.layer(
        others.encode(x=x, y=y, detail="method:N"),
        own.encode(x=x, y=y),
        rule.encode(x="coverage:Q"),
        point.encode(x="coverage:Q", y="risk:Q"),
    )
    return _spec(layers, 340, method=method, answered=1.0, wrong=0.0)


def scatter_spec() -> Spec:
    """Draw the two uncertainties of each input.

    A brush selects inputs. Inputs whose confidence is below the threshold are hollow.
    """
    brush = alt.selection_interval(name="brush")
    pale = alt.value("var(--faint)")
    stroke = alt.Stroke("outcome:N", scale=OUTCOME_COLOURS, legend=None)
    fill = alt.Fill("outcome:N", scale=OUTCOME_COLOURS, legend=None)
    is_kept = "datum.confidence >= threshold"
    chart = _chart("points").mark_point(size=34, strokeWidth=1.2, opacity=0.85)
    chart = chart.encode(
        x=alt.X(
            "aleatoric:Q",
            title="Aleatoric: how mixed the input looks (nats)",
            axis=alt.Axis(tickCount=6),
        ),
        y=alt.Y(
            "epistemic:Q",
            title="Epistemic: how unfamiliar (nats)",
            scale=alt.Scale(zero=False),
        ),
        stroke=alt.condition(brush, stroke, pale),
        fill=alt.condition(brush, fill, pale),
        fillOpacity=alt.condition(is_kept, alt.value(0.7), alt.value(0)),
        shape=alt.Shape("outcome:N", scale=OUTCOME_SHAPES, legend=None),
        tooltip=_point_tooltip(),
    )
    return _spec(chart.add_params(brush), 400)


def _spec(chart: Any, height: int, **params: Any) -> Spec:
    """Return the whole specification, as wide as its place on the page."""
    params["threshold"] = 0.0
    for name, value in params.items():
        chart = chart.add_params(alt.param(name=name, value=value))
    chart = chart.properties(width="container", height=height, background="transparent")
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: Spec = chart.configure(**_CONFIG).to_dict()
    return spec


def _chart(data: str | int = 1) -> Any:
    """Return an empty chart of the data of that name, or of the numbers 0, 1, ... below that."""
    if isinstance(data, str):
        return alt.Chart(alt.NamedData(data))
    return alt.Chart(alt.sequence(0, data))


def _diagonal() -> Any:
    line = _chart(2).transform_calculate(confidence="datum.data", accuracy="datum.data")
    line = line.mark_line(color="var(--muted)", strokeDash=[2, 4], strokeWidth=1.5)
    return line.encode(x="confidence:Q", y="accuracy:Q")


def _uncalibrated_line() -> Any:
    """Return the network before calibration, drawn where another method is shown."""
    before = _chart("bins").transform_filter("datum.method === 'none' && method !== 'none'")
    point = {"fill": "var(--surface)", "stroke": "var(--faint)"}
    return before.mark_line(color="var(--faint)", point=point)


def _threshold_rule() -> Any:
    rule = _chart().transform_calculate(at="threshold").transform_filter("threshold > 0")
    return rule.mark_rule(color="var(--ink)", strokeDash=[4, 3]).encode(x="at:Q")


def _percent_axis() -> Any:
    return alt.Axis(format=".0%", tickCount=5, minExtent=AXIS_WIDTH)


def _bin_tooltip(noun: str) -> list[Any]:
    return [
        alt.Tooltip("confidence:Q", format=".1%"),
        alt.Tooltip("accuracy:Q", format=".1%"),
        alt.Tooltip("low:Q", title="95 % from", format=".1%"),
        alt.Tooltip("high:Q", title="to", format=".1%"),
        alt.Tooltip("count:Q", title=noun),
    ]


def _point_tooltip() -> list[Any]:
    return [
        alt.Tooltip("id:N", title="input"),
        alt.Tooltip("prediction:N", title="predicted"),
        alt.Tooltip("label:N", title="true class"),
        alt.Tooltip("confidence:Q", format=".1%"),
    ]

/* Adds to htmx: the overview's charts, live updates, and details that stay open when a part is updated. */
"use strict";
(function () {
  const MOST = 900; // samples
  const GAP_S = 90;
  const SPAN_S = 60; // the least span of a chart
  let last_s = null; // time of the last sample
  const charts = [];

  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const shown = {
    rate: (v) => (v >= 100 || v === 0 ? Math.round(v).toLocaleString("en") : v.toFixed(1)),
    count: (v) => Math.round(v).toLocaleString("en"),
    seconds: (v) => (v * 1000).toFixed(v < 0.01 ? 1 : 0) + " ms",
    size: (v) => {
      let unit = 0;
      while (v >= 1024 && unit < units.length - 1) { v /= 1024; unit++; }
      return v.toFixed(unit && v < 100 ? 1 : 0) + " " + units[unit];
    },
  };

  const clock = (at_s) => new Date(at_s * 1000).toTimeString().slice(0, 8);

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function options(box, names, unit) {
    const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
    const lines = names.map((name, i) => ({
      label: name, stroke: () => colour(i ? "--two" : "--one"), width: 1.75, points: { show: false },
      value: (_, v) => (v === null ? "" : shown[unit](v)),
    }));
    return {
      width: box.clientWidth, height: 150, legend: { show: false }, cursor: { y: false },
      scales: { x: { range: (_, low, high) => [Math.min(low, high - SPAN_S), high] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
      axes: [{ ...axis, size: 28, space: 90, values: (_, values) => values.map(clock) }, { ...axis, size: 72, values: (_, values) => values.map(shown[unit]) }],
      series: [{}, ...lines],
    };
  }

  function begin() {
    if (typeof uPlot === "undefined") return;
    for (const box of document.querySelectorAll("[data-chart]")) {
      const names = box.dataset.chart.split(" ");
      const data = [[], ...names.map(() => [])];
      charts.push({ box, names, data, plot: new uPlot(options(box, names, box.dataset.unit), data, box) });
    }
  }

  function sample() {
    const live = document.getElementById("live");
    if (!live || !live.dataset.sample) return;
    const said = JSON.parse(live.dataset.sample);
    if (said.at_s === last_s) return;
    if (last_s === null) add({ at_s: said.at_s - SPAN_S }); // an axis needs two times
    else if (said.at_s > last_s + GAP_S) add({ at_s: last_s + 1 }); // a gap in the line while the page was not visible
    last_s = said.at_s;
    add(said);
  }

  function add(said) {
    for (const chart of charts) {
      const columns = [said.at_s, ...chart.names.map((name) => said[name] ?? null)];
      columns.forEach((value, i) => {
        chart.data[i].push(value);
        if (chart.data[i].length > MOST) chart.data[i].shift();
      });
      chart.plot.setData(chart.data);
    }
  }

  function resize() {
    for (const { box, plot } of charts) plot.setSize({ width: box.clientWidth, height: 150 });
  }

  let folded = [];
  function remember() {
    folded = [...document.querySelectorAll("details[id]")].map((one) => [one.id, one.open]);
  }
  function unfold() {
    for (const [id, open] of folded) {
      const one = document.getElementById(id);
      if (one) one.open = open;
    }
  }
  document.addEventListener("htmx:beforeSwap", remember);
  document.addEventListener("htmx:afterSwap", unfold);

  // A stream sends the live part. Without one (their number is limited) htmx requests it.
  let stream = null;

  function follow() {
    const live = document.getElementById("live");
    if (stream || document.hidden || !live || !live.dataset.stream) return;
    const url = live.dataset.stream;
    stream = new EventSource(url);
    const show = (event) => {
      remember();
      htmx.swap("#live", event.data, { swapStyle: "outerHTML", swapDelay: 0, settleDelay: 0 });
      unfold();
      sample();
      const live = document.getElementById("live");
      if (!live || !live.dataset.stream) leave(); // the part will not change any more
    };
    stream.addEventListener("part", show);
    stream.addEventListener("last", (event) => { leave(); show(event); });
    stream.addEventListener("over", () => { leave(); location.reload(); });
    stream.addEventListener("error", () => {
      if (!stream || stream.readyState !== EventSource.CLOSED) return; // the browser reconnects
      leave();
      htmx.ajax("GET", url, { target: "#live", swap: "outerHTML" });
    });
  }

  function leave() {
    if (stream) stream.close();
    stream = null;
  }

  document.addEventListener("visibilitychange", () => { if (document.hidden) leave(); else follow(); });
  window.addEventListener("pagehide", leave);
  window.addEventListener("pageshow", follow);

  document.addEventListener("DOMContentLoaded", () => { begin(); sample(); follow(); });
  document.addEventListener("htmx:afterSettle", sample);
  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((c) => c.plot.redraw()));
})();

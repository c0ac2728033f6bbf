// Percentiles of this service's latency, from its own histograms, renewed while they are in sight.

import { byId, drawn, element } from "./dom.js";
import { histograms, percentile, since, total } from "./metrics.js";
import { count, duration } from "./numbers.js";
import * as service from "./service.js";

const EVERY_MS = 5000;
const WINDOW_MS = 60_000;
const LEAST_S = 10; // of a window; before, and while nothing happens, all that the service has counted is shown
const PARTS = [0.5, 0.9, 0.99];
// The histograms that are shown, each of which names its rows.
const ROWS = [
  /^bandrank_http_request_seconds\{path=(\/rerank)\}$/,
  /^bandrank_http_request_seconds\{path=(\/explain)\}$/,
  /^bandrank_stage_seconds\{stage=(.*)\}$/,
  /^bandrank_(tokenize)_seconds$/,
  /^bandrank_(queue)_seconds$/,
  /^bandrank_(score)_seconds$/,
];

const scrapes = []; // [milliseconds, histograms], the oldest first
let inSight = false;
let refusedKey = -1; // the number of the last key that may not read them

/** Begins to watch; what is out of sight is not asked for. */
export function watchLatency() {
  new IntersectionObserver((entries) => {
    inSight = entries.at(-1).isIntersecting;
    if (inSight) refresh();
  }).observe(byId("latency-note"));
  setInterval(() => inSight && !document.hidden && refresh(), EVERY_MS);
}

/** Asks for the metrics now, unless they were refused to this key. */
export async function refresh() {
  const { keyNumber } = service;
  if (keyNumber === refusedKey) return;
  try {
    const now = performance.now();
    scrapes.push([now, histograms(await service.text("metrics"))]);
    while (scrapes.length > 2 && now - scrapes[1][0] > WINDOW_MS) scrapes.shift();
    show();
  } catch (problem) {
    const refused = problem.status === 401 || problem.status === 403;
    if (refused) refusedKey = keyNumber;
    byId("latency").hidden = true;
    byId("latency-note").textContent = refused ? "Shown to keys with the scope admin." : problem.message;
  }
}

function show() {
  const [, latest] = scrapes.at(-1);
  const keys = [...latest.keys()];
  const rows = ROWS.flatMap((row) => keys.flatMap((key) => (row.test(key) ? [[row.exec(key)[1], key]] : [])));
  const recent = new Map(rows.map(([, key]) => [key, since(latest.get(key), scrapes[0][1].get(key))]));
  const seconds = Math.round((scrapes.at(-1)[0] - scrapes[0][0]) / 1000);
  const live = seconds >= LEAST_S && [...recent.values()].some((buckets) => total(buckets) > 0);
  const counted = live ? recent : latest;
  const window = live ? `Of the last ${seconds} s` : "Since the service started";
  byId("latency-note").textContent = `${window}, from /metrics.`;
  byId("latency").hidden = false;
  byId("latency").replaceChildren(
    element("thead", {}, element("tr", {}, ...["", "p50", "p90", "p99", "count", "1 ms to 60 s"].map(heading))),
    element("tbody", {}, ...rows.map(([name, key]) => row(name, counted.get(key)))),
  );
}

const heading = (name) => (name ? element("th", { scope: "col" }, name) : element("td"));

function row(name, buckets) {
  return element(
    "tr",
    { class: total(buckets) ? false : "none" },
    element("th", { scope: "row" }, name),
    ...PARTS.map((part) => element("td", { class: "number" }, percentileText(percentile(buckets, part), buckets))),
    element("td", { class: "number" }, count(total(buckets))),
    element("td", {}, sketch(buckets)),
  );
}

const percentileText = (seconds, buckets) =>
  seconds === Infinity ? `> ${duration(buckets.at(-2)[0])}` : duration(seconds);

/** A bar for each bucket. */
function sketch(buckets) {
  const counts = buckets.map(([, value], index) => value - (index ? buckets[index - 1][1] : 0));
  const most = Math.max(...counts, 1);
  const bars = counts.map((value, index) => {
    const height = value ? Math.max(2, (18 * value) / most) : 0.5;
    return drawn("rect", { x: index * 6, y: 18 - height, width: 5, height });
  });
  return drawn("svg", { class: "sketch", width: counts.length * 6, height: 18, "aria-hidden": "true" }, ...bars);
}

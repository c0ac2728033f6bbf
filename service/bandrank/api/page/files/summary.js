// What an answer cost, in numbers and as a bar.

import { byId, element } from "./dom.js";
import { climb } from "./board.js";
import { count, counted, duration, ordinal } from "./numbers.js";

/** Shows what an answer's meta says. seconds: from sending the request until the answer was read. */
export function showSummary(answer, seconds) {
  const { results, meta, usage } = answer;
  const done = `${counted(results.length, "candidate")} in ${duration(meta.timings_ms.total / 1000)}`;
  byId("headline").replaceChildren(element("strong", {}, done), ` ${story(results)}`);
  const pair = ([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
  byId("facts").replaceChildren(...facts(meta, usage).map(pair));
  showTimings(meta.timings_ms, seconds);
}

function story(results) {
  const moved = results.filter((result, place) => climb(result, place) !== 0).length;
  if (!results.length || !moved) return "Nothing moved.";
  const first = results[0].index;
  return `${moved} moved; ${first ? `the ${ordinal(first + 1)} became the 1st` : "the first stayed first"}.`;
}

function facts(meta, usage) {
  const hits = sum(meta.stages.map((stage) => stage.cache_hits));
  const looked = hits + sum(meta.stages.map((stage) => stage.cache_misses));
  const cut = meta.truncated_tokens ? counted(meta.truncated_tokens, "piece") : "nothing";
  return [
    ["strategy", meta.strategy + (meta.degraded ? ", cut short" : "")],
    ...meta.stages.map((stage) => [stage.stage, `${count(stage.candidates)} in ${duration(stage.ms / 1000)}`]),
    ["cached", looked ? `${count(hits)} of ${count(looked)}` : "nothing to cache"],
    ["tokens", count(usage.total_tokens)],
    ["cut", cut],
  ];
}

function showTimings({ total, ...steps }, seconds) {
  const known = sum(Object.values(steps));
  const parts = { ...steps, "other work": Math.max(0, total - known), "on the way": Math.max(0, seconds * 1000 - total) };
  const shown = Object.entries(parts).filter(([, ms]) => ms >= 0.05);
  const bar = element("div", { class: "bar", "aria-hidden": "true" });
  const legend = element("ul", { class: "legend" });
  for (const [name, ms] of shown) {
    const kind = `step-${name.replace(/ .*/, "")}`;
    const part = element("span", { class: kind });
    part.style.flexGrow = ms;
    bar.append(part);
    legend.append(element("li", { class: kind }, `${name} `, element("b", {}, duration(ms / 1000))));
  }
  byId("timings").replaceChildren(bar, legend);
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

// What /explain says of a result: the words that its score rests on, the stages' scores, and the tokens.

import { element } from "./dom.js";
import { count, counted, decimal, duration } from "./numbers.js";

const LEVELS = 5;
const FAINT = 0.08; // of the strongest; words below it are not marked
const STRONGEST = 6;

/** Fills a panel. text: the candidate's, if it is known. listed: its score in the list. */
export function showWhy(panel, explained, text, listed) {
  const { spans } = explained.words;
  const most = Math.max(...spans.map((span) => Math.abs(span.contribution)), 0);
  panel.replaceChildren(
    element(
      "div",
      { class: "told" },
      element("div", {}, words(spans, most, text), formula(explained)),
      element("div", {}, spans.length ? strongest(explained, most) : "", facts(explained, listed)),
    ),
    element("div", { class: "reads" }, ...explained.stages.map(tokens)),
  );
}

function words(spans, most, text) {
  const points = Array.from(text ?? ""); // places are code points, not the units of JavaScript's strings
  const paragraph = element("p", { class: "words" });
  let end = 0;
  for (const span of spans) {
    if (text !== undefined) paragraph.append(points.slice(end, span.start).join(""));
    else if (end) paragraph.append(" ");
    paragraph.append(marked(span, most));
    end = span.end;
  }
  const rest = points.slice(end).join("");
  if (rest.trim()) paragraph.append(element("span", { class: "cut", title: "no word left out" }, rest));
  return paragraph;
}

function marked(span, most) {
  const strength = most ? Math.abs(span.contribution) / most : 0;
  if (strength < FAINT) return span.text;
  const kind = `${span.contribution > 0 ? "gain" : "loss"}-${Math.ceil(strength * LEVELS)}`;
  return element("mark", { class: kind, title: decimal(span.contribution, 3, { signed: true }) }, span.text);
}

function formula({ stages, raw_score: raw, relevance_score: shown }) {
  const terms = stages
    .filter((stage) => stage.weight)
    .map((stage) => `${stage.stage} ${decimal(stage.raw_score)}${stage.weight === 1 ? "" : ` × ${stage.weight}`}`);
  const sum = terms.length > 1 ? `${terms.join(" + ")} = ${decimal(raw)}` : terms[0];
  return element("p", { class: "formula" }, `${sum} `, element("strong", {}, `→ ${decimal(shown, 4)}`));
}

function facts({ stages, meta, usage, relevance_score: alone }, listed) {
  const cached = stages.filter((stage) => "cached" in stage);
  const cost = [counted(usage.total_tokens, "token"), duration(meta.timings_ms.total / 1000)];
  const shifted = Math.abs(listed - alone) > 1e-4; // by a cascade, where rounding is far less
  const said = [
    ...cached.map((stage) => `Its representation for ${stage.stage} was ${stage.cached ? "" : "not "}cached before.`),
    ...stages
      .filter((stage) => "excerpt" in stage)
      .map(({ stage, excerpt: { start, end } }) => `For ${stage}, words of ${count(start)}–${count(end)}, its best part, are left out.`),
    ...(shifted ? [`In the list it is ${decimal(listed, 4)}, to lie below what later stages scored.`] : []),
    `${counted(meta.occluded, "text")} without some words, ${cost.join(", ")}.`,
  ];
  return element("ul", { class: "plain" }, ...said.map((sentence) => element("li", {}, sentence)));
}

function strongest({ words: { spans }, stages }, most) {
  const counting = stages.filter((stage) => stage.weight);
  const parts = counting.length > 1 ? counting.map((stage) => stage.stage) : [];
  const top = [...spans].sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution)).slice(0, STRONGEST);
  const number = (value) => element("td", { class: "number" }, decimal(value, 3, { signed: true }));
  return element(
    "table",
    { class: "strongest" },
    element("caption", {}, "What the raw score loses without"),
    element(
      "thead",
      {},
      element("tr", {}, ...["words", "score", ...parts].map((name) => element("th", { scope: "col" }, name))),
    ),
    element(
      "tbody",
      {},
      ...top
        .filter((span) => Math.abs(span.contribution) >= FAINT * most)
        .map((span) =>
          element(
            "tr",
            {},
            element("th", { scope: "row" }, span.text),
            number(span.contribution),
            ...parts.map((part) => (part in span.stages ? number(span.stages[part]) : element("td", {}))),
          ),
        ),
    ),
  );
}

function tokens(stage) {
  const side = (name, { tokens: read, cut }) => [
    element("h4", {}, `${name}, ${counted(read.length, "token")}`),
    element(
      "p",
      { class: "tokens" },
      ...read.map(({ id, piece, start, end }) =>
        start === undefined
          ? element("span", { class: "added", title: id }, piece)
          : element("span", { title: `${id}, ${start}–${end}` }, piece),
      ),
    ),
    cut ? element("p", { class: "note" }, `Cut from character ${count(cut.start)} on: ${counted(cut.tokens, "piece")}.`) : "",
  ];
  return element(
    "details",
    {},
    element("summary", {}, `Tokens of ${stage.stage}`),
    ...side("Query", stage.query),
    ...side("Candidate", stage.candidate),
  );
}

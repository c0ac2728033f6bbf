// The order before and after, side by side, and lines that show what moved.

import { byId, drawn, element } from "./dom.js";
import { textOf } from "./candidates.js";
import { decimal, ordinal } from "./numbers.js";

let lines = [];
new ResizeObserver(draw).observe(byId("after"));
byId("after").addEventListener("keydown", walk);

/** How many places a result moved up; negative for down. */
export const climb = (result, place) => result.index - place;

/**
 * Shows an answer. candidates: of its request.
 * explain: is given a result and fills its panel, each time that one is opened.
 */
export function showBoard(candidates, answer, explain) {
  const places = new Map(answer.results.map((result, place) => [result.index, place]));
  const before = candidates.map((candidate, index) => givenRow(candidate, index, places.get(index)));
  const after = answer.results.map((result, place) => rankedRow(candidates[result.index], result, place, explain));
  byId("before").replaceChildren(...before);
  byId("after").replaceChildren(...after);
  lines = answer.results.map((result, place) => ({
    from: before[result.index],
    to: after[place],
    path: drawn("path", { class: direction(climb(result, place)) }),
  }));
  byId("moves").replaceChildren(...[...lines].reverse().map((line) => line.path)); // the best above the others
  for (const line of lines) light(line);
  byId("board").classList.toggle("staged", new Set(answer.results.map((result) => result.stage)).size > 1);
  draw();
  glide(answer.results, after);
}

function givenRow(candidate, index, place) {
  const gone = place === undefined;
  return element(
    "li",
    { class: gone ? "unranked" : direction(index - place) },
    element("span", { class: "rank" }, String(index + 1)),
    element("span", { class: "text", title: textOf(candidate) }, textOf(candidate)),
    gone ? element("span", { class: "tag" }, "not ranked") : "",
  );
}

function rankedRow(candidate, result, place, explain) {
  const panel = element("div", { class: "why", id: `why-${place}`, hidden: true });
  const steps = climb(result, place);
  const score = element("span", { class: "score" }, decimal(result.relevance_score, 4));
  score.style.setProperty("--score", result.relevance_score);
  const button = element(
    "button",
    { type: "button", "aria-expanded": "false", "aria-controls": panel.id },
    element("span", { class: "rank" }, String(place + 1)),
    move(steps, result.index),
    element("span", { class: "text" }, result.id ? element("small", {}, result.id) : "", textOf(candidate)),
    element("span", { class: "tag" }, result.stage),
    score,
  );
  button.addEventListener("click", () => {
    const open = panel.hidden;
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) explain(result, panel);
  });
  return element("li", { class: direction(steps) }, button, panel);
}

function move(steps, index) {
  const said = steps === 0 ? "not moved" : `${steps > 0 ? "up" : "down"} ${Math.abs(steps)}, was ${ordinal(index + 1)}`;
  const shown = steps === 0 ? "·" : `${steps > 0 ? "▲" : "▼"} ${Math.abs(steps)}`;
  return element(
    "span",
    { class: "move", title: said },
    element("span", { "aria-hidden": "true" }, shown),
    element("span", { class: "unseen" }, `${said}.`),
  );
}

const direction = (steps) => (steps > 0 ? "up" : steps < 0 ? "down" : "same");

/** Lights a line with both of its ends while either is pointed at or has the focus. */
function light({ from, to, path }) {
  const parts = [from, to, path];
  const set = (lit) => () => parts.forEach((part) => part.classList.toggle("lit", lit));
  for (const end of [from, to]) {
    end.addEventListener("pointerenter", set(true));
    end.addEventListener("pointerleave", set(false));
  }
  to.addEventListener("focusin", set(true));
  to.addEventListener("focusout", set(false));
}

/** Lets each result come from where it was, if its reader likes motion. */
function glide(results, rows) {
  if (!rows.length || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const height = rows[0].getBoundingClientRect().height;
  results.forEach((result, place) => {
    const from = { transform: `translateY(${climb(result, place) * height}px)` };
    rows[place].animate([from, { transform: "none" }], { duration: 380, easing: "cubic-bezier(0.2, 0.8, 0.2, 1)" });
  });
}

function draw() {
  const box = byId("moves").getBoundingClientRect();
  if (!box.width) return;
  levelOut();
  const middle = (row) => {
    const { top, height } = (row.querySelector("button") ?? row).getBoundingClientRect();
    return top + height / 2 - box.top;
  };
  // All places are read before anything is changed: the browser lays the page out once.
  const places = lines.map(({ from, to }) => [middle(from), middle(to)]);
  const [bend, end] = [box.width / 2, box.width - 4];
  lines.forEach(({ path }, index) => {
    const [start, stop] = places[index];
    path.setAttribute("d", `M4 ${start}C${bend} ${start} ${bend} ${stop} ${end} ${stop}`);
  });
}

/** What is open on the right leaves a gap on the left, so that the places stay side by side. */
function levelOut() {
  const [before, after] = ["before", "after"].map((id) => [...byId(id).children]);
  const gaps = before.map((row, place) => (after[place] ? after[place].offsetHeight - row.offsetHeight : 0));
  before.forEach((row, place) => (row.style.marginBottom = gaps[place] > 0 ? `${gaps[place]}px` : ""));
}

/** The arrow keys go from result to result. */
function walk(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.target.closest(".why")) return;
  const buttons = [...byId("after").querySelectorAll("li > button")];
  buttons[buttons.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}

// The page: what is typed in becomes a request, and its answer is shown.

import { showBoard } from "./board.js";
import { parseCandidates } from "./candidates.js";
import { byId, element, setOptions } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { refresh, watchLatency } from "./latency.js";
import { counted } from "./numbers.js";
import { showSamples } from "./samples.js";
import * as service from "./service.js";
import { showSummary } from "./summary.js";
import { showWhy } from "./why.js";

let models = [];
let running = new AbortController();

setOptions(byId("example"), EXAMPLES.map(({ name }, index) => [String(index), name]));
byId("example").addEventListener("change", () => {
  loadExample();
  run();
});
byId("key").addEventListener("input", () => service.useKey(byId("key").value));
byId("key").addEventListener("change", async () => (await connect()) && run());
byId("model").addEventListener("change", showStrategies);
byId("run").addEventListener("click", run);
for (const name of ["query", "candidates", "model", "strategy", "budget", "key"]) {
  byId(name).addEventListener("input", showRequest);
}
byId("query").addEventListener("keydown", (event) => event.key === "Enter" && !event.isComposing && run());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  }
});

loadExample();
watchLatency();
if (await connect()) run();

function loadExample() {
  const { query, candidates } = EXAMPLES[Number(byId("example").value)];
  byId("query").value = query;
  byId("candidates").value = candidates;
  showRequest();
}

/** Asks what is served; says whether it was told. */
async function connect() {
  try {
    models = (await service.get("v1/models")).data;
    setOptions(byId("model"), models.map(({ id }) => [id, id]));
    showStrategies();
    showStatus("ready", models.length > 1 ? counted(models.length, "model") : models[0].id);
    showProblem(null);
    return true;
  } catch (problem) {
    showStatus("away", problem.status === 401 ? "asks for a key" : "not ready");
    showProblem(problem);
    if (problem.status === 401) byId("key").focus();
    return false;
  }
}

function showStrategies() {
  const served = models.find(({ id }) => id === byId("model").value);
  setOptions(byId("strategy"), (served?.strategies ?? ["auto"]).map((name) => [name, name]));
  showRequest();
}

/** The body of the request that is typed in. Throws an Error for candidates that cannot be read. */
function requested() {
  const [model, strategy, budget] = ["model", "strategy", "budget"].map((name) => byId(name).value);
  return {
    query: byId("query").value,
    candidates: parseCandidates(byId("candidates").value),
    ...(models.length > 1 && { model }),
    ...(strategy !== "auto" && strategy && { strategy }),
    ...(Number(budget) > 0 && { budget_ms: Number(budget) }),
  };
}

function showRequest() {
  try {
    const body = requested();
    byId("candidates-note").textContent = counted(body.candidates.length, "candidate");
    showSamples(body, Boolean(byId("key").value));
  } catch (error) {
    byId("candidates-note").textContent = error.message;
  }
}

async function run() {
  running.abort();
  const { signal } = (running = new AbortController());
  byId("run").setAttribute("aria-busy", "true");
  try {
    const body = requested();
    const start = performance.now();
    const answer = await service.post("rerank", body, signal);
    show(body, answer, (performance.now() - start) / 1000);
    showProblem(null);
    refresh();
  } catch (problem) {
    if (problem.name !== "AbortError") showProblem(problem);
  } finally {
    if (!signal.aborted) byId("run").removeAttribute("aria-busy");
  }
}

function show(body, answer, seconds) {
  byId("result").hidden = false;
  showSummary(answer, seconds);
  const asked = new Set();
  showBoard(body.candidates, answer, async (result, panel) => {
    if (asked.has(result.index)) return;
    asked.add(result.index);
    panel.replaceChildren(element("p", { class: "note" }, "Scoring it without each of its words …"));
    const candidate = body.candidates[result.index];
    try {
      const { query, model } = body;
      const why = await service.post("explain", { query, candidate, model, strategy: strategyOf(result, answer) });
      showWhy(panel, why, typeof candidate === "string" ? candidate : candidate.text ?? undefined, result.relevance_score);
    } catch (problem) {
      asked.delete(result.index);
      panel.replaceChildren(element("p", { class: "note" }, problem.message));
    }
  });
}

/** Of a candidate that a cascade's later stages did not see, the score is that of the stage that did. */
function strategyOf(result, { results, meta }) {
  return meta.strategy === "cascade" && result.stage !== results[0].stage ? result.stage : meta.strategy;
}

function showProblem(problem) {
  byId("problem").hidden = !problem;
  byId("problem").textContent = problem?.message ?? "";
}

function showStatus(state, said) {
  byId("status").dataset.state = state;
  byId("status").textContent = said;
}

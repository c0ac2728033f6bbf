// The current request as code that can be copied.

import { byId, element } from "./dom.js";
import { textOf } from "./candidates.js";

const LANGUAGES = [
  ["curl", curl],
  ["Python", python],
  ["Cohere SDK", cohere],
  ["LangChain", langchain],
];
let chosen = 0;
let request = { query: "", candidates: [] };
let secured = false;

/** Makes the samples say this request. withKey: whether a key goes with it; its value is never in a sample. */
export function showSamples(body, withKey) {
  request = body;
  secured = withKey;
  if (!byId("samples").children.length) build();
  byId("sample").textContent = LANGUAGES[chosen][1]();
}

function build() {
  const tabs = LANGUAGES.map(([name], index) => {
    const tab = element("button", { type: "button", role: "tab", id: `tab-${index}`, "aria-controls": "sample-panel" }, name);
    tab.addEventListener("click", () => choose(index));
    return tab;
  });
  const copy = element("button", { type: "button", class: "copy", "aria-live": "polite" }, "Copy");
  copy.addEventListener("click", () => copyText(copy));
  const list = element("div", { role: "tablist", "aria-label": "Language" }, ...tabs);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) choose((chosen + step + tabs.length) % tabs.length).focus();
  });
  const code = element("pre", { tabindex: "0", "aria-label": "Code" }, element("code", { id: "sample" }));
  const panel = element("div", { role: "tabpanel", id: "sample-panel" }, code);
  byId("samples").append(element("div", { class: "bar" }, list, copy), panel);
  choose(chosen);

  function choose(index) {
    chosen = index;
    tabs.forEach((tab, number) => {
      tab.setAttribute("aria-selected", String(number === index));
      tab.tabIndex = number === index ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", tabs[index].id);
    byId("sample").textContent = LANGUAGES[index][1]();
    return tabs[index];
  }
}

/** Copies by the clipboard's interface or, where the page is not secure and has none, by selecting the code. */
async function copyText(button) {
  const code = byId("sample");
  let copied = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    copied = document.execCommand("copy");
  }
  button.textContent = copied ? "Copied" : "Selected";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

const origin = () => new URL(".", document.baseURI).href.replace(/\/$/, "");
const texts = () => request.candidates.map(textOf);

function curl() {
  const key = secured ? ' -H "authorization: Bearer $BANDRANK_KEY"' : "";
  const body = JSON.stringify(request, null, 2);
  return `curl -s ${origin()}/rerank -H 'content-type: application/json'${key} -d @- <<'JSON'\n${body}\nJSON\n`;
}

function python() {
  const headers = secured ? '\n    headers={"authorization": f"Bearer {os.environ[\'BANDRANK_KEY\']}"},' : "";
  return `${secured ? "import os\n\n" : ""}import httpx

answer = httpx.post(
    "${origin()}/rerank",
    json=${literal(request, 1)},${headers}
    timeout=60,
).raise_for_status().json()
for result in answer["results"]:
    print(result["relevance_score"], result["index"])
`;
}

function cohere() {
  return `${secured ? "import os\n\n" : ""}import cohere

client = cohere.ClientV2(base_url="${origin()}", api_key=${apiKey()})
answer = client.rerank(
    model=${JSON.stringify(request.model || "default")},
    query=${literal(request.query)},
    documents=${literal(texts(), 1)},
)
for result in answer.results:
    print(result.relevance_score, result.index)
`;
}

function langchain() {
  return `${secured ? "import os\n\n" : ""}from langchain_cohere import CohereRerank

reranker = CohereRerank(
    base_url="${origin()}",
    cohere_api_key=${apiKey()},
    model=${JSON.stringify(request.model || "default")},
    top_n=${Math.min(3, request.candidates.length)},
)
results = reranker.rerank(
    documents=${literal(texts(), 1)},
    query=${literal(request.query)},
)
`;
}

const apiKey = () => (secured ? 'os.environ["BANDRANK_KEY"]' : '"none"');

/** A value in Python, at this depth of indentation. */
function literal(value, depth = 0) {
  if (typeof value === "string") return JSON.stringify(value);
  const [inner, outer] = ["    ".repeat(depth + 1), "    ".repeat(depth)];
  const block = (open, items, close) =>
    items.length ? `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${outer}${close}` : open + close;
  if (Array.isArray(value)) return block("[", value.map((item) => literal(item, depth + 1)), "]");
  if (value && typeof value === "object") {
    const pairs = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, depth + 1)}`);
    return block("{", pairs, "}");
  }
  return { null: "None", true: "True", false: "False" }[value] ?? String(value);
}

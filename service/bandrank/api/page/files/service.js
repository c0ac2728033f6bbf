// Requests to the service that this page comes from.

let key = "";

/** Which of the keys that were typed it is; changes with it. */
export let keyNumber = 0;

/** The key for all later requests; it is in this variable and nowhere else. */
export function useKey(value) {
  key = value.trim();
  keyNumber += 1;
}

/** A refusal. message: what the service says. status: 0 if it did not answer. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The JSON at a path. */
export const get = (path) => answered(path).then((response) => response.json());

/** The text at a path. */
export const text = (path) => answered(path).then((response) => response.text());

/** The answer to a body. signal: aborts the request. */
export async function post(path, body, signal) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
  return (await answered(path, options)).json();
}

async function answered(path, options = {}) {
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The service does not answer.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Problem(response.status, body.message ?? `The service answered ${response.status}.`);
}

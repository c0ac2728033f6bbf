// Candidates as they are typed: one per line, or JSON.

/** What is in the field, as the service takes it. Throws an Error that says what is wrong with JSON. */
export function parseCandidates(typed) {
  const start = typed.trimStart();
  if (!start.startsWith("[") && !start.startsWith("{")) return lines(typed);
  let value;
  try {
    value = JSON.parse(start);
  } catch (error) {
    // A line may begin with a bracket; several of them that do are JSON lines.
    const several = lines(typed).map(asJson);
    if (several.every(isCandidate)) return several;
    if (several.every((each) => each === undefined)) return lines(typed);
    throw new Error(`not JSON: ${error.message}`);
  }
  const list = Array.isArray(value) ? value : value.candidates ?? value.documents ?? [value];
  const wrong = Array.isArray(list) ? list.findIndex((each) => !isCandidate(each)) : 0;
  if (wrong >= 0) throw new Error(`candidate ${wrong + 1} is neither a text nor an object whose text or id is one`);
  return list;
}

/** A candidate's text, or what stands for it. */
export function textOf(candidate) {
  return typeof candidate === "string" ? candidate : candidate.text ?? `registered as ${candidate.id}`;
}

const lines = (typed) => typed.split("\n").map((line) => line.trim()).filter(Boolean);

function asJson(line) {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

function isCandidate(value) {
  if (typeof value === "string") return true;
  const given = [value?.text, value?.id].filter((each) => each !== undefined && each !== null);
  return given.length > 0 && given.every((each) => typeof each === "string");
}

// Prometheus' text format, and percentiles of its histograms.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** The histograms in a scrape: by name and labels, as "name{path=/rerank}", the [upper bound, cumulative count] pairs. */
export function histograms(scrape) {
  const found = new Map();
  for (const line of scrape.split("\n")) {
    const [, name, labels, value] = SAMPLE.exec(line) ?? [];
    if (!name?.endsWith("_bucket")) continue;
    const { le, ...others } = Object.fromEntries([...labels.matchAll(LABEL)].map(([, label, text]) => [label, text]));
    const named = Object.entries(others).map(([label, text]) => `${label}=${text}`).join(",");
    const key = name.replace(/_bucket$/, "") + (named && `{${named}}`);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push([le === "+Inf" ? Infinity : Number(le), Number(value)]);
  }
  for (const buckets of found.values()) buckets.sort(([a], [b]) => a - b);
  return found;
}

/** A histogram less what it was before; all of it if it started anew since. */
export function since(buckets, before) {
  if (!before || before.length !== buckets.length || total(before) > total(buckets)) return buckets;
  return buckets.map(([bound, value], index) => [bound, value - before[index][1]]);
}

/** How many values a histogram has counted. */
export const total = (buckets) => buckets.at(-1)?.[1] ?? 0;

/** The value below which this part of the values lies, in a straight line through its bucket; NaN if there are none. */
export function percentile(buckets, part) {
  const rank = part * total(buckets);
  if (!rank) return NaN;
  const index = buckets.findIndex(([, value]) => value >= rank);
  const [bound, value] = buckets[index];
  const [lower, below] = index ? buckets[index - 1] : [0, 0];
  if (bound === Infinity) return Infinity;
  return lower + ((bound - lower) * (rank - below)) / (value - below);
}

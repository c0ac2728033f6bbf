// Numbers as they are shown.

const SPACE = "\u00a0"; // at which no line ends

/** 0.0312 -> "31.2 ms", 2.5 -> "2.50 s"; three digits. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const ms = seconds * 1000;
  if (ms >= 1000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)}${SPACE}s`;
  return `${ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)}${SPACE}ms`;
}

/** With a real minus sign, and a plus sign if asked for. */
export function decimal(value, digits = 3, { signed = false } = {}) {
  const text = Math.abs(value).toFixed(digits);
  const zero = Number(text) === 0;
  return (value < 0 && !zero ? "−" : signed && !zero ? "+" : "") + text;
}

/** 1234 -> "1,234". */
export const count = (value) => value.toLocaleString("en");

/** "1 candidate", "2 candidates". */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** 1 -> "1st". */
export function ordinal(value) {
  const last = value % 100 > 10 && value % 100 < 14 ? 0 : value % 10;
  return `${value}${["th", "st", "nd", "rd"][last] ?? "th"}`;
}

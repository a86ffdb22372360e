// Number formatting, the same everywhere on the page.

// Created once: a new formatter for each of thousands of numbers took half of the time of the first search.
const WHOLE = new Intl.NumberFormat("en-US");

/** A missing value. */
const NONE = "\u2013";

function number(value) {
  return value === null || value === undefined ? null : Number(value);
}

function digits(value, significant = 3) {
  if (!Number.isFinite(value)) return value > 0 ? "\u221e" : value < 0 ? "\u2212\u221e" : NONE;
  const large = Math.abs(value) >= 10 ** significant, tiny = value !== 0 && Math.abs(value) < 1e-4;
  const text = large ? WHOLE.format(Math.round(value)) : tiny ? value.toExponential(1) : String(Number(value.toPrecision(significant)));
  return text.replace(/^-/, "\u2212");
}

function size(bytes, places = 1) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let value = bytes, unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 ? value : value.toFixed(places)} ${units[unit]}`.replace("-", "\u2212");
}

function milliseconds(value) {
  return Math.abs(value) < 0.1 && value !== 0 ? `${digits(1000 * value)} \u00b5s` : `${digits(value)} ms`;
}

function seconds(value) {
  if (value < 9.95) return `${Number(value.toFixed(value < 0.095 ? 2 : 1))} s`;
  if (value < 60) return `${value.toFixed(0)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(whole / 60);
  return minutes < 48 * 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} d ${Math.floor(minutes / 60) % 24} h`;
}

/** Cosines near 1 differ only in the last decimal places. */
function cosine(value) {
  return value.toFixed(4).replace("-", "\u2212");
}

function whole(value) {
  return WHOLE.format(value);
}

function signed(value) {
  return (value > 0 ? "+" : "") + digits(value);
}

function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Times in a text as ``2026-11-22 10:46 UTC``. */
function moment(text = "") {
  return text.replace(/(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(\.\d+)?(\+00:00|Z)/g, "$1 $2 UTC");
}

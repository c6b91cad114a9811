// Numbers for people.

/** A number with three significant digits and thousands separators; a dash for none. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e7)) return value.toExponential(2);
  return value.toLocaleString("en", Math.abs(value) >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
}

export const milliseconds = (value) => (value === null || value === undefined ? "–" : `${number(value)} ms`);

export const time = (milliseconds) => new Date(milliseconds).toLocaleTimeString([], { hour12: false });

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  return count < 1 << 20 ? `${number(count / 1024)} KiB` : `${number(count / (1 << 20))} MiB`;
}

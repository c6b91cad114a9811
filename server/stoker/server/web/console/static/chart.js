// A line chart of one or more series as SVG: it takes its colours and its width from the style sheet.

import { html, useState } from "./vendor/preact-htm.js";
import { number, time } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
/** Samples that fill the width at least: a minute. */
const LEAST_SAMPLES = 30;

/** The least of 1, 2, 5, 10, 20, 50, ... that is not below `value`. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

/** The path of the values; it is interrupted where there are none. */
function pathOf(values, x, y) {
  let isDown = false;
  let path = "";
  values.forEach((value, at) => {
    if (value === null) {
      isDown = false;
    } else {
      // A value between two gaps would be a line of no length: a short one shows it.
      path += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}${isDown || at < values.length - 1 ? "" : "h0.1"}`;
      isDown = true;
    }
  });
  return path;
}

/**
 * A chart with a title, its newest values, and the values under the pointer.
 *
 * series: [{ name, points: [{ time_ms, value }] }], all with the same times, oldest first.
 */
export function Chart({ title, unit = "", series }) {
  const [hovered, setHovered] = useState(null);
  const points = series[0].points;
  const most = Math.max(LEAST_SAMPLES, points.length);
  const first = Math.max(0, most - points.length);
  const high = roundUp(Math.max(...series.flatMap((each) => each.points.map(({ value }) => value ?? 0)), 0));
  const x = (at) => ((first + at) / Math.max(1, most - 1)) * WIDTH;
  const y = (value) => HEIGHT - (value / high) * HEIGHT;
  const shown = hovered !== null && points[hovered] ? hovered : points.length - 1;
  const withUnit = (value) => (value === null || value === undefined ? "–" : `${number(value)}${unit && ` ${unit}`}`);

  const onMove = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = Math.round(((event.clientX - box.left) / box.width) * (most - 1)) - first;
    setHovered(Math.min(Math.max(at, 0), points.length - 1));
  };

  const summary = series.map(({ name, points }) => `${name} ${withUnit(points.at(-1)?.value)}`).join(", ");
  return html`
    <figure class="chart">
      <figcaption>
        <span>${title}</span>
        <span class="legend">
          ${series.map(
            ({ name, points }, at) =>
              html`<span key=${name} class="series${at}">${name} <b>${withUnit(points[shown]?.value)}</b></span>`,
          )}
        </span>
      </figcaption>
      <div class="plot" onpointermove=${onMove} onpointerleave=${() => setHovered(null)}>
        <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${title}, now: ${summary}">
          ${[0, 0.5, 1].map((part) => html`<line class="grid" x1="0" x2=${WIDTH} y1=${part * HEIGHT} y2=${part * HEIGHT} />`)}
          ${series.map(({ name, points }, at) => {
            const values = points.map(({ value }) => value);
            return html`<path key=${name} class="series${at}" d=${pathOf(values, x, y)} />`;
          })}
          ${hovered !== null && points[hovered] && html`<line class="cursor" x1=${x(hovered)} x2=${x(hovered)} y1="0" y2=${HEIGHT} />`}
        </svg>
        <span class="high" aria-hidden="true">${withUnit(high)}</span>
      </div>
      <div class="times" aria-hidden="true">
        <span>${points[0] && first === 0 ? time(points[0].time_ms) : ""}</span>
        <span>${hovered === null || !points[shown] ? "now" : time(points[shown].time_ms)}</span>
      </div>
    </figure>
  `;
}

/** A small line without axes, for a cell of a table. */
export function Sparkline({ points }) {
  const most = Math.max(LEAST_SAMPLES, points.length);
  const high = Math.max(...points.map(({ value }) => value ?? 0), 0) || 1;
  const first = Math.max(0, most - points.length);
  const x = (at) => ((first + at) / Math.max(1, most - 1)) * 100;
  const y = (value) => 23 - (value / high) * 22;
  const path = pathOf(points.map(({ value }) => value), x, y);
  return html`
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true"><path class="series0" d=${path} /></svg>
  `;
}

/** A bar of a share (0 to 1) of its cell. */
export function Bar({ share }) {
  return html`
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class="series0" height="10" width=${Math.min(1, Math.max(0, share)) * 100} />
    </svg>
  `;
}

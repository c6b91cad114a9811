// Detections on the picture. Outputs are taken for detections only by their names and shapes: boxes [..., n, 4] and scores of n.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { number } from "./format.js";

const MOST_BOXES = 100;
const LEAST_SCORE = 0.5;

/** { boxes, scores, classes, labels, isYFirst } of a response; null: it is no detection. */
export function detectionsOf(outputs, declared) {
  const find = (pattern) => outputs.find(({ name }) => pattern.test(name));
  const boxes = find(/box/i);
  const scores = find(/score|conf/i);
  if (!boxes || !scores || boxes.shape.at(-1) !== 4 || boxes.data.length !== 4 * scores.data.length) return null;
  const classes = find(/class|label/i);
  const labels = declared.find(({ name }) => name === classes?.name)?.labels ?? [];
  // The models of TensorFlow's detection zoo give y before x.
  return { boxes: boxes.data, scores: scores.data, classes: classes?.data, labels, isYFirst: boxes.name === "detection_boxes" };
}

export function Boxes({ picture, boxes, scores, classes, labels, isYFirst }) {
  const frame = useRef(null);
  const [least, setLeast] = useState(LEAST_SCORE);
  useEffect(() => frame.current.replaceChildren(copyOf(picture)), [picture]);
  const isShare = boxes.every((value) => value >= -0.5 && value <= 1.5);
  const [width, height] = [picture.width, picture.height];
  const all = Array.from(scores, (score, at) => {
    let [left, top, right, bottom] = boxes.slice(4 * at, 4 * at + 4);
    if (isYFirst) [left, top, right, bottom] = [top, left, bottom, right];
    if (isShare) [left, top, right, bottom] = [left * width, top * height, right * width, bottom * height];
    const kind = classes ? (labels[Number(classes[at])] ?? `class ${classes[at]}`) : `box ${at + 1}`;
    return { score, left, top, right, bottom, kind };
  });
  const shown = all.filter(({ score }) => score >= least).sort((a, b) => b.score - a.score).slice(0, MOST_BOXES);
  return html`
    <div class="boxes">
      <div class="frame">
        <div ref=${frame}></div>
        <svg viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
          ${shown.map(
            ({ left, top, right, bottom }, at) =>
              html`<rect key=${at} x=${left} y=${top} width=${Math.max(0, right - left)} height=${Math.max(0, bottom - top)} />`,
          )}
        </svg>
      </div>
      <label><span>Least score ${number(least)}</span>
        <input type="range" min="0" max="1" step="0.05" value=${least} oninput=${(event) => setLeast(Number(event.target.value))} />
      </label>
      <ul>${shown.map(({ kind, score }, at) => html`<li key=${at}>${kind} ${number(score)}</li>`)}</ul>
      ${shown.length === 0 && html`<p class="soft">No box has this score.</p>`}
    </div>
  `;
}

function copyOf(canvas) {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
}

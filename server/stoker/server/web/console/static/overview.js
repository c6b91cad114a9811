// All versions of the repository with their states and their load.

import { html } from "./vendor/preact-htm.js";
import { Chart, Sparkline } from "./chart.js";
import { Control } from "./control.js";
import { milliseconds, number } from "./format.js";

const MODEL_COLUMNS = ["model", "version", "state", "device"];
const LOAD_COLUMNS = ["requests/s", "trend", "p50", "p99", "queue", "batch", "errors/s"];

export function Overview({ live }) {
  const { listing } = live;
  return html`
    <section aria-label="Load of the server" class="charts">
      <${Chart} title="Requests" unit="/s" series=${[
        { name: "completed", points: live.total("requests_per_s") },
        { name: "failed", points: live.total("failures_per_s") },
      ]} />
      <${Chart} title="In the server" series=${[
        { name: "in flight", points: live.samples.map(({ time_ms, requests_in_flight }) => ({ time_ms, value: requests_in_flight })) },
        { name: "queued", points: live.total("queue_depth") },
      ]} />
    </section>
    ${listing.control_refused && html`<p class="hint">${listing.control_refused}</p>`}
    ${listing.notices.map((notice) => html`<p key=${notice} class="hint">${notice}</p>`)}
    ${listing.models.length === 0 && html`<p>The repository holds no model.</p>`}
    ${
      listing.models.length > 0 &&
      html`
        <div class="wide">
          <table class="models">
            <caption class="unseen">Models and their load in the last two seconds</caption>
            <thead>
              <tr>
                ${[...MODEL_COLUMNS, ...LOAD_COLUMNS].map((name) => html`<th key=${name} scope="col">${name}</th>`)}
                ${!listing.control_refused && html`<th scope="col"><span class="unseen">control</span></th>`}
              </tr>
            </thead>
            <tbody>
              ${listing.models.map((entry) => html`<${Row} key=${`${entry.key}/${entry.version}`} live=${live} entry=${entry} />`)}
            </tbody>
          </table>
        </div>
      `
    }
    ${listing.left_out > 0 && html`<p class="hint">${listing.left_out} further versions are not listed here.</p>`}
  `;
}

function Row({ live, entry }) {
  const { name, key, version, state, reason, devices, backend } = entry;
  const load = live.latest(key, version);
  const isReady = state === "READY";
  return html`
    <tr>
      <th scope="row">${isReady ? html`<a href=${`#/models/${encodeURIComponent(name)}/${version}/try`}>${name}</a>` : name}</th>
      <td data-label="version">${version ?? "–"}</td>
      <td data-label="state" class="state-cell">
        <span class="state ${state ?? (reason ? "FAILED" : "NONE")}">${state ?? (reason ? "FAILED" : "not loaded")}</span>
        ${reason && html`<details class="reason"><summary>why</summary><p>${reason}</p></details>`}
      </td>
      <td data-label="device">${devices.join(", ") || "–"}<span class="soft">${backend && ` ${backend}`}</span></td>
      <td data-label="requests/s" class="figure">${isReady ? number(load.requests_per_s ?? 0) : "–"}</td>
      <td class="spark-cell">${isReady && html`<${Sparkline} points=${live.series(key, version, "requests_per_s")} />`}</td>
      <td data-label="p50" class="figure">${milliseconds(load.p50_ms)}</td>
      <td data-label="p99" class="figure">${milliseconds(load.p99_ms)}</td>
      <td data-label="queue" class="figure">${isReady ? number(load.queue_depth ?? 0) : "–"}</td>
      <td data-label="batch" class="figure">${number(load.batch_rows)}</td>
      <td data-label="errors/s" class=${load.failures_per_s > 0 ? "figure bad" : "figure"}>
        ${isReady ? number(load.failures_per_s ?? 0) : "–"}
      </td>
      ${!live.listing.control_refused && html`<td><${Control} name=${name} isReady=${isReady} /></td>`}
    </tr>
  `;
}

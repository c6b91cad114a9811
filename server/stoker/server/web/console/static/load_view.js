// The load of one version over the last 15 minutes, and its batch sizes since it was loaded.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { Bar, Chart } from "./chart.js";
import { milliseconds, number } from "./format.js";
import { getJson, modelPath } from "./server.js";

const REFRESH_MS = 5000;

export function LoadView({ live, model }) {
  const { name, version } = model;
  const series = (title, field) => ({ name: title, points: live.series(live.keyOf(name), version, field) });
  return html`
    <section class="charts" aria-label="The last 15 minutes">
      <${Chart} title="Requests" unit="/s" series=${[series("completed", "requests_per_s"), series("failed", "failures_per_s")]} />
      <${Chart} title="Latency" unit="ms" series=${[series("p50", "p50_ms"), series("p99", "p99_ms")]} />
      <${Chart} title="Mean times" unit="ms" series=${[series("queue", "queue_ms"), series("compute", "compute_ms")]} />
      <${Chart} title="Queue and batches" series=${[series("queued requests", "queue_depth"), series("rows per batch", "batch_rows")]} />
    </section>
    <p class="soft">p50 and p99 are interpolated within the buckets of the histograms in <a href="../metrics">metrics</a>.</p>
    <${Totals} name=${name} version=${version} />
  `;
}

function Totals({ name, version }) {
  const [statistics, setStatistics] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const refresh = () => getJson(`${modelPath("v2", name, version)}/stats`).then((found) => setStatistics(found.model_stats[0]), setError);
    refresh();
    const timer = setInterval(refresh, REFRESH_MS);
    return () => clearInterval(timer);
  }, [name, version]);
  if (error) return html`<p class="error">${error.message}</p>`;
  if (!statistics) return null;
  const { success, fail, queue } = statistics.inference_stats;
  const mean = (duration) => (Number(duration?.count ?? 0) ? milliseconds(Number(duration.ns) / Number(duration.count) / 1e6) : "–");
  const batches = statistics.batch_stats ?? [];
  const total = batches.reduce((sum, { compute_infer }) => sum + Number(compute_infer.count), 0);
  return html`
    <h2>Since the first load</h2>
    <p>
      ${number(Number(success?.count ?? 0))} requests completed, ${number(Number(fail?.count ?? 0))} failed;
      mean time ${mean(success)}, of which ${mean(queue)} in the queue.
    </p>
    ${batches.length > 0 && html`
      <table class="bars">
        <caption>Batch sizes</caption>
        <thead>
          <tr>
            <th scope="col">rows</th><th scope="col"><span class="unseen">share</span></th><th scope="col">batches</th>
            <th scope="col">mean compute</th>
          </tr>
        </thead>
        <tbody>
          ${batches.map(({ batch_size, compute_infer }) => html`
            <tr key=${batch_size}>
              <th scope="row">${batch_size}</th>
              <td><${Bar} share=${Number(compute_infer.count) / total} /></td>
              <td class="figure">${number(Number(compute_infer.count))}</td>
              <td class="figure">${mean(compute_infer)}</td>
            </tr>
          `)}
        </tbody>
      </table>
    `}
  `;
}

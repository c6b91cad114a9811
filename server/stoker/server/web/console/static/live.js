// The live view's data: what the server holds, and the samples of the last 15 minutes.

import { eventsOf, request } from "./server.js";

const RETRY_MS = 2000;

/** Follows /ui/api/events. `onChange` is called after each event and each change of the connection. */
export class Live {
  constructor(onChange) {
    this.onChange = onChange;
    this.listing = null; // the event `models`
    this.samples = []; // the events `sample`, each with a Map of points
    this.isConnected = false;
    this.error = null; // the last ServerError
    this.stopping = new AbortController();
  }

  async follow() {
    while (!this.stopping.signal.aborted) {
      try {
        const response = await request("ui/api/events", { signal: this.stopping.signal });
        this.samples = [];
        this.error = null;
        this.isConnected = true;
        for await (const { event, data } of eventsOf(response)) this.take(event, data);
      } catch (error) {
        if (this.stopping.signal.aborted) return;
        this.error = error;
      }
      this.isConnected = false;
      this.onChange();
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }

  stop() {
    this.stopping.abort();
  }

  take(event, data) {
    if (event === "models") {
      this.listing = data;
    } else if (event === "sample") {
      const points = new Map(data.points.map(([key, version, values]) => [`${key}/${version}`, values]));
      this.samples.push({ ...data, points });
      this.samples.splice(0, this.samples.length - this.listing.most_samples);
    }
    this.onChange();
  }

  /** One value of every sample, oldest first: { time_ms, value }; null where a version had no requests, 0 for rates. */
  series(key, version, field) {
    const at = this.listing.fields.indexOf(field);
    const none = field.endsWith("_per_s") || field === "queue_depth" ? 0 : null;
    return this.samples.map(({ time_ms, points }) => ({ time_ms, value: points.get(`${key}/${version}`)?.[at] ?? none }));
  }

  /** The key of the only model with this name. */
  keyOf(name) {
    return this.listing.models.find((entry) => entry.name === name)?.key ?? name;
  }

  /** The sum of one value over all versions, in every sample. */
  total(field) {
    const at = this.listing.fields.indexOf(field);
    return this.samples.map(({ time_ms, points }) => ({ time_ms, value: [...points.values()].reduce((sum, point) => sum + point[at], 0) }));
  }

  /** The newest values of a version by field; empty if it had no requests. */
  latest(key, version) {
    const values = this.samples.at(-1)?.points.get(`${key}/${version}`) ?? [];
    return Object.fromEntries(this.listing.fields.map((field, at) => [field, values[at] ?? null]));
  }
}

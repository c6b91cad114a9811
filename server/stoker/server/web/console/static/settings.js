// Choices that are remembered in this browser, by model and input.

import { useState } from "./vendor/preact-htm.js";

/** As `useState`; the value is an object, kept under `key`. `change` merges fields into it. */
export function useStored(key, initial) {
  const stored = `stoker.${key}`;
  const [value, setValue] = useState(() => ({ ...initial, ...JSON.parse(localStorage.getItem(stored) ?? "{}") }));
  const change = (fields) => {
    const changed = { ...value, ...fields };
    localStorage.setItem(stored, JSON.stringify(changed));
    setValue(changed);
  };
  return [value, change];
}

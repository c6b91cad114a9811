// A button that saves a file which is made when it is needed.

import { html } from "./vendor/preact-htm.js";

export function SaveLink({ name, make }) {
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(make());
    link.download = name;
    link.click();
    // The browser has read the address when the click returns; the data are freed a little later.
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  return html`<button type="button" class="small" onclick=${save}>Save ${name}</button>`;
}

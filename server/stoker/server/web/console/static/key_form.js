// The form for a key that the server requires.

import { html } from "./vendor/preact-htm.js";
import { setKey } from "./server.js";

export function KeyForm({ header, message }) {
  const onSubmit = (event) => {
    event.preventDefault();
    setKey(header, new FormData(event.target).get("key"));
    location.reload();
  };
  return html`
    <form class="panel" onsubmit=${onSubmit}>
      <p role="alert">${message}</p>
      <label for="key">${header === "Authorization" ? "API key" : `Value of the header ${header}`}</label>
      <input id="key" name="key" type="password" autocomplete="off" required />
      <button>Use this key</button>
      <p class="hint">The key stays in this tab, and is sent to this server only.</p>
    </form>
  `;
}

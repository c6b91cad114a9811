// The page: it follows the server, and shows the view that the address names after `#`.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { KeyForm } from "./key_form.js";
import { Live } from "./live.js";
import { ModelView } from "./model_view.js";
import { Overview } from "./overview.js";

/** `#/` is the overview, `#/models/NAME/VERSION/TAB` a model; VERSION `-` is the version that serves by default. */
function routeOf(hash) {
  const [, kind, name, version = "-", tab = "try"] = hash.split("/");
  if (kind !== "models" || !name) return { view: "overview" };
  return { view: "model", name: decodeURIComponent(name), version: version === "-" ? null : version, tab };
}

function App() {
  const [route, setRoute] = useState(routeOf(location.hash));
  const [, redraw] = useState(0);
  const live = useRef(null);
  const heading = useRef(null);
  const isFirst = useRef(true);

  useEffect(() => {
    live.current = new Live(() => redraw((count) => count + 1));
    live.current.follow();
    const onRoute = () => location.hash.startsWith("#/") && setRoute(routeOf(location.hash));
    addEventListener("hashchange", onRoute);
    return () => {
      live.current.stop();
      removeEventListener("hashchange", onRoute);
    };
  }, []);

  const title = route.view === "model" ? route.name : "Models";
  useEffect(() => {
    document.title = `${title} - Stoker console`;
    // Behind a link, the focus is at the beginning of the new view, and a screen reader reads its heading.
    if (!isFirst.current) heading.current?.focus();
    isFirst.current = false;
  }, [title]);

  const listing = live.current?.listing;
  const error = live.current?.error;
  return html`
    <header>
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="22" height="22" />Stoker</a>
      <nav aria-label="Console">
        <a href="#/" aria-current=${route.view === "overview" ? "page" : null}>Models</a>
        <a href="../docs">API</a>
        <a href="../metrics">Metrics</a>
      </nav>
      <${Connection} live=${live.current} />
    </header>
    <main id="main" tabindex="-1">
      <h1 ref=${heading} tabindex="-1">${title}</h1>
      ${error?.missingHeader && html`<${KeyForm} header=${error.missingHeader} message=${error.message} />`}
      ${error && !error.missingHeader && html`<p class="error" role="alert">${error.message}</p>`}
      ${!listing && !error && html`<p role="status">Connecting to the server.</p>`}
      ${listing && route.view === "overview" && html`<${Overview} live=${live.current} />`}
      ${listing && route.view === "model" && html`
        <${ModelView} key=${`${route.name}/${route.version}`} live=${live.current} ...${route} />
      `}
    </main>
  `;
}

function Connection({ live }) {
  const server = live?.listing?.server;
  const text = !live?.isConnected ? "not connected" : server && !server.is_ready ? "not ready" : "ready";
  return html`<p class="connection" role="status">
    <span class="dot ${text.replace(" ", "-")}" aria-hidden="true"></span>${server ? `${server.name} ${server.version}, ` : ""}${text}
  </p>`;
}

render(html`<${App} />`, document.getElementById("app"));

// A field that takes a file: chosen, dropped or pasted.

import { html, useState } from "./vendor/preact-htm.js";

/** `onFile` reads the file and returns a note about it; what it throws is shown. */
export function FilePicker({ id, label, accept, onFile, preview }) {
  const [note, setNote] = useState("");
  const [problem, setProblem] = useState("");
  const [isOver, setIsOver] = useState(false);

  async function take(files) {
    if (!files?.length) return;
    setProblem("");
    try {
      setNote(await onFile(files[0]));
    } catch (error) {
      setNote("");
      setProblem(`${files[0].name} cannot be read: ${error.message}`);
    }
  }

  const onDrag = (event) => {
    event.preventDefault();
    setIsOver(event.type === "dragover");
  };
  const onDrop = (event) => {
    onDrag(event);
    take(event.dataTransfer.files);
  };
  return html`
    <div class=${`drop ${isOver ? "over" : ""}`} ondragover=${onDrag} ondragleave=${onDrag} ondrop=${onDrop}
      onpaste=${(event) => take(event.clipboardData.files)}>
      <div>
        <label for=${id}>${label}, chosen or dropped here</label>
        <input type="file" id=${id} accept=${accept} onchange=${(event) => take(event.target.files)} />
        <p class="soft" role="status">${note}</p>
        <p class="error" role="alert">${problem}</p>
      </div>
      ${preview}
    </div>
  `;
}

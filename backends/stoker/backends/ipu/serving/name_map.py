"""`name_map.json`: what clients call the anchors of an executable, an object from anchor to name, beside the PopEF file.

    {"image:0": "image", "scores_output": "scores"}

Anchors that it leaves out keep their names.
"""

import json
from collections.abc import Mapping

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles

NAME_MAP = "name_map.json"
MAX_BYTES = 1 << 20


def read_name_map(files: ModelFiles) -> Mapping[str, str]:
    """The map, anchor to served name; empty where there is no file.

    Raises:
        ModelLoadError: the file is not such an object, gives an anchor two names, or two anchors of one map the same; names all it finds.
    """
    size = files.sizes_bytes.get(NAME_MAP)
    if size is None:
        return {}
    if size > MAX_BYTES:
        raise ModelLoadError(f"'{NAME_MAP}' has {size} bytes, more than the {MAX_BYTES} that are read")
    wrong: list[str] = []

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        wrong.extend(f"anchor '{name}' is named twice" for name in dict.fromkeys(names) if names.count(name) > 1)
        return dict(pairs)

    try:
        root = json.loads(files.read(NAME_MAP).decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"'{NAME_MAP}' is no JSON in UTF-8: {error}") from None
    if not isinstance(root, dict):
        raise ModelLoadError(f"'{NAME_MAP}' holds a {type(root).__name__}, expected an object from anchor to name")
    wrong += [
        f"anchor '{anchor}' is mapped to {json.dumps(name)[:60]}, expected a name"
        for anchor, name in root.items()
        if not isinstance(name, str) or not name
    ]
    if wrong:
        raise ModelLoadError(f"'{NAME_MAP}': {'; '.join(wrong)}")
    return {anchor: str(name) for anchor, name in root.items()}

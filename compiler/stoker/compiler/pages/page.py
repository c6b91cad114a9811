"""The frame of a page: style, head and tables."""

from collections.abc import Sequence
from html import escape

#: Colours of series: the CSS classes `c1` to `c8`.
COLOURS = 8
STYLE = """
:root{color-scheme:light dark;--page:#f9f9f7;--card:#fcfcfb;--ink:#0b0b0b;--ink2:#52514e;--grid:#e1e0d9;--axis:#c3c2b7;
--c0:#b4b2a9;--c1:#2a78d6;--c2:#1baf7a;--c3:#eb6834;--c4:#4a3aa7;--c5:#e87ba4;--c6:#eda100;--c7:#1699ab;--c8:#8c6d46;--bad:#d03b3b;--good:#0a7a0a;--on:#fff}
@media (prefers-color-scheme:dark){:root{--page:#0d0d0d;--card:#1a1a19;--ink:#fff;--ink2:#c3c2b7;--grid:#2c2c2a;--axis:#383835;
--c0:#6b6a65;--c1:#3987e5;--c2:#199e70;--c3:#d95926;--c4:#9085e9;--c5:#d55181;--c6:#c98500;--c7:#25b4c6;--c8:#a98a5f;--bad:#e66767;--good:#0ca30c;--on:#fff}}
body{margin:0;background:var(--page);color:var(--ink);font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:940px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 8px}h3{font-size:15px;margin:22px 0 6px}
.note{color:var(--ink2);margin:0 0 12px}.bad{color:var(--bad)}.good{color:var(--good)}
.tag{border:1px solid var(--axis);border-radius:10px;padding:1px 10px;font-size:12px;color:var(--ink2);margin-left:8px}
section{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:14px 18px;margin:12px 0;overflow-x:auto}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:10px;margin:14px 0}
.tiles div{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:10px 14px}
.tiles b{display:block;font-size:20px;font-weight:600}.tiles span{color:var(--ink2);font-size:12px}
table{border-collapse:collapse;width:100%;font-size:13px}th{text-align:left;color:var(--ink2);font-weight:500}
th,td{padding:4px 8px;border-bottom:1px solid var(--grid);white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td.name{max-width:260px;overflow:hidden;text-overflow:ellipsis}
tr.own td{font-weight:600}
.legend{margin:0 0 6px;color:var(--ink2);font-size:12px}.legend span{margin-right:16px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
svg{width:100%;height:auto;display:block}svg text{fill:var(--ink2);font-size:11px}svg text.on{fill:var(--on)}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}.limit{stroke:var(--bad);stroke-width:2;stroke-dasharray:5 3}
.line{fill:none;stroke:var(--c1);stroke-width:2}.dot{fill:var(--c1)}.hollow{fill:var(--card);stroke:var(--bad);stroke-width:2}
pre{white-space:pre-wrap;margin:0;font-size:12px}
""" + "".join(f"rect.c{at}{{fill:var(--c{at})}}i.c{at}{{background:var(--c{at})}}\n" for at in range(COLOURS + 1))


def page(title: str, body: str, style: str = "") -> str:
    """Returns the page `title` with the HTML `body`; `style` are its own rules."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int = 1, own: int | None = None) -> str:
    """Returns a table. Columns from index `numbers_from` on are aligned as numbers; row `own` is highlighted."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{"n" if at >= numbers_from else "name"}" title="{escape(text)}">{escape(text)}</{tag}>'
            for at, text in enumerate(texts)
        )

    lines = "".join(f"<tr{' class=own' if at == own else ''}>{cells('td', row)}</tr>" for at, row in enumerate(rows))
    return f"<table><thead><tr>{cells('th', headings)}</tr></thead><tbody>{lines}</tbody></table>"

"""The look of every picture and page, in one place: colours, type and spacing, light and dark, as CSS.

Machine colours: sixteen that differ. The first eight stay apart for readers with protanopia, deuteranopia and
tritanopia (the first four by far); the next eight are hatched, so that nothing hangs on colour alone; the next sixteen
have the same colours under other hatches. Every tile that has the room shows its machine's number as well.
"""

MACHINE_COLOURS = 16
PLAIN_COLOURS = 8  # machines without a hatch; each eight that follow have the next one
HATCHES = 3

# fill in light mode, fill in dark mode, text on it in light mode, text on it in dark mode
_MACHINES = (
    ("#2B5FC4", "#386BD2", "#ffffff", "#ffffff"),
    ("#F2A93B", "#F2A93B", "#10131a", "#10131a"),
    ("#A8304A", "#B93A56", "#ffffff", "#ffffff"),
    ("#A9BEF5", "#B4C6F7", "#10131a", "#10131a"),
    ("#A184EA", "#AB90F0", "#10131a", "#10131a"),
    ("#3FD6B4", "#3FD6B4", "#10131a", "#10131a"),
    ("#C9670F", "#CF6D17", "#10131a", "#10131a"),
    ("#1E9C84", "#2FA07E", "#10131a", "#10131a"),
    ("#A12DBE", "#B03FCC", "#ffffff", "#ffffff"),
    ("#2C511F", "#3B6B2B", "#ffffff", "#ffffff"),
    ("#D3EEB5", "#D3EEB5", "#10131a", "#10131a"),
    ("#58416C", "#6B5184", "#ffffff", "#ffffff"),
    ("#E2839C", "#E2839C", "#10131a", "#10131a"),
    ("#746E1B", "#7C761F", "#ffffff", "#ffffff"),
    ("#53BE2D", "#53BE2D", "#10131a", "#10131a"),
    ("#1B6E74", "#1F767C", "#ffffff", "#ffffff"),
)
SERIES_COLOURS = 6
_SERIES = (
    ("#5b6472", "#a3adbb"),
    ("#3d5afe", "#8c9eff"),
    ("#c2185b", "#f06292"),
    ("#00796b", "#4db6ac"),
    ("#e65100", "#ffb74d"),
    ("#6a1b9a", "#ce93d8"),
)


def _variables(dark: bool) -> str:
    machines = "".join(f"--m{i}:{row[dark]};--t{i}:{row[2 + dark]};" for i, row in enumerate(_MACHINES))
    series = "".join(f"--s{i}:{row[dark]};" for i, row in enumerate(_SERIES))
    return machines + series


_LIGHT = (
    "--paper:#fff;--panel:#f7f8fa;--ink:#171c26;--muted:#586172;--line:#dfe3e9;--wire:#aab2be;--grid:#e8ebf0;"
    "--good:#0b6b4f;--bad:#b3261e;--accent:#3548c4;--wash:#eef1fd;"
)
_DARK = (
    "--paper:#161a21;--panel:#0d1014;--ink:#e9ecf2;--muted:#a2abb9;--line:#303744;--wire:#59626f;--grid:#262c36;"
    "--good:#5fd0a5;--bad:#ff8a80;--accent:#9fb0ff;--wash:#1e2540;"
)

FIGURE_CSS = (
    f":root{{color-scheme:light dark;{_LIGHT}{_variables(False)}}}\n"
    f"@media (prefers-color-scheme:dark){{:root{{{_DARK}{_variables(True)}}}}}\n"
    """svg.figure{font:12px/1.3
system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;fill:var(--ink)}
svg.figure text{font-variant-numeric:tabular-nums}
svg .paper{fill:var(--paper)}
svg .halo{stroke:var(--paper);stroke-width:4px;paint-order:stroke}
svg .muted{fill:var(--muted)}
svg .small{font-size:11px}
svg .strong{font-weight:600}
svg .bad{fill:var(--bad)}
svg .end{text-anchor:end}
svg .mid{text-anchor:middle}
svg .frame{fill:none;stroke:var(--muted);stroke-width:1;opacity:.55}
svg .track{fill:var(--grid)}
svg .wait{fill:transparent}
svg .other{fill:var(--wire)}
svg .rule{stroke:var(--grid);fill:none}
svg .axis{stroke:var(--line);fill:none}
svg .mark{stroke:var(--ink);stroke-width:1.5;fill:none}
svg .wire{stroke:var(--wire);stroke-width:1.25;fill:none}
svg .arrow{fill:var(--wire)}
svg .cross{stroke:var(--ink);fill:none;stroke-linecap:round}
svg .crossend{fill:var(--ink)}
svg .casing{stroke:var(--paper);fill:none;stroke-linecap:round}
svg .ring{fill:var(--paper);stroke:var(--ink);stroke-width:2}
svg .pill{fill:var(--ink)}
svg .received{fill:var(--paper);stroke:var(--ink);stroke-width:1.25}
svg .pilltext{fill:var(--paper);font-weight:600;font-size:11px;text-anchor:middle}
svg .tile{stroke:var(--paper);stroke-width:1}
svg .node>text{stroke:var(--paper);stroke-width:3px;paint-order:stroke}
svg .none{fill:var(--grid)}
svg .dim{opacity:.18}
svg .lit.wire,svg .lit .cross,svg .lit .casing{stroke:var(--accent)}
svg .lit.wire{stroke-width:2.5px}
svg .item{cursor:pointer;outline:none}
svg .item:focus>*,svg .hit>.frame{stroke:var(--accent);stroke-width:3px;stroke-opacity:1;opacity:1}
svg .item:focus>text,svg .item:focus>.node>text{stroke:none}
svg .heat{fill:var(--accent)}
svg .heatstrong{fill:var(--paper)}
svg .back{opacity:.5}
svg .send{fill:var(--ink)}
svg .curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
svg .goal{stroke:var(--muted);stroke-dasharray:2 4;fill:none}
"""
    + "".join(
        f"svg .f{i}{{fill:var(--m{i})}}svg .w{i}{{stroke:var(--m{i});fill:none;stroke-linecap:round}}"
        f"svg .n{i}{{fill:var(--t{i});stroke:var(--m{i});stroke-width:4px;paint-order:stroke;font-weight:600}}"
        f"svg .h{i}{{stroke:var(--t{i});fill:none;stroke-width:1.2;stroke-opacity:.7}}\n"
        for i in range(MACHINE_COLOURS)
    )
    + "".join(f"svg .c{i}{{stroke:var(--s{i})}}svg .d{i}{{fill:var(--s{i})}}\n" for i in range(SERIES_COLOURS))
)

PAGE_CSS = """*{box-sizing:border-box}
body{margin:0;background:var(--panel);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1240px;margin:0 auto;padding:32px 20px 64px}
header .brand{font-weight:600;color:var(--muted);letter-spacing:.01em}
h1{font-size:26px;line-height:1.25;margin:4px 0 10px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 4px}
.verdict{font-size:17px;max-width:75ch;margin:0 0 20px}
.lead{color:var(--muted);margin:0 0 14px;max-width:80ch}
.card{background:var(--paper);border:1px solid var(--line);border-radius:12px;padding:20px;margin:0 0 20px;min-width:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:0 20px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:1px;background:var(--paper);
border:1px solid var(--line);border-radius:12px;overflow:hidden;margin:0 0 20px;padding:0}
.facts div{box-shadow:0 0 0 1px var(--line);padding:14px 18px}
.facts dt{color:var(--muted);font-size:13px}
.facts dd{margin:0;font-size:21px;font-weight:600;font-variant-numeric:tabular-nums}
.facts dd small{display:block;font-size:13px;font-weight:400;color:var(--muted)}
.scroll{overflow-x:auto}
.narrow{display:none}
svg.figure{display:block;height:auto}
svg.figure:focus-visible,.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th{font-weight:500;color:var(--muted);text-align:left;vertical-align:bottom;font-size:13px}
th,td{padding:7px 12px 7px 0;border-bottom:1px solid var(--line)}
tbody th,td{vertical-align:top}
tr:last-child td,tr:last-child th{border-bottom:0}
tbody th{color:var(--ink);font-size:14px}
.number{text-align:right;white-space:nowrap}
tr.best{background:var(--wash)}
tr.best>:first-child{box-shadow:inset 3px 0 var(--accent)}
tbody tr>:first-child{padding-left:10px}
thead tr>:first-child{padding-left:10px}
.tag{display:inline-block;font-size:12px;font-weight:600;color:var(--accent);border:1px solid currentColor;
border-radius:99px;padding:0 8px;margin-left:8px}
.bad{color:var(--bad)}
.good{color:var(--good)}
.notes{margin:14px 0 0;padding:0;list-style:none;color:var(--muted);max-width:85ch}
.notes li{padding-left:14px;border-left:3px solid var(--line);margin:8px 0}
details{margin-top:12px}
summary{cursor:pointer;color:var(--accent)}
summary:focus-visible{outline:2px solid var(--accent);outline-offset:3px;border-radius:3px}
dl.settings{display:grid;grid-template-columns:max-content 1fr;gap:2px 20px;margin:8px 0 0;font-size:14px}
dl.settings dt{color:var(--muted)}
dl.settings dd{margin:0;overflow-wrap:anywhere}
.tools{display:none;flex-wrap:wrap;gap:8px 16px;align-items:center;margin:0 0 12px;font-size:14px}
.js .tools{display:flex}
.tools span{margin-left:auto;display:flex;gap:4px}
.tools input{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--muted);border-radius:6px;
padding:4px 8px;margin-left:6px;width:14em;max-width:100%}
.tools output{color:var(--muted)}
button{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--muted);border-radius:6px;
min-width:32px;min-height:32px;padding:2px 8px;cursor:pointer}
input:focus-visible,button:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
html{scroll-padding:16px 0 9em}
#detail{position:fixed;inset:auto 0 0;display:flex;gap:16px;align-items:start;justify-content:space-between;
background:var(--paper);border-top:2px solid var(--accent);padding:10px 20px;max-height:40vh;overflow:auto;
box-shadow:0 -4px 16px rgb(0 0 0/.18)}
#detail span{flex:none;display:flex;flex-wrap:wrap;gap:6px;max-width:50%}
[hidden]{display:none!important}
#detail p{margin:0;min-width:0;white-space:pre-line;overflow-wrap:anywhere;max-width:110ch}
@media (max-width:700px){
main{padding:16px 8px 48px}
.card{padding:14px 10px}
.wide{display:none}
.narrow{display:block}
.narrow>svg.figure{width:100%;min-width:320px;max-width:460px}
.facts{grid-template-columns:repeat(auto-fit,minmax(140px,1fr))}
h1{font-size:22px}
table,tbody,tr,th,td{display:block;width:auto}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tr{padding:8px 0;border-bottom:1px solid var(--line)}
tr:last-child{border-bottom:0}
th,td,tbody tr>:first-child{border:0;padding:1px 0 1px 8px}
tbody th{font-weight:600}
td{display:flex;gap:16px;justify-content:space-between;text-align:right;overflow-wrap:anywhere}
td::before{content:attr(data-label);color:var(--muted);text-align:left;flex:none}
td:empty{display:none}
.number{white-space:normal}
}
@media print{#detail,.tools{display:none!important}}
footer{color:var(--muted);font-size:13px}
@media print{body{background:none}.card{break-inside:avoid}}
"""

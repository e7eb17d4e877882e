"""Look of the page beyond viser's own: STOP and the state in sight, a phone's full width, the pad
of the takeover and its keys. As HTML that stands in the panel: viser has no other place for it.

viser's elements are found by marks: an empty element with an id in the one before. Their names in
CSS are viser 1.1's; the tests in Chromium hold what comes of it.
"""

from __future__ import annotations

#: White on it has a contrast of 6.5:1.
STOP_COLOR = "#b91c1c"
STOP_MARK = f"""<div id="vla-stop-mark"></div><style>
/* In sight however far the panel is scrolled: the wrappers of the panel clip nothing. */
.mantine-ScrollArea-content div:has(#vla-stop-mark) {{ overflow: visible !important; }}
*:has(> #vla-stop-mark) + * {{ position: sticky; top: 0; z-index: 20; padding-top: 6px;
  background: var(--mantine-color-body); }}
*:has(> #vla-stop-mark) + * button {{ height: 64px !important; background: {STOP_COLOR} !important;
  color: #fff !important; }}
*:has(> #vla-stop-mark) + * button * {{ font-size: 26px !important; font-weight: 800 !important;
  letter-spacing: 2px; }}
*:has(> #vla-state) {{ position: sticky; top: 77px; z-index: 19;
  background: var(--mantine-color-body); }}
/* Contrast: viser's blue and grey are 3.3 to 3.6 on white. */
button {{ --button-bg: #1864ab; }}
[data-mantine-color-scheme=light] button[data-variant=outline] {{ color: #1864ab !important; }}
.mantine-ScrollArea-content :is(label, .mantine-Text-root, .mantine-Slider-markLabel),
.mantine-Paper-root .mantine-Text-root {{ color: var(--mantine-color-text) !important;
  opacity: 1 !important; }}
/* A phone: the panel is as wide as the screen, over the lower two thirds of it. */
@media (max-width: 640px) {{
  .mantine-Paper-root:has(#vla-stop-mark) {{ left: 0 !important; right: 0 !important;
    top: auto !important; bottom: 0 !important; width: 100% !important; max-width: none !important;
    height: 70% !important; max-height: 70% !important; transform: none !important; }}
  .mantine-Paper-root div:has(#vla-stop-mark) {{ width: 100% !important;
    max-width: none !important; }}
  .mantine-Paper-root .mantine-ScrollArea-root:has(#vla-stop-mark) {{ height: 100% !important;
    max-height: none !important; }}
}}
</style>"""

#: Of the pad, in rows of four: label and key of a button, its place among x y z rx ry rz, the sign.
PAD = (
    ("↺ Q", "q", 5, 1.0), ("+x W", "w", 0, 1.0),
    ("↻ E", "e", 5, -1.0), ("+z R", "r", 2, 1.0),
    ("+y A", "a", 1, 1.0), ("-x S", "s", 0, -1.0),
    ("-y D", "d", 1, -1.0), ("-z F", "f", 2, -1.0),
    ("+rx J", "j", 3, 1.0), ("-rx L", "l", 3, -1.0),
    ("+ry I", "i", 4, 1.0), ("-ry K", "k", 4, -1.0),
)  # fmt: skip

#: A key that is down holds its button down; a window that loses the focus lets all go.
_KEYS = """
if (!window.vlaKeys) {
  window.vlaKeys = {};
  const button = key => document.querySelector('#vla-pad-mark') &&
    [...document.querySelectorAll('button')].find(
      b => b.innerText.trim().toLowerCase().endsWith(' ' + key) && b.closest('[data-vla-pad]'));
  const send = (b, kind) => b.dispatchEvent(
    new PointerEvent(kind, {bubbles: true, button: 0, pointerId: 1}));
  const up = key => { const b = window.vlaKeys[key]; delete window.vlaKeys[key];
    if (b) { send(b, 'pointerup'); b.removeAttribute('data-held'); } };
  window.addEventListener('keydown', e => {
    const typing = e.target.closest && e.target.closest('input, textarea, select');
    const key = e.key.toLowerCase();
    if (typing || e.ctrlKey || e.metaKey || e.altKey || e.repeat || window.vlaKeys[key]) return;
    const mark = document.querySelector('#vla-pad-mark');
    if (mark && mark.offsetParent) {
      mark.parentElement.parentElement.setAttribute('data-vla-pad', '');
      const b = button(key);
      if (b) {
        e.stopImmediatePropagation();  // else viser moves its camera by it
        window.vlaKeys[key] = b; send(b, 'pointerdown'); b.setAttribute('data-held', '');
      }
    }
  }, true);
  window.addEventListener('keyup', e => up(e.key.toLowerCase()));
  window.addEventListener('blur', () => Object.keys(window.vlaKeys).forEach(up));
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const paint = () => document.documentElement.setAttribute(
    'data-mantine-color-scheme', dark.matches ? 'dark' : 'light');
  dark.addEventListener('change', paint);
  paint();
}
"""
SCRIPT = f"""<img src="data:," alt="" style="display:none" onerror="{_KEYS.strip()}">"""

PAD_MARK = """<div id="vla-pad-mark" style="font:12px sans-serif;padding:0 0 4px">Hold a button or
its key: the hand moves. Let go: it stands, and is yours until <b>Give back</b>.</div><style>
*:has(> * > #vla-pad-mark) { display: grid; grid-template-columns: repeat(4, 1fr);
  column-gap: 6px; }
*:has(> * > #vla-pad-mark) > * { margin-inline: 0 !important; grid-column: 1 / -1; }
*:has(> * > #vla-pad-mark) > *:has(> button) { grid-column: auto; }
*:has(> * > #vla-pad-mark) > * > button { height: 44px !important; padding: 0 !important; }
*:has(> * > #vla-pad-mark) button:active, button[data-held] { outline: 3px solid #f59f00; }
</style>"""


def held_html(held: bool) -> str:
    """The dead-man of a person who has the robot: whether a button or key is held."""
    color, text = ("#1d4ed8", "HELD: it moves") if held else ("#475569", "NOT HELD: it stands")
    return (
        f'<div id="vla-held" style="background:{color};color:#fff;font:700 14px sans-serif;'
        f'padding:8px 10px;border-radius:6px;margin:0 8px 6px">{text}</div>'
    )

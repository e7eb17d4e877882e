"""Look of the page beyond viser's own: STOP and the state in sight, a phone's full width, the pad
of the takeover and its keys. As HTML that stands in the panel: viser has no other place for it.

viser's elements are found by marks: an empty element with an id in the one before. Their names in
CSS are viser 1.1's; the tests in Chromium hold what comes of it.
"""

from __future__ import annotations

from vla_ros.viz.viewer.guard import ALIVE

#: Seconds between two beats of the server, and between two looks of the page for one.
BEAT_S = 0.5
_LOOK_S = 0.25
_LATE = 5  # looks without a beat: the page asks whether the server answers at all
_ANSWER_S = 0.4
_LOST = 16  # looks: lost, whatever answers: what STOP goes through does not

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
:root[data-mantine-color-scheme=light] {{ --mantine-primary-color-filled: #1864ab; }}
:root[data-mantine-color-scheme=dark] {{ --mantine-primary-color-filled: #74c0fc; }}
.mantine-Notification-description {{ color: var(--mantine-color-text) !important; }}
/* Dark: charts are drawn for a light page, and the 3-D part on nothing. */
[data-mantine-color-scheme=dark] .uplot :is(canvas, .u-marker) {{
  filter: invert(1) hue-rotate(180deg); }}
[data-mantine-color-scheme=dark] canvas[data-engine] {{ background: #1a1b1e; }}
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

#: A lost link covers the page: nothing on it is true any more, STOP above all. A beat comes through
#: what a press of STOP goes through. Looks are counted, not seconds: a page that drew for a while
#: has its beats waiting. The browser itself notices a cable that was pulled after minutes.
_LINK = f"""
if (!window.vlaLink) {{
  window.vlaLink = {{beat: '', late: 0, heard: Date.now()}};
  const link = window.vlaLink, cover = document.createElement('div');
  cover.id = 'vla-lost';
  cover.setAttribute('role', 'alert');
  cover.innerHTML = '<div><b>NOT CONNECTED</b><p>STOP cannot be pressed here, nor Escape: nothing'
    + ' on this page reaches the robot.</p><p>Press the <b>emergency stop of the robot</b>, or'
    + ' Ctrl-C where vla-ros was started.</p><small></small></div>';
  document.body.append(cover);
  document.hasFocus = () => true;  // else viser connects again only when somebody clicks
  const lose = () => {{
    if (link.late < {_LATE}) return;
    const seconds = (Date.now() - link.heard) / 1000;
    cover.dataset.after ??= seconds;
    cover.dataset.lost = '';
    cover.querySelector('small').innerText = 'Connected last ' + seconds.toFixed(0)
      + ' s ago. It connects again by itself.';
  }};
  setInterval(() => {{
    const beat = document.querySelector('#vla-beat')?.textContent ?? link.beat;
    if (beat !== link.beat) {{
      link.beat = beat;
      link.late = 0;
      link.heard = Date.now();
      delete cover.dataset.lost;
      delete cover.dataset.after;
      return;
    }}
    link.late += 1;
    if (link.late >= {_LOST} || 'lost' in cover.dataset) lose();
    else if (link.late >= {_LATE})
      fetch('{ALIVE}', {{cache: 'no-store', signal: AbortSignal.timeout({1e3 * _ANSWER_S:.0f})}})
        .then(answer => answer.ok || lose(), lose);
  }}, {1e3 * _LOOK_S:.0f});
}}
"""
_SCRIPTS = f"{_KEYS.strip()}{_LINK.rstrip()}"
SCRIPT = f"""<img src="data:," alt="" style="display:none" onerror="{_SCRIPTS}"><style>
#vla-lost {{ display: none; position: fixed; inset: 0; z-index: 100000; color: #fff;
  background: #7f1d1df5; font: 20px/1.4 sans-serif; padding: 24px; overflow: auto; }}
#vla-lost[data-lost] {{ display: flex; align-items: center; justify-content: center; }}
#vla-lost > div {{ max-width: 34em; }}
#vla-lost > div > b {{ font-size: clamp(38px, 9vw, 80px); line-height: 1.1; }}
#vla-lost p {{ margin: .6em 0; }}
</style>"""

PAD_MARK = """<div id="vla-pad-mark" style="font:12px sans-serif;padding:0 0 4px">Hold a button or
its key: the hand moves. Let go: it stands, and is yours until <b>Give back</b>.</div><style>
*:has(> * > #vla-pad-mark) { display: grid; grid-template-columns: repeat(4, 1fr);
  column-gap: 6px; }
*:has(> * > #vla-pad-mark) > * { margin-inline: 0 !important; grid-column: 1 / -1; }
*:has(> * > #vla-pad-mark) > *:has(> button) { grid-column: auto; }
*:has(> * > #vla-pad-mark) > * > button { height: 44px !important; padding: 0 !important; }
*:has(> * > #vla-pad-mark) button:active, button[data-held] { outline: 3px solid #f59f00; }
</style>"""


def beat_html(number: int) -> str:
    """A beat of the server: the page that gets another one knows that STOP can be pressed."""
    return f'<span id="vla-beat" hidden>{number}</span>'


def held_html(held: bool) -> str:
    """The dead-man of a person who has the robot: whether a button or key is held."""
    color, text = ("#1d4ed8", "HELD: it moves") if held else ("#475569", "NOT HELD: it stands")
    return (
        f'<div id="vla-held" style="background:{color};color:#fff;font:700 14px sans-serif;'
        f'padding:8px 10px;border-radius:6px;margin:0 8px 6px">{text}</div>'
    )
